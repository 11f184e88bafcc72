"""Writes log lines to stderr; a stalled, closed or full stderr does not stop the process. No lock, no thread."""

import os
import select
import stat
from typing import Final

STDERR: Final = 2
PIPE_LINE_BYTES: Final = select.PIPE_BUF
"""A pipe takes writes of up to this size in one piece; longer lines of several processes may mix."""

LINE_BYTES: Final = 32 * 1024
STALL_MS: Final = 100


class LineWriter:
    """Writes whole lines, or drops and counts them.

    When stderr's reader does not keep up, one line waits `STALL_MS`; further lines are dropped until it reads again.
    """

    def __init__(self) -> None:
        # If descriptor 2 were free, the next socket that is opened would get it, and all log lines with it.
        try:
            mode = os.fstat(STDERR).st_mode
        except OSError:
            _open_null_as_stderr()
            mode = 0
        self.limit = PIPE_LINE_BYTES if stat.S_ISFIFO(mode) else LINE_BYTES
        """The longest line in bytes, its newline included, that goes out in one piece."""
        self._may_stall = not stat.S_ISREG(mode)
        self._dropped = 0
        self._process = os.getpid()
        """The process that `_dropped` is about. A forked child gets a copy of that number, but the lines are its
        parent's, and its parent reports them."""

    @property
    def dropped(self) -> int:
        """Lines that this process has lost since the last one that went out."""
        return self._dropped if self._process == os.getpid() else 0

    def write(self, text: str) -> None:
        """Writes one line, to which it adds the newline. Raises nothing."""
        try:
            written = self._writable() and self._write_all(encoded(text))
        except OSError:  # gone (EPIPE, EIO, EBADF) or full (ENOSPC, EAGAIN): there is nowhere to complain
            written = False
        self._dropped = 0 if written else self.dropped + 1
        self._process = os.getpid()

    def _writable(self) -> bool:
        """A pipe that polls as writable has room for PIPE_LINE_BYTES, so the write does not block."""
        if not self._may_stall:
            return True
        poll = select.poll()
        poll.register(STDERR, select.POLLOUT)
        return bool(poll.poll(0 if self.dropped else STALL_MS))

    def _write_all(self, line: bytes) -> bool:
        while line:
            line = line[os.write(STDERR, line) :]
        return True


def encoded(text: str) -> bytes:
    """The bytes of a line, its newline included."""
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _open_null_as_stderr() -> None:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if null != STDERR:
        os.dup2(null, STDERR)
        os.close(null)
    else:
        os.set_inheritable(STDERR, True)
