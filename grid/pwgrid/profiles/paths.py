"""Where the profiles of a grid are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pwgrid.common.paths import home
from pwgrid.settings.model import Settings

_OF_SYSTEM: Final = Path("/var/lib/pwgrid/profiles")


def profiles_directory(settings: Settings, environ: Mapping[str, str] = os.environ) -> Path:
    """PROFILES_DIR; else the directory that systemd gives to the service, or one below the system's or the user's for
    what programs keep. Raises GridError where there is none."""
    if settings.profiles_dir:
        return Path(settings.profiles_dir)
    if given := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    if os.geteuid() == 0:
        return _OF_SYSTEM
    own = environ.get("XDG_STATE_HOME") or home(environ) / ".local/state"
    return Path(own) / "pwgrid/profiles"
