"""A child that there is exactly one of and that is restarted at once when it ends: the proxy, the embedded Redis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.master.child import Child, Exit
from pwgrid.master.loop import Loop
from pwgrid.master.policy.backoff import Backoff, BackoffPolicy, Run

log = structlog.get_logger()

POLICY: Final = BackoffPolicy(first_s=0.1, cap_s=5.0, healthy_s=10.0)


class Service:
    """Keeps one child running while it is wanted. `fork` makes it; `on_exit` says what is to be said about its end."""

    def __init__(self, name: str, loop: Loop, fork: Callable[[], Child], on_exit: Callable[[Exit], str]) -> None:
        self.name: Final = name
        self.child: Child | None = None
        self.backoff = Backoff(POLICY)
        self._loop = loop
        self._fork = fork
        self._on_exit = on_exit
        self._wanted = True
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """The child's pid, None while there is none."""
        return self.child.pid if self.child else None

    def tick(self, now: float) -> None:
        """Start it if it is due, and send what signals are due."""
        if self.child is not None:
            self.child.tick(now)
        elif self._wanted and now >= self.backoff.not_before:
            self._start(now)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        if self.child is not None:
            return self.child.deadline()
        return self.backoff.not_before if self._wanted else math.inf

    def adopt(self, child: Child, now: float) -> None:
        """Go on with one that a former master forked."""
        self._started_at = now
        self.child = child
        self._loop.add(child.pidfd, self._ended)
        log.info("service_adopted", service=self.name, pid=child.pid)

    def stop(self, term_at: float, kill_at: float) -> None:
        """No more restarts; SIGTERM and SIGKILL at these monotonic times if it has not ended before."""
        self._wanted = False
        if self.child is not None:
            self.child.end_by(term_at, kill_at)

    def _start(self, now: float) -> None:
        self._started_at = now
        try:
            self.child = self._fork()
        except OSError as error:
            self.backoff = self.backoff.died(now, f"cannot fork: {error.strerror or error}", Run(now))
            log.error("service_not_started", service=self.name, reason=self.backoff.reason, retry_s=self._retry_s(now))
            return
        self._loop.add(self.child.pidfd, self._ended)
        log.info("service_started", service=self.name, pid=self.child.pid)

    def _ended(self) -> None:
        child = self.child
        assert child is not None
        ended = child.reap()
        if ended is None:
            return
        self._loop.remove(child.pidfd)
        child.close()
        reason = self._on_exit(ended)
        self.child = None
        now = self._loop.now()
        if not self._wanted:
            log.info("service_stopped", service=self.name, pid=child.pid, exit=str(ended))
            return
        self.backoff = self.backoff.died(now, reason, Run(self._started_at, served_s=now - self._started_at))
        log.error("service_exited", service=self.name, pid=child.pid, reason=reason, retry_s=self._retry_s(now))

    def _retry_s(self, now: float) -> float:
        return round(max(0.0, self.backoff.not_before - now), 2)
