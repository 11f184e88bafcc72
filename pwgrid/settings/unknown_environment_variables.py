"""Finds environment variables that look like a setting and are none. Reads only names, no values."""

from collections.abc import Iterable, Iterator
from typing import Final

from pwgrid.common.errors import Violation
from pwgrid.settings.did_you_mean import did_you_mean
from pwgrid.settings.model import LIKE_FLAGS, PREFIX, SETTINGS

NO_SETTINGS: Final = frozenset(
    {
        "PWGRID_CONFIG",
        "PWGRID_KEPT_OPEN",
        "PWGRID_LAUNCH",
        "PWGRID_REDIS_SERVER",
        "PWGRID_RUN",  # the mark of `pwgrid run` in the environment of its command
        "PWGRID_URL",  # for pwgrid.client
        "PWGRID_WS_ENDPOINT",  # what `pwgrid run` tells its command
    }
)
"""Variables with our prefix that mean something else."""

_SETTINGS: Final = tuple(variable for setting in SETTINGS.values() for variable in setting.environments)
_SHORTEST: Final = 10
_CUTOFF: Final = 0.9
"""How alike a name without our prefix must be to a setting's: it may have about one letter too few, too many, or wrong.
The environment is full of names that are not meant for us, most of them short (LOGLEVEL)."""


def find_strays(variables: Iterable[str]) -> Iterator[Violation]:
    """Variables with our prefix that are no settings, and others that differ from a setting by a typing error."""
    for name in sorted(variables):
        if name in _SETTINGS or name in NO_SETTINGS:
            continue
        is_ours = name.upper().startswith(PREFIX)
        meant = LIKE_FLAGS.get(name.lower()[len(PREFIX) :]) if is_ours else None
        hint = (
            f"; did you mean {PREFIX}{meant.upper()}?"
            if meant
            else did_you_mean(name.upper(), _SETTINGS, cutoff=0.75 if is_ours else _CUTOFF)
        )
        if is_ours or (hint and len(name) >= _SHORTEST):
            yield Violation(name if name.isprintable() else repr(name), "", f"is no setting{hint}", "environment")
