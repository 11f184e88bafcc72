"""Finds directories: the user's home, and what is shipped beside the code: lua/, config/, systemd/ and docs/."""

import os
from collections.abc import Mapping
from pathlib import Path

from pwgrid.common.errors import GridError

_PACKAGE = Path(__file__).parents[1]


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """HOME, else what the table of users has. Raises GridError where neither tells."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # a user id that has no entry in the table of users
        raise GridError("this user has no home directory: set HOME") from None


def resource_dir(name: str) -> Path:
    """The directory `name` ("lua", "config", "systemd", "docs"): inside the wheel, or at the root of a checkout, whose
    code is in grid/pwgrid.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parents[1] / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is missing from this installation of pwgrid ({_PACKAGE})")
