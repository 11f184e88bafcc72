"""Finds the user's home directory. Reads nothing in it."""

import os
from collections.abc import Mapping
from pathlib import Path

from pwgrid.common.errors import GridError


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """HOME, else what the table of users has. Raises GridError where neither tells."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # a user id that has no entry in the table of users
        raise GridError("this user has no home directory: set HOME") from None
