"""Tells which variables of the environment are set, and which look like a setting and are none."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pwgrid.common.errors import Violation
from pwgrid.common.wording import did_you_mean

_SERVICE_LINK: Final = ("tcp://", "udp://", "sctp://")
"""What Kubernetes sets NAME_PORT to, in every pod beside a Service of that name, which may be redis or pwgrid."""

NO_SETTINGS: Final = frozenset(
    {
        "PWGRID_CONFIG",
        "PWGRID_KEPT_OPEN",
        "PWGRID_LAUNCH",
        "PWGRID_REDIS_SERVER",
        "PWGRID_RUN",  # the mark of `pwgrid run` in the environment of its command
        "PWGRID_STARTED_IN",
        "PWGRID_URL",  # for pwgrid.client
        "PWGRID_WS_ENDPOINT",  # what `pwgrid run` tells its command
    }
)
"""Variables with our prefix that mean something else."""

_SHORTEST: Final = 10
_CUTOFF: Final = 0.9
"""How alike a name without our prefix must be to a setting's: it may have about one letter too few, too many, or wrong.
The environment is full of names that are not meant for us, most of them short (LOGLEVEL)."""


def set_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set: an empty text counts as not set, and so does Kubernetes' link to a Service."""
    texts = {name: text.strip() for name, text in environ.items()}
    return {
        name: text
        for name, text in texts.items()
        if text and not (name.endswith("_PORT") and text.startswith(_SERVICE_LINK))
    }


def find_strays(variables: Iterable[str]) -> Iterator[Violation]:
    """Variables with our prefix that are no settings, and others that differ from a setting by a typing error. Reads
    only their names."""
    from pwgrid.settings.model import LIKE_FLAGS, PREFIX, SETTINGS  # for commands that need `set_variables` alone

    known = [variable for setting in SETTINGS.values() for variable in setting.environments]
    for name in sorted(set(variables).difference(known, NO_SETTINGS)):
        is_ours = name.upper().startswith(PREFIX)
        if not is_ours and len(name) < _SHORTEST:
            continue
        meant = LIKE_FLAGS.get(name.lower()[len(PREFIX) :]) if is_ours else None
        hint = (
            f"; did you mean {PREFIX}{meant.upper()}?"
            if meant
            else did_you_mean(name.upper(), known, cutoff=0.75 if is_ours else _CUTOFF)
        )
        if is_ours or hint:
            yield Violation(name if name.isprintable() else repr(name), "", f"is no setting{hint}", "environment")
