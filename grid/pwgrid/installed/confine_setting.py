"""Whether the kernel keeps browsers from the host's files: by the settings, and by what this kernel can."""

from __future__ import annotations

from typing import Final

from pwgrid.common import confined_exec
from pwgrid.common.errors import GridError
from pwgrid.settings.model import Settings

NO_LANDLOCK: Final = "this kernel has no Landlock, or a container forbids it"


def is_confined(settings: Settings) -> bool:
    """Whether browsers are confined, by CONFINE and by what the kernel can."""
    return settings.confine == "on" or (settings.confine == "auto" and confined_exec.abi() > 0)


def check(settings: Settings) -> None:
    """Raises GridError where the settings ask for what the kernel cannot do."""
    if settings.confine == "on" and confined_exec.abi() == 0:
        raise GridError(
            f"CONFINE is on, and {NO_LANDLOCK}: run the grid on Linux 5.13 or later with landlock among its security"
            " modules (lsm=), or set CONFINE=auto"
        )
