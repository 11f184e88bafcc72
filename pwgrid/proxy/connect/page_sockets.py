"""Which WebSockets are for the grid's own page and no sessions: by path alone, before anything else is spent."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

__all__ = ["WebSocketsSansIOProtocol", "is_own", "is_own_head"]

_LIVE: Final = b"/v1/live"
_GET_LIVE: Final = b"GET " + _LIVE


def is_own_head(head: bytes) -> bool:
    """Whether the request with this head is for `/v1/live` or something below it. Quick to say no."""
    return head.startswith(_GET_LIVE) and is_own(head[4 : head.find(b" ", 4)])


def is_own(target: bytes) -> bool:
    """The same for a request's target alone."""
    return target.startswith(_LIVE) and target[len(_LIVE) : len(_LIVE) + 1] in (b"", b"?", b"/")
