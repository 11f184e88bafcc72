"""One process that this master or an earlier one forked: signals it, and learns how it ends. Restarts nothing."""

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

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.runtime.process_identity import KILL_S, create_time

log = structlog.get_logger()

TERM_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `code`: its exit code; negative, the signal that ended it; None where another master forked
    it.

    `was_killed`: this master sent it SIGKILL, because its time was over. `is_left`: that has not ended it, since the
    kernel cannot interrupt it; the master goes on without it.
    """

    code: int | None
    was_killed: bool = False
    is_left: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.code == 0

    @property
    def is_unknown(self) -> bool:
        """Whether its exit code is unknown: the kernel tells only the parent."""
        return self.code is None and not self.is_left

    def __str__(self) -> str:
        if self.is_left:
            return "no end, although it was killed"
        if self.code is None:
            return "an unknown code"
        if self.code >= 0:
            return f"code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Child:
    """A process whose `pidfd` becomes readable when it ends; -1 if it had ended before it could be opened. Timers
    signal it; `started_at` is in Unix seconds."""

    def __init__(self, loop: Loop, pid: int, pidfd: int, started_at: float | None = None) -> None:
        self.pid: Final = pid
        self.started_at: Final = time.time() if started_at is None else started_at
        self._loop = loop
        self._pidfd = pidfd
        self._term = loop.timer(lambda: self.send(signal.SIGTERM))
        self._kill = loop.timer(self._kill_now)
        self._leave = loop.timer(self._leave_now)
        self._on_exit: Callable[[Exit], None] = _do_nothing
        self._was_killed = False
        self.has_ended = pidfd < 0

    @cached_property
    def create_time(self) -> float:
        """Seconds since boot; together with the pid it is unique. 0 if the process ended before this was first read."""
        return create_time(self.pid) or 0.0

    def watch(self, on_exit: Callable[[Exit], None]) -> None:
        """Call `on_exit` when it has ended, is reaped, and its pidfd is closed; or when SIGKILL has not ended it within
        KILL_S, and it is left to the kernel. If it has ended already, that is told in the next turn of the loop."""
        self._on_exit = on_exit
        if self.has_ended:
            ended = self._reap()  # now: once it is reaped, the next fork may get its pid
            self._loop.call_at(self._loop.now(), lambda: on_exit(ended or Exit(None)))
        else:
            self._loop.add(self._pidfd, self._look)

    def end_by(self, term_at: float, kill_at: float) -> None:
        """SIGTERM and SIGKILL it at these monotonic times, unless it ends before; earlier times win over later ones.

        Does nothing to a process that has ended: what it said last may be read, and asked for its end, only after that.
        """
        if self.has_ended:
            return
        self._term.arm(min(self._term.when, term_at))
        self._kill.arm(min(self._kill.when, kill_at))

    def end_now(self) -> None:
        """SIGTERM it at once, and SIGKILL it after TERM_GRACE_S."""
        now = self._loop.now()
        self.end_by(now, now + TERM_GRACE_S)

    def send(self, signum: int) -> None:
        """Send a signal; does nothing to a process that has ended."""
        if self.has_ended:
            return  # its pidfd may be another one's by now
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def _kill_now(self) -> None:
        self._was_killed = True
        self.send(signal.SIGKILL)
        self._leave.arm(min(self._leave.when, self._loop.now() + KILL_S))

    def _leave_now(self) -> None:
        ended = self._reap()
        if ended is None:
            log.error("process_not_killed", pid=self.pid, after_s=KILL_S)
        self._is_over(ended or Exit(None, was_killed=True, is_left=True))

    def _look(self) -> None:
        ended = self._reap()
        if ended is not None:
            self._is_over(ended)

    def _is_over(self, ended: Exit) -> None:
        self._loop.remove(self._pidfd)
        os.close(self._pidfd)
        for timer in (self._term, self._kill, self._leave):
            timer.cancel()
        self.has_ended = True
        self._on_exit(ended)

    def _reap(self) -> Exit | None:
        """Reap the process if it has ended; None while it still runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # adopted: its parent is init, or another subreaper
            if self.has_ended:
                return None
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            return Exit(None, was_killed=self._was_killed) if ended.poll(0) else None
        if not pid:
            return None
        return Exit(os.waitstatus_to_exitcode(status), was_killed=self._was_killed)


def _do_nothing(_ended: Exit) -> None: ...
