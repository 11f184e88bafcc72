"""The closed set of reasons for refusals that metrics count. The sentences to clients say more."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RefusalReason(StrEnum):
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


def reason_of(status: int) -> RefusalReason:
    """Returns the reason of a refusal that names none."""
    return _BY_STATUS.get(status, RefusalReason.OTHER)
