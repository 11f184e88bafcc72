"""Finds and ends the processes that a grid left below its runtime directory; touches no other process, no file."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pwgrid.runtime.directory import process_start_time

GONE_S: Final = 5.0
_ROUND_MS: Final = 20


def kill_below(directories: Iterable[Path]) -> int:
    """SIGKILL to every process of ours whose TMPDIR is in one of `directories`, until none is left; how many.

    Browser servers and browsers carry that variable since their exec; the grid's own processes do not.
    """
    marks = [b"\0TMPDIR=" + os.fsencode(directory) + b"/" for directory in directories]
    killed: set[int] = set()
    deadline = time.monotonic() + GONE_S
    while marks and time.monotonic() < deadline:
        found = {pid for pid in _pids() if _is_marked(pid, marks)}
        if not found:
            break
        killed |= found
        for pid in found:
            end(pid, process_start_time(pid), deadline)
    return len(killed)


def end(pid: int, start_time: int | None, deadline: float, first: int = signal.SIGKILL) -> bool:
    """Send `first` to this very process, SIGKILL at `deadline` (monotonic seconds), and wait; whether it is gone."""
    if start_time is None:
        return True
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if process_start_time(pid) != start_time:
            return True
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        for signum, until in ((first, deadline), (signal.SIGKILL, deadline + GONE_S)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signum)
            if ended.poll(max(_ROUND_MS, int((until - time.monotonic()) * 1000))):
                return True
        return False
    finally:
        os.close(pidfd)


def _pids() -> Iterable[int]:
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me]


def _is_marked(pid: int, marks: list[bytes]) -> bool:
    # Not ours, ended while we looked, or a zombie: these have no environment to read.
    with suppress(OSError):
        path = Path(f"/proc/{pid}")
        environment = b"\0" + (path / "environ").read_bytes()
        return path.stat().st_uid in (os.geteuid(), 0) and any(mark in environment for mark in marks)
    return False
