"""Turns signals into bytes on a pipe: the handlers only queue them, and the loop acts on them."""

from __future__ import annotations

import errno
import os
import signal
from types import FrameType
from typing import Final

HANDLED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_ENDING: Final = tuple(signum for signum in HANDLED if signum != signal.SIGCHLD)


def _queued(_signum: int, _frame: FrameType | None) -> None:
    """Does nothing: Python's C handler has written the byte (set_wakeup_fd) already."""


class SignalQueue:
    """The handled signals, queued on `fd`."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        """Queue the signals from now on."""
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for signum in HANDLED:
            signal.signal(signum, _queued)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # they are blocked after the master executed itself

    def close(self) -> None:
        """Close the pipe. Signals that would end this process are ignored from now on: a late Ctrl-C must not keep it
        from removing its files, nor change its exit code. Python itself stops handling them at its very end."""
        signal.set_wakeup_fd(-1)
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_IGN)
        os.close(self.fd)
        os.close(self._write_fd)

    def read(self) -> list[signal.Signals]:
        """The signals that have arrived, in order."""
        try:
            return [signal.Signals(byte) for byte in os.read(self.fd, 4096)]
        except BlockingIOError:
            return []


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there, as far as it can find out."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # one that is gone would stop the grid
    return True
