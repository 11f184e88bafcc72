"""A cgroup for processors, as containers and services have: in it the kernel does not share them by its sessions."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_V1 = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")


def _parent() -> Path | None:
    """Where one can be made; None if nowhere."""
    if (_V1 / "cpu.shares").exists():
        return _V1 if os.access(_V1, os.W_OK) else None
    control = _V2 / "cgroup.subtree_control"
    is_there = os.access(control, os.W_OK) and "cpu" in control.read_text().split()
    return _V2 if is_there else None


@contextlib.contextmanager
def processor_group(weight: int = 1024) -> Iterator[Path]:
    """What is started while `inside` this cgroup stays in it. Removed at the end, when nothing is in it any more.

    Skips where no such cgroup can be made.
    """
    parent = _parent()
    if parent is None:
        pytest.skip("no cgroup for processors can be made here")
    group = parent / f"pwgrid-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(weight))
        yield group
    finally:
        deadline = time.monotonic() + 20
        while (left := (group / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not left:
            group.rmdir()
    assert not left, f"processes {left} are left in {group}"


@contextlib.contextmanager
def inside(group: Path) -> Iterator[None]:
    """This process is in the cgroup meanwhile."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
