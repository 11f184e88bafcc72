"""Processes that SIGKILL does not end: the kernel's freezer keeps them in an uninterruptible sleep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.master_grid import wait_gone

_FREEZER = Path("/sys/fs/cgroup/freezer")
"""Of the first version of cgroups: in the second one SIGKILL ends frozen processes, too."""

needs_freezer = pytest.mark.skipif(
    not os.access(_FREEZER / "cgroup.procs", os.W_OK) or os.getuid() != 0,
    reason="only root can freeze processes, and only with cgroups of the first version",
)


@contextmanager
def unkillable(*pids: int) -> Iterator[None]:
    """These processes cannot be killed within the block, and have ended after it."""
    group = _FREEZER / f"pwgrid-test-{os.getpid()}"
    group.mkdir()
    state = group / "freezer.state"
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        while state.read_text().strip() != "FROZEN":  # it may take a moment, for which there is no event
            pass
        yield
    finally:
        state.write_text("THAWED")
        for pid in pids:
            wait_gone(pid)
        while (group / "cgroup.procs").read_text():
            pass  # zombies are still members
        group.rmdir()
