"""One process that this master or a former one forked: its end, and what brings it about; restarts nothing."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

TERM_GRACE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: a code, or a signal's number; neither for one that a former master had forked."""

    code: int | None
    signum: int | None = None

    @classmethod
    def of(cls, wait_status: int) -> Exit:
        """From what waitpid returned."""
        if os.WIFSIGNALED(wait_status):
            return cls(None, os.WTERMSIG(wait_status))
        return cls(os.waitstatus_to_exitcode(wait_status))

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
    """A forked process. `pidfd` becomes readable when it ends."""

    def __init__(self, name: str, pid: int, pidfd: int, started_at: float | None = None) -> None:
        self.name: Final = name
        self.pid: Final = pid
        self.pidfd: Final = pidfd
        self.started_at: Final = time.time() if started_at is None else started_at
        self._term_at = math.inf
        self._kill_at = math.inf
        self.was_killed = False
        self._closed = False

    def end_by(self, term_at: float, kill_at: float) -> None:
        """SIGTERM and SIGKILL it at these monotonic times, unless it ends before; earlier times win."""
        self._term_at = min(self._term_at, term_at)
        self._kill_at = min(self._kill_at, kill_at)

    def end_now(self, now: float) -> None:
        """SIGTERM at once, SIGKILL after a grace."""
        self.end_by(now, now + TERM_GRACE_S)

    def tick(self, now: float) -> None:
        """Send what is due."""
        if now >= self._kill_at:
            self._kill_at = self._term_at = math.inf
            self.was_killed = True
            self.send(signal.SIGKILL)
        elif now >= self._term_at:
            self._term_at = math.inf
            self.send(signal.SIGTERM)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return min(self._term_at, self._kill_at)

    def send(self, signum: int) -> None:
        """Send a signal; an ended process takes none."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signum)

    def reap(self) -> Exit | None:
        """Take the process out of the table; None while it still runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # adopted: its parent is init, or another subreaper
            ended = select.poll()
            ended.register(self.pidfd, select.POLLIN)
            return Exit(None) if ended.poll(0) else None
        return Exit.of(status) if pid else None

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self.pidfd)
