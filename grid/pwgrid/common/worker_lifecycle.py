"""A worker's states as it reports them and Redis and the proxy show them, and the table of events that move it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol


class WorkerStatus(StrEnum):
    STARTING = "starting"
    SPARE = "spare"
    AVAILABLE = "available"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


BEFORE_A_DRAIN: Final = (WorkerStatus.STARTING, WorkerStatus.SPARE, WorkerStatus.AVAILABLE)
"""The states that count as capacity, now or soon, in the order of a worker's life."""
WARM: Final = (WorkerStatus.SPARE, WorkerStatus.AVAILABLE)
WITH_BROWSER: Final = (*WARM, WorkerStatus.DRAINING)
NOT_ENDED: Final = (WorkerStatus.STARTING, *WITH_BROWSER)


class WorkerEvent(StrEnum):
    WAITS = "waits"  # it is warm, and a spare until it is told to serve
    SERVES = "serves"  # it is warm and registered
    DRAINS = "drains"  # it was asked to, or has a reason of its own
    STOPS = "stops"  # it said that its drain is over
    FAILS = "fails"  # it said that it cannot start, and why
    VANISHES = "vanishes"  # it ended, or fell silent, without having said so


class DrainTimes(Protocol):
    """The settings that bound a drain, in seconds."""

    @property
    def drain_timeout(self) -> float: ...
    @property
    def recycle_drain_timeout(self) -> float: ...


class DrainTime(StrEnum):
    """What bounds how long the sessions of a drain may go on. The values stand in frames."""

    RECYCLE = "recycle"  # RECYCLE_DRAIN_TIMEOUT: another worker takes its place, so nobody waits for its end
    END = "end"  # DRAIN_TIMEOUT: it is not wanted any more
    NOW = "now"  # nothing: they are cut

    def seconds(self, settings: DrainTimes) -> float:
        return {
            DrainTime.RECYCLE: settings.recycle_drain_timeout,
            DrainTime.END: settings.drain_timeout,
            DrainTime.NOW: 0.0,
        }[self]

    @property
    def setting(self) -> str:
        """The name of the setting, for people."""
        return "RECYCLE_DRAIN_TIMEOUT" if self is DrainTime.RECYCLE else "DRAIN_TIMEOUT"


class LifecycleError(ValueError):
    """An event that cannot happen in this state."""


_S, _E = WorkerStatus, WorkerEvent

TRANSITIONS: Final[dict[tuple[WorkerStatus, WorkerEvent], WorkerStatus]] = {
    (_S.STARTING, _E.WAITS): _S.SPARE,
    (_S.STARTING, _E.SERVES): _S.AVAILABLE,
    (_S.STARTING, _E.DRAINS): _S.DRAINING,
    (_S.STARTING, _E.FAILS): _S.STOPPED,
    (_S.STARTING, _E.VANISHES): _S.LOST,
    (_S.SPARE, _E.SERVES): _S.AVAILABLE,
    (_S.SPARE, _E.DRAINS): _S.DRAINING,
    (_S.SPARE, _E.FAILS): _S.STOPPED,
    (_S.SPARE, _E.VANISHES): _S.LOST,
    # A selection makes a spare available in Redis, and the master learns that, before the worker itself does.
    (_S.AVAILABLE, _E.SERVES): _S.AVAILABLE,
    (_S.AVAILABLE, _E.DRAINS): _S.DRAINING,
    (_S.AVAILABLE, _E.FAILS): _S.STOPPED,
    (_S.AVAILABLE, _E.VANISHES): _S.LOST,
    # It was asked to drain while it launched, and its report that it is warm crossed the request.
    (_S.DRAINING, _E.WAITS): _S.DRAINING,
    (_S.DRAINING, _E.SERVES): _S.DRAINING,
    # A second request means now; one request may also arrive twice, by the link and through Redis.
    (_S.DRAINING, _E.DRAINS): _S.DRAINING,
    (_S.DRAINING, _E.STOPS): _S.STOPPED,
    (_S.DRAINING, _E.FAILS): _S.STOPPED,
    (_S.DRAINING, _E.VANISHES): _S.LOST,
    # One that has failed stops like any other.
    (_S.STOPPED, _E.STOPS): _S.STOPPED,
    (_S.STOPPED, _E.VANISHES): _S.STOPPED,
}


def advance(status: WorkerStatus, event: WorkerEvent) -> WorkerStatus:
    """The status after `event`. Raises LifecycleError when the pair is not in the table."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise LifecycleError(f"the event {event} cannot happen to a worker that is {status}") from None
