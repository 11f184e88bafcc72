"""Tells the service manager where the grid is in its life (sd_notify); without one it does nothing."""

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
    """Who has started this process, and may start it again: "systemd", "supervisord", or nobody that is known."""
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        return "systemd"
    return "supervisord" if os.environ.get("SUPERVISOR_ENABLED") else None


def notify(*lines: str) -> None:
    """One message of `lines` to $NOTIFY_SOCKET. A service manager that does not listen is its own problem."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto("\n".join(lines).encode(), address)


def ready(status: str) -> None:
    """The grid serves, for the first time or again after a reload."""
    notify(READY, f"MAINPID={os.getpid()}", f"STATUS={status}")


def not_ready(why: str, *, patience_s: float) -> None:
    """The start is over, and the grid is not ready: for `patience_s` more TimeoutStartSec= does not count."""
    notify(f"STATUS=not ready: {why}", *_extended(patience_s))


@contextmanager
def reload(*, is_ready: bool) -> Iterator[None]:
    """New settings or new code are taken in this block. Who was not told yet that the grid is ready is not told now."""
    if is_ready:
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        yield
    finally:
        if is_ready:
            ready("serving")


def stopping(within_s: float) -> None:
    """The end has begun, and takes no longer than `within_s` seconds: until then TimeoutStopSec= does not count."""
    notify(STOPPING, *_extended(within_s))


def watchdog_s() -> float | None:
    """After how long without `alive` the service manager kills this process (WatchdogSec=); None: it does not."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or not int(microseconds) or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1_000_000


def alive() -> None:
    """This process is not frozen."""
    notify(ALIVE)


def allow_silence(seconds: float) -> None:
    """From now on `alive` may take so long to come."""
    notify(ALIVE, f"WATCHDOG_USEC={seconds * 1_000_000:.0f}")


def _extended(by_s: float) -> list[str]:
    return [f"EXTEND_TIMEOUT_USEC={by_s * 1_000_000:.0f}"] if by_s > 0 else []
