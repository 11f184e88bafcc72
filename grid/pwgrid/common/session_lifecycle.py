"""A session's states, and which one it ends in.

Only the scripts in lua/ change the state of a session; tests/lua/test_sessions.py has the table that they follow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pwgrid.common.reasons import EndReason


class HeldAs(StrEnum):
    """How a slot is held."""

    SESSION = "session"  # by a client that is connected
    LEASE = "lease"  # for a client that comes later, until it is returned or runs out


class SessionStatus(StrEnum):
    PENDING = "pending"  # selected: it holds a slot until its lease ends
    RUNNING = "running"  # its worker has admitted it
    COMPLETED = "completed"  # its client ended it
    ENDED = "ended"  # an operator ended it: neither its client nor the grid did
    FAILED = "failed"  # the grid or the browser ended it, for a recorded reason
    EXPIRED = "expired"  # its client never came, or its borrowed lease ran out


LIVE: Final = frozenset({SessionStatus.PENDING, SessionStatus.RUNNING})
"""The states in which a session holds a slot."""


_ENDS: Final[dict[str, SessionStatus]] = {
    EndReason.ENDED_BY_OPERATOR: SessionStatus.ENDED,
    EndReason.TOKEN_REVOKED: SessionStatus.ENDED,
    EndReason.GRID_STOPPED: SessionStatus.ENDED,
    EndReason.RETURNED: SessionStatus.COMPLETED,
    EndReason.EXPIRED: SessionStatus.EXPIRED,
    EndReason.KEEP_TIME_OVER: SessionStatus.COMPLETED,
    EndReason.NOT_ANSWERED: SessionStatus.EXPIRED,
}
"""An end by the grid or the browser is a failure, except for these reasons."""


def how_ended(by: str, kind: EndReason) -> SessionStatus:
    """The status of a session or a lease that is over. `by` is client, grid or browser."""
    if by == "client":
        return SessionStatus.COMPLETED
    return _ENDS.get(kind, SessionStatus.FAILED)
