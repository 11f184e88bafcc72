"""A child that there is exactly one of and that is restarted at once when it ends: the proxy, the embedded Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common.loop import Loop
from pwgrid.master.child import Child, Exit
from pwgrid.master.policy.backoff import Backoff, BackoffPolicy, Run

log = structlog.get_logger()

POLICY: Final = BackoffPolicy(first_s=0.1, cap_s=5.0, healthy_s=10.0)


class SingleChild:
    """Keeps one child running from `start` to `stop`. `fork` makes it, `on_exit(pid, ended)` says why it ended."""

    def __init__(self, name: str, loop: Loop, fork: Callable[[], Child], on_exit: Callable[[int, Exit], str]) -> None:
        self.name: Final = name
        self.child: Child | None = None
        self.backoff = Backoff(POLICY)
        self._loop = loop
        self._fork = fork
        self._on_exit = on_exit
        self._is_wanted = False
        self._started_at = 0.0
        self._restart = loop.timer(self._start)

    @property
    def pid(self) -> int | None:
        """The child's pid, None while there is none."""
        return self.child.pid if self.child else None

    def start(self) -> None:
        """Have it run from now on. Idempotent."""
        if not self._is_wanted:
            self._is_wanted = True
            self._start()

    def adopt(self, child: Child) -> None:
        """Go on with one that another master forked."""
        self._is_wanted = True
        self._watch(child)
        log.info("service_adopted", service=self.name, pid=child.pid)

    def stop(self, term_at: float, kill_at: float) -> None:
        """No more restarts; SIGTERM and SIGKILL at these monotonic times if it has not ended before."""
        self._is_wanted = False
        self._restart.cancel()
        if self.child is not None:
            self.child.end_by(term_at, kill_at)

    def _start(self) -> None:
        now = self._loop.now()
        try:
            child = self._fork()
        except OSError as error:
            self.backoff = self.backoff.died(now, f"cannot fork: {error.strerror or error}", Run(now))
            self._restart.arm(self.backoff.not_before)
            log.error("service_not_started", service=self.name, reason=self.backoff.reason, retry_s=self._retry_s(now))
            return
        self._watch(child)
        log.info("service_started", service=self.name, pid=child.pid)

    def _watch(self, child: Child) -> None:
        self.child, self._started_at = child, self._loop.now()
        child.watch(lambda ended: self._ended(child.pid, ended))

    def _ended(self, pid: int, ended: Exit) -> None:
        self.child = None
        reason = self._on_exit(pid, ended)
        if not self._is_wanted:
            log.info("service_stopped", service=self.name, pid=pid, exit=str(ended))
            return
        now = self._loop.now()
        self.backoff = self.backoff.died(now, reason, Run(self._started_at, served_s=now - self._started_at))
        self._restart.arm(self.backoff.not_before)
        log.error("service_exited", service=self.name, pid=pid, reason=reason, retry_s=self._retry_s(now))

    def _retry_s(self, now: float) -> float:
        return round(max(0.0, self.backoff.not_before - now), 2)
