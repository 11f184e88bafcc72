"""A command on a terminal: a real pty, and a screen (pyte) that shows what a user would see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyte

from tests.support.grid import ROOT, Grid

PATIENCE_S = 30
"""Bounds a failure."""


class OnTerminal:
    """A process with a controlling terminal of its own. `raw` is all that it has written."""

    def __init__(self, *command: str, env: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            # No shell exports these two, but whoever runs the tests may.
            env={name: env[name] for name in env if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm-256color"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            preexec_fn=_take_terminal,
        )

    def resize(self, columns: int, lines: int) -> None:
        """As when a user drags the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: str) -> None:
        """The user types."""
        os.write(self.master, keys.encode())

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Reads until the screen is like that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._read(left_s):
                raise AssertionError(f"never on the screen: {what}\n{self.text}\n{self.raw[-500:]!r}")
        return found

    def until_text(self, *texts: str) -> None:
        """Reads until all of these are on the screen."""
        self.until(lambda: all(text in self.text for text in texts), ", ".join(texts))

    def end(self) -> int:
        """Reads until the process has ended; its exit code."""
        while self._read(PATIENCE_S, until_exit=True):
            pass
        return self.process.wait(PATIENCE_S)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def line(self, beginning: str) -> str:
        """The only line of the screen that begins so."""
        (found,) = [line.rstrip() for line in self.screen.display if line.startswith(beginning)]
        return found

    def is_as_before(self) -> bool:
        """Whether the terminal has the attributes, the screen and the cursor that it had."""
        entered, left = self.raw.count(b"\x1b[?1049h"), self.raw.count(b"\x1b[?1049l")
        hidden, shown = self.raw.rfind(b"\x1b[?25l"), self.raw.rfind(b"\x1b[?25h")
        return termios.tcgetattr(self.slave) == self.before and entered == left and hidden <= shown

    def close(self) -> None:
        """Ends what is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            os.close(fd)

    def _read(self, within_s: float, *, until_exit: bool = False) -> bool:
        """Takes in what comes next; False when nothing came."""
        deadline = time.monotonic() + within_s
        with contextlib.closing(_Pidfd(self.process.pid)) as process:
            watched = [self.master, process] if until_exit else [self.master]
            ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
        if self.master not in ready:
            return False
        data = os.read(self.master, 65536)
        self.raw += data
        self._stream.feed(data)
        return True


class _Pidfd:
    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@contextlib.contextmanager
def on_terminal(grid: Grid, *arguments: str, columns: int = 80, lines: int = 24) -> Iterator[OnTerminal]:
    """`pwgrid ARGUMENTS` in the grid's environment, on a terminal; gone at the end."""
    command = OnTerminal(
        *(sys.executable, "-m", "pwgrid", *arguments), env=grid.environment, columns=columns, lines=lines
    )
    try:
        yield command
    finally:
        command.close()
