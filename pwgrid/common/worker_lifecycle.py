"""The worker's states and what moves it from one to the next, as one table; decides nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkerStatus(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    SPARE = "spare"
    AVAILABLE = "available"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


BEFORE_A_DRAIN: Final = (WorkerStatus.STARTING, WorkerStatus.SPARE, WorkerStatus.AVAILABLE)
"""What counts as capacity, now or soon, in the order of a worker's life."""


class WorkerEvent(StrEnum):
    """What can happen to a worker."""

    HELD = "held"  # it is warm, and a spare until it is told to serve
    WARMED = "warmed"  # it is registered and serves
    DRAIN_ASKED = "drain_asked"  # by the master, or it said that somebody else asked
    STOP_ANNOUNCED = "stop_announced"  # it said that its drain is over
    FAILED = "failed"  # it said that it cannot go on, and why
    VANISHED = "vanished"  # exit or silence that it did not announce


class LifecycleError(ValueError):
    """An event that cannot happen in this state."""


_S, _E = WorkerStatus, WorkerEvent

TRANSITIONS: Final[dict[tuple[WorkerStatus, WorkerEvent], WorkerStatus]] = {
    (_S.STARTING, _E.HELD): _S.SPARE,
    (_S.STARTING, _E.WARMED): _S.AVAILABLE,
    (_S.STARTING, _E.DRAIN_ASKED): _S.DRAINING,
    (_S.STARTING, _E.FAILED): _S.STOPPED,
    (_S.STARTING, _E.VANISHED): _S.LOST,
    (_S.SPARE, _E.WARMED): _S.AVAILABLE,
    (_S.SPARE, _E.DRAIN_ASKED): _S.DRAINING,
    (_S.SPARE, _E.FAILED): _S.STOPPED,
    (_S.SPARE, _E.VANISHED): _S.LOST,
    (_S.AVAILABLE, _E.DRAIN_ASKED): _S.DRAINING,
    (_S.AVAILABLE, _E.FAILED): _S.STOPPED,
    (_S.AVAILABLE, _E.VANISHED): _S.LOST,
    # A drain that was asked for while the worker was launching crosses its announcement.
    (_S.DRAINING, _E.HELD): _S.DRAINING,
    (_S.DRAINING, _E.WARMED): _S.DRAINING,
    # The second request means now; it also arrives twice, by the link and through Redis.
    (_S.DRAINING, _E.DRAIN_ASKED): _S.DRAINING,
    (_S.DRAINING, _E.STOP_ANNOUNCED): _S.STOPPED,
    (_S.DRAINING, _E.FAILED): _S.STOPPED,
    (_S.DRAINING, _E.VANISHED): _S.LOST,
    (_S.STOPPED, _E.VANISHED): _S.STOPPED,
    (_S.LOST, _E.VANISHED): _S.LOST,
    # What a worker that was given up as silent still had to say.
    (_S.LOST, _E.HELD): _S.LOST,
    (_S.LOST, _E.WARMED): _S.LOST,
    (_S.LOST, _E.DRAIN_ASKED): _S.LOST,
    (_S.LOST, _E.STOP_ANNOUNCED): _S.LOST,
    (_S.LOST, _E.FAILED): _S.LOST,
}


def advance(status: WorkerStatus, event: WorkerEvent) -> WorkerStatus:
    """The status after `event`. Raises LifecycleError when the pair is not in the table."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise LifecycleError(f"a worker that is {status} cannot see {event}") from None
