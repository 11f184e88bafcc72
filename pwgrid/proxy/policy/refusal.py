"""The exception that becomes an HTTP error, for upgrades and the API, and the reasons by which refusals are counted."""

from enum import StrEnum
from typing import Final


class RefusalReason(StrEnum):
    """The closed set of reasons that metrics count. The sentences to clients say more."""

    BAD_REQUEST = "bad request"
    BAD_HANDSHAKE = "bad handshake"
    NO_SUCH_BROWSER = "no such browser"
    TOKEN = "token"  # missing or wrong
    FORBIDDEN = "forbidden"  # a foreign Origin or Host, or not allowed to this token
    NOT_FOUND = "not found"
    SLOW_HEAD = "slow head"
    CONFLICT = "conflict"
    NO_WEBSOCKET = "no WebSocket"
    VERSION = "version"
    TOO_MANY = "too many"
    HEAD_TOO_LARGE = "head too large"
    STOPPING = "stopping"
    MASTER_LOST = "master lost"
    QUEUE_FULL = "queue full"
    RUN_FULL = "run full"
    CAP_REACHED = "cap reached"
    WAITED_TOO_LONG = "waited too long"
    NO_CAPACITY = "no capacity"
    OTHER = "other"


_R = RefusalReason

_BY_STATUS: Final = {
    400: _R.BAD_REQUEST,
    401: _R.TOKEN,
    403: _R.FORBIDDEN,
    404: _R.NOT_FOUND,
    408: _R.SLOW_HEAD,
    409: _R.CONFLICT,
    426: _R.NO_WEBSOCKET,
    428: _R.VERSION,
    429: _R.TOO_MANY,
    431: _R.HEAD_TOO_LARGE,
    503: _R.NO_CAPACITY,
}
"""The reason of a refusal that names none."""


class Refusal(Exception):
    """An HTTP error. A Playwright client shows `error` to its user word for word."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        details: dict[str, object] | None = None,
        reason: RefusalReason | None = None,
    ) -> None:
        super().__init__(error)
        self.reason = reason or _BY_STATUS.get(status, RefusalReason.OTHER)
        self.status = status
        self.error = error
        self.headers = headers
        self.details = details or {}


def bad_handshake(error: str, headers: tuple[tuple[str, str], ...] = ()) -> Refusal:
    return Refusal(400, f"bad WebSocket handshake: {error}", headers=headers, reason=RefusalReason.BAD_HANDSHAKE)


def come_back(after_s: int, status: int, error: str, reason: RefusalReason | None = None) -> Refusal:
    """Makes a refusal that says when to try again."""
    return Refusal(
        status,
        error,
        headers=(("Retry-After", str(after_s)),),
        details={"retryAfterS": after_s},
        reason=reason,
    )
