"""Tells one grid from another that was given the same name, on this host or elsewhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pwgrid.runtime.child_files import boot_id


def instance_of(runtime: Path) -> str:
    """Returns an id of the grid with this runtime directory. It is the same for all its processes, also after an
    upgrade and for a master that takes over; no two grids that run at the same time have the same one. Raises
    OSError."""
    status = runtime.stat()  # two containers on one kernel have other devices, two boots another id
    return hashlib.sha256(f"{boot_id()} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:16]
