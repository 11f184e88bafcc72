"""Checks whether the file system of the runtime directory has room. Frees nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

FLOOR_MIB: Final = 16


def disk_problem(directory: Path) -> str | None:
    """The sentence for operators when there is no room below `directory`; None when there is."""
    try:
        free_mib = psutil.disk_usage(str(directory)).free >> 20
    except OSError as error:
        return f"the runtime directory {directory} cannot be read: {error.strerror}"
    if free_mib >= FLOOR_MIB:
        return None
    return (
        f"only {free_mib} MiB are left for the runtime directory {directory}: live sessions go on, but browsers cannot "
        "write profiles and downloads, and new workers may not start; free some space"
    )
