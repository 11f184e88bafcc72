"""Tells the service manager (sd_notify) that the grid is ready, reloads, stops or lives; does nothing without one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


def service_manager() -> str | None:
    """What started this process, and may start it again: "systemd" or "supervisord"; None if it is neither."""
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        return "systemd"
    return "supervisord" if os.environ.get("SUPERVISOR_ENABLED") else None


def notify(*lines: str) -> None:
    """Send one message of `lines` to $NOTIFY_SOCKET, if it is set. Errors are ignored: the grid can do without."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto("\n".join(lines).encode(), address)


def ready(status: str) -> None:
    """Say that the grid serves, for the first time or again after a reload."""
    notify(READY, f"MAINPID={os.getpid()}", f"STATUS={status}")


def not_ready(why: str, *, patience_s: float) -> None:
    """Say that the start is over, but not ready: TimeoutStartSec= does not count for `patience_s` more seconds."""
    notify(f"STATUS=not ready: {why}", *_extended(patience_s))


@contextmanager
def reload(*, is_ready: bool) -> Iterator[None]:
    """Say that the block takes new settings or new code; nothing if READY was not sent yet (`is_ready`)."""
    if is_ready:
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        yield
    finally:
        if is_ready:
            ready("serving")


def stopping(within_s: float) -> None:
    """Say that the grid is stopping, for at most `within_s` seconds: until then TimeoutStopSec= does not count."""
    notify(STOPPING, *_extended(within_s))


def watchdog_s() -> float | None:
    """After how many seconds without `alive` the service manager kills this process (WatchdogSec=); None if it never
    does."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or not int(microseconds) or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1_000_000


def alive() -> None:
    """Say that this process is not frozen."""
    notify(ALIVE)


def allow_silence(seconds: float) -> None:
    """Let so many seconds pass between two calls of `alive` from now on."""
    notify(ALIVE, f"WATCHDOG_USEC={seconds * 1_000_000:.0f}")


def _extended(by_s: float) -> list[str]:
    return [f"EXTEND_TIMEOUT_USEC={by_s * 1_000_000:.0f}"] if by_s > 0 else []
