"""A session's states, and the reasons why sessions end.

Only the scripts in lua/ change the state of a session; tests/lua/test_sessions.py has the table that they follow.
"""

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
    BROWSER_HUNG = "browser hung"
    BROWSER_SICK = "browser sick"  # it opens no pages any more, and this session waits for one
    BROWSER_UNREADABLE = "browser connection broken"  # what it says is no message
    MESSAGE_FAILED = "message failed"  # the browser server failed at a message of this session
    TOO_MUCH_WORK = "too much work"  # what its client asked for kept the browser server from serving others
    CLIENT_DOES_NOT_READ = "the client does not read"  # and what waits for it has become too much
    MEMORY_LIMIT = "memory limit"
    WORKER_LOST = "worker lost"
    LOST_BY_WORKER = "lost by worker"
    LEASE_EXPIRED = "lease expired"
    RETURNED = "returned"  # of a lease, and of the session that came with it
    EXPIRED = "expired"  # likewise
    NOT_ANSWERED = "borrow not answered"  # of a lease
    TOKEN_REVOKED = "token revoked"
    GRID_STOPPED = "grid stopped"  # of a lease that no client has ever come with


LIVE: Final = frozenset({SessionStatus.PENDING, SessionStatus.RUNNING})
"""The states in which a session holds a slot."""


_ENDS: Final[dict[str, SessionStatus]] = {
    EndReason.ENDED_BY_OPERATOR: SessionStatus.ENDED,
    EndReason.TOKEN_REVOKED: SessionStatus.ENDED,
    EndReason.GRID_STOPPED: SessionStatus.ENDED,
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
