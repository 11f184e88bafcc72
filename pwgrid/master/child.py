"""One process that this master or the one before it forked: its end, and what brings it about; restarts nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pwgrid.common.loop import Loop
from pwgrid.runtime.processes import create_time

TERM_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: a code, or a signal's number; neither for one that another master had forked.

    `was_killed`: by us, because its time was over.
    """

    code: int | None
    signum: int | None = None
    was_killed: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.code == 0

    @property
    def is_unknown(self) -> bool:
        """Whether nobody told us: only the parent is told."""
        return self.code is None and self.signum is None

    def __str__(self) -> str:
        if self.is_unknown:
            return "an unknown code"
        if self.signum is None:
            return f"code {self.code}"
        try:
            return signal.Signals(self.signum).name
        except ValueError:
            return f"signal {self.signum}"


class Child:
    """A process whose `pidfd` becomes readable when it ends. Its signals are sent by timers."""

    def __init__(self, loop: Loop, pid: int, pidfd: int, started_at: float | None = None) -> None:
        self.pid: Final = pid
        self.started_at: Final = time.time() if started_at is None else started_at
        self._loop = loop
        self._pidfd = pidfd
        self._term = loop.timer(lambda: self.send(signal.SIGTERM))
        self._kill = loop.timer(self._kill_now)
        self._was_killed = False

    @cached_property
    def create_time(self) -> float:
        """With the pid it tells the process from all others; 0 if it had ended before anybody asked."""
        return create_time(self.pid) or 0.0

    def watch(self, on_exit: Callable[[Exit], None]) -> None:
        """Call `on_exit` when it has ended; by then it is reaped, and its pidfd closed."""
        self._loop.add(self._pidfd, lambda: self._look(on_exit))

    def end_by(self, term_at: float, kill_at: float) -> None:
        """SIGTERM and SIGKILL it at these monotonic times, unless it ends before; earlier times win."""
        self._term.arm(min(self._term.when, term_at))
        self._kill.arm(min(self._kill.when, kill_at))

    def end_now(self) -> None:
        """SIGTERM at once, SIGKILL after a grace."""
        now = self._loop.now()
        self.end_by(now, now + TERM_GRACE_S)

    def send(self, signum: int) -> None:
        """Send a signal; an ended process takes none."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def _kill_now(self) -> None:
        self._was_killed = True
        self.send(signal.SIGKILL)

    def _look(self, on_exit: Callable[[Exit], None]) -> None:
        ended = self._reap()
        if ended is not None:
            self._loop.remove(self._pidfd)
            os.close(self._pidfd)
            self._term.cancel()
            self._kill.cancel()
            on_exit(ended)

    def _reap(self) -> Exit | None:
        """Reap the process if it has ended; None while it still runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # adopted: its parent is init, or another subreaper
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            return Exit(None, was_killed=self._was_killed) if ended.poll(0) else None
        if not pid:
            return None
        if os.WIFSIGNALED(status):
            return Exit(None, os.WTERMSIG(status), self._was_killed)
        return Exit(os.waitstatus_to_exitcode(status), was_killed=self._was_killed)
