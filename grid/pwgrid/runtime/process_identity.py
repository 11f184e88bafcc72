"""Finds and signals processes by pid and start time: the kernel gives a pid alone to another process later."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

KILL_S: Final = 5.0
"""How long SIGKILL may take: longer only for a process that the kernel cannot interrupt."""


def create_time(pid: int) -> float | None:
    """When process `pid` started, in seconds since boot; None when it has ended, or never was.

    psutil's create_time() and boot_time() both move when the wall clock is set. Their difference does not, and is the
    same in every process; psutil itself compares processes by it, but keeps it private.
    """
    while True:
        booted_at = psutil.boot_time()
        try:
            process = psutil.Process(pid)
            created_at, status = process.create_time(), process.status()
        except (psutil.Error, ValueError):
            return None
        if psutil.boot_time() == booted_at:  # else the clock was set between the two
            return None if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else round(created_at - booted_at, 2)


def find_process(pid: int, created: float) -> psutil.Process | None:
    """The process that has had this pid since `created` (a `create_time`); None when it has ended."""
    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError):
        return None
    return process if create_time(pid) == created else None


def is_alive(process: psutil.Process) -> bool:
    """Whether exactly this process runs; a zombie does not."""
    with opened(process) as pidfd:
        return pidfd is not None


def kill(process: psutil.Process) -> bool:
    """SIGKILL exactly this process; returns False when it had ended before."""
    return send(process, signal.SIGKILL)


def send(process: psutil.Process, signum: int) -> bool:
    """Send exactly this process a signal; returns False when it had ended before."""
    with opened(process) as pidfd:
        if pidfd is not None:
            _send(pidfd, signum)
        return pidfd is not None


def end(process: psutil.Process, deadline: float, first: int = signal.SIGKILL) -> bool:
    """Send it the signal `first`, SIGKILL it at `deadline` (monotonic seconds), and return whether it has ended."""
    with opened(process) as pidfd:
        if pidfd is None:
            return True
        _send(pidfd, first)
        if _has_ended(pidfd, deadline - time.monotonic()):
            return True
        _send(pidfd, signal.SIGKILL)
        return _has_ended(pidfd, KILL_S)


def wait_ended(process: psutil.Process, deadline: float) -> None:
    """Wait until it has ended, or for what is left until `deadline` (monotonic seconds)."""
    with opened(process) as pidfd:
        if pidfd is not None:
            _has_ended(pidfd, deadline - time.monotonic())


@contextmanager
def opened(process: psutil.Process) -> Iterator[int | None]:
    """A pidfd of it; None when it has ended.

    psutil checks that the pid still belongs to the same process, and then signals the pid: in between the process may
    end and its pid go to another one. A pidfd that was opened before the check stands for no other process.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield pidfd if process.is_running() and not _has_ended(pidfd, 0) else None
    finally:
        os.close(pidfd)


def _has_ended(pidfd: int, within_s: float) -> bool:
    """Whether it has ended, also as a zombie: psutil's wait() would go on waiting for one that is not our child."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return bool(ended.poll(max(0, int(within_s * 1000))))


def _send(pidfd: int, signum: int) -> None:
    """Another user's process cannot be signalled: to the caller it is one that its signal does not end."""
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, signum)
