"""Keeps one child running, the proxy or the embedded Redis: restarts it when it ends, at first without a delay."""

from __future__ import annotations

from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import ChildKind
from pwgrid.master.child import Child, Exit
from pwgrid.master.policy.backoff import Backoff, BackoffPolicy
from pwgrid.master.restart.children_to_adopt import open_child
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

POLICY: Final = BackoffPolicy(first_s=0.1, cap_s=5.0, healthy_s=10.0)


class RestartedChild:
    """Keeps one child running from `start` to `stop_by`. Subclasses define `_fork` and `_on_exit`."""

    def __init__(self, kind: ChildKind, loop: Loop) -> None:
        self._kind = kind
        self._loop = loop
        self._child: Child | None = None
        self._backoff = Backoff(POLICY)
        self._is_wanted = False
        self._started_at = 0.0
        self._restart = loop.timer(self._start)

    @property
    def pid(self) -> int | None:
        """The child's pid; None between its death and the restart."""
        return self._child.pid if self._child else None

    @property
    def problem(self) -> str | None:
        """Why it ended last; None while it never has."""
        return self._backoff.reason

    def start(self) -> None:
        """Keep it running from now on. Idempotent."""
        if not self._is_wanted:
            self._is_wanted = True
            self._start()

    def adopt(self, state: ChildState) -> bool:
        """Take over a child that another master forked; False when it has ended since."""
        child = open_child(self._loop, state)
        if child is None:
            return False
        self._is_wanted = True
        self._watch(child)
        log.info("service_adopted", service=self._kind, pid=child.pid)
        return True

    def stop_by(self, term_at: float, kill_at: float) -> None:
        """Restart it no more; SIGTERM and SIGKILL it at these monotonic times if it has not ended before."""
        self._is_wanted = False
        self._restart.cancel()
        if self._child is not None:
            self._child.end_by(term_at, kill_at)

    def kill(self) -> None:
        """SIGKILL it at once, and restart it no more."""
        now = self._loop.now()
        self.stop_by(now, now)

    def _fork(self) -> Child:
        """Raises OSError."""
        raise NotImplementedError

    def _on_exit(self, pid: int, ended: Exit) -> str:
        """Clean up after it; returns the sentence that says how it ended."""
        raise NotImplementedError

    def _start(self) -> None:
        now = self._loop.now()
        try:
            child = self._fork()
        except OSError as error:
            reason = f"cannot fork: {error.strerror or error}"
            retry_s = self._restart_later(now, reason, started_at=now)
            log.error("service_not_started", service=self._kind, reason=reason, retry_s=retry_s)
            return
        self._watch(child)
        log.info("service_started", service=self._kind, pid=child.pid)

    def _watch(self, child: Child) -> None:
        self._child, self._started_at = child, self._loop.now()
        child.watch(lambda ended: self._ended(child.pid, ended))

    def _ended(self, pid: int, ended: Exit) -> None:
        self._child = None
        reason = self._on_exit(pid, ended)
        if not self._is_wanted:
            log.info("service_stopped", service=self._kind, pid=pid, exit=str(ended))
            return
        now = self._loop.now()
        retry_s = self._restart_later(now, reason, self._started_at)
        log.error("service_exited", service=self._kind, pid=pid, reason=reason, retry_s=retry_s)

    def _restart_later(self, now: float, reason: str, started_at: float) -> float:
        """Returns in how many seconds."""
        self._backoff = self._backoff.died(now, reason, started_at, served_s=now - started_at)
        self._restart.arm(self._backoff.not_before)
        return self._backoff.retry_s(now)
