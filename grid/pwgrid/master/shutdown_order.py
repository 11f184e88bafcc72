"""The order of a shutdown as a table, and what a second request means."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

SECOND_SIGNAL_AFTER_S: Final = 0.3
"""`make` and process groups deliver one Ctrl-C twice; a person's second one comes later."""


class ShutdownPhase(StrEnum):
    """What is being ended now. It still uses what the later phases end."""

    RUNNING = "running"
    WORKERS = "workers"
    PROXY = "proxy"
    FORWARDER = "forwarder"
    TLS = "tls"
    REDIS = "redis"
    DONE = "done"


class Step(StrEnum):
    ASKED = "asked"
    WORKERS_GONE = "workers gone"
    PROXY_GONE = "proxy gone"
    FORWARDER_GONE = "forwarder gone"
    TLS_GONE = "tls gone"
    REDIS_GONE = "redis gone"
    DETACHED = "detached"


ORDER: Final[dict[tuple[ShutdownPhase, Step], ShutdownPhase]] = {
    (ShutdownPhase.RUNNING, Step.ASKED): ShutdownPhase.WORKERS,
    (ShutdownPhase.RUNNING, Step.DETACHED): ShutdownPhase.DONE,  # the children live on for the next master
    (ShutdownPhase.WORKERS, Step.WORKERS_GONE): ShutdownPhase.PROXY,
    (ShutdownPhase.PROXY, Step.PROXY_GONE): ShutdownPhase.FORWARDER,
    (ShutdownPhase.FORWARDER, Step.FORWARDER_GONE): ShutdownPhase.TLS,  # forwarded sessions may go through it
    (ShutdownPhase.TLS, Step.TLS_GONE): ShutdownPhase.REDIS,
    (ShutdownPhase.REDIS, Step.REDIS_GONE): ShutdownPhase.DONE,
}


class Shutdown:
    """The state of the shutdown. `asked_at`: since when (monotonic seconds). `is_hurried`: sessions are cut instead of
    waited for."""

    def __init__(self) -> None:
        self.phase = ShutdownPhase.RUNNING
        self.is_hurried = False
        self.asked_at = math.inf

    @property
    def is_stopping(self) -> bool:
        """Whether the end was asked for."""
        return self.phase is not ShutdownPhase.RUNNING

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to end, or the children live on for the next master."""
        return self.phase is ShutdownPhase.DONE

    def ask(self, now: float, *, hurry: bool = False) -> bool:
        """Begin the shutdown, or hurry it if it has begun; returns whether that changed anything."""
        if self.phase is ShutdownPhase.RUNNING:
            self.asked_at = now
            self.is_hurried = hurry
            self.phase = ORDER[self.phase, Step.ASKED]
            return True
        if not self.is_hurried and (hurry or now - self.asked_at >= SECOND_SIGNAL_AFTER_S):
            self.is_hurried = True
            return True
        return False

    def step(self, step: Step) -> ShutdownPhase:
        """Go to the next phase. Raises KeyError when `step` is not what this phase waits for."""
        self.phase = ORDER[self.phase, step]
        return self.phase
