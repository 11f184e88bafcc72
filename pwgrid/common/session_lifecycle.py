"""A session's states, and the table of events that move it between them; the scripts in lua/ follow it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SessionStatus(StrEnum):
    PENDING = "pending"  # selected: it holds a slot until its lease ends
    RUNNING = "running"  # its worker has admitted it
    COMPLETED = "completed"  # its client ended it
    ENDED = "ended"  # an operator ended it: neither its client nor the grid did
    FAILED = "failed"  # the grid or the browser ended it, for a recorded reason
    EXPIRED = "expired"  # its client never came, or its borrowed lease ran out


class SessionEvent(StrEnum):
    STARTED = "started"
    COMPLETED = "completed"
    ENDED = "ended"
    FAILED = "failed"
    EXPIRED = "expired"


class SessionError(ValueError):
    """An event that cannot happen in this state."""


_S, _E = SessionStatus, SessionEvent

TRANSITIONS: Final[dict[tuple[SessionStatus, SessionEvent], SessionStatus]] = {
    (_S.PENDING, _E.STARTED): _S.RUNNING,
    (_S.PENDING, _E.FAILED): _S.FAILED,
    (_S.PENDING, _E.EXPIRED): _S.EXPIRED,
    (_S.RUNNING, _E.COMPLETED): _S.COMPLETED,
    (_S.RUNNING, _E.ENDED): _S.ENDED,
    (_S.RUNNING, _E.FAILED): _S.FAILED,
    (_S.RUNNING, _E.EXPIRED): _S.EXPIRED,
}
"""Nothing leads back to pending, or out of an end. Two things are repairs of a wrong record, not transitions: a session
that was only presumed dead (its worker was silent) becomes running again once the worker reports it, and the record of
a session that never started is removed when its handoff is tried on another worker."""


class EndReason(StrEnum):
    """Why a session ended, in its record and in its close frame, if there is one.

    The launcher and the scripts in lua/ repeat some of these texts. A session that ends with a lost worker may have the
    master's sentence about the worker instead.
    """

    CLIENT_DISCONNECTED = "client disconnected"
    CONNECTION_LOST = "connection lost"
    PROTOCOL_ERROR = "protocol error"  # with the WebSocket close code behind it
    CLIENT_CLOSED_BROWSER = "client closed the browser"  # over CDP; the browser lives on for its other clients
    PING_TIMEOUT = "ping timeout"
    IDLE_TIMEOUT = "idle timeout"
    MAXIMUM_DURATION = "maximum duration"
    HANDSHAKE_REFUSED = "handshake refused"
    TOO_LATE = "too late"
    ENDED_BY_OPERATOR = "ended by operator"
    DRAIN_TIMEOUT = "drain timeout"
    DRAINED_NOW = "drained now"
    WORKER_STOPPED = "worker stopped"
    BROWSER_CRASHED = "browser crashed"
    BROWSER_SERVER_LOST = "browser server lost"
    HUNG = "hung"
    MEMORY_LIMIT = "memory limit"
    WORKER_LOST = "worker lost"
    LOST_BY_WORKER = "lost by worker"
    LEASE_EXPIRED = "lease expired"
    RETURNED = "returned"  # of a lease, and of the session that came with it
    EXPIRED = "expired"  # likewise
    NOT_ANSWERED = "borrow not answered"  # of a lease


LIVE: Final = frozenset({SessionStatus.PENDING, SessionStatus.RUNNING})
"""The states in which a session holds a slot."""


_ENDS: Final[dict[str, SessionStatus]] = {
    EndReason.ENDED_BY_OPERATOR: SessionStatus.ENDED,
    EndReason.RETURNED: SessionStatus.COMPLETED,
    EndReason.EXPIRED: SessionStatus.EXPIRED,
    EndReason.NOT_ANSWERED: SessionStatus.EXPIRED,
}
"""An end by the grid or the browser is a failure, except for these reasons."""


def how_ended(by: str, reason: str) -> SessionStatus:
    """The status of a session or a lease that is over. `by` is client, grid or browser."""
    if by == "client":
        return SessionStatus.COMPLETED
    return _ENDS.get(reason, SessionStatus.FAILED)


def advance(status: SessionStatus, event: SessionEvent) -> SessionStatus:
    """The status after `event`. Raises SessionError when the pair is not in the table."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise SessionError(f"the event {event} cannot happen to a session that is {status}") from None
