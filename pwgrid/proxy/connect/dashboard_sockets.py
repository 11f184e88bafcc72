"""Recognises WebSockets of the dashboard (no sessions) by their path alone; uvicorn's protocol serves them."""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

_LIVE: Final = b"/v1/live"
_GET_LIVE: Final = b"GET " + _LIVE


def is_dashboard_head(head: bytes) -> bool:
    """Whether a request with this head is for `/v1/live` or below it. Fast for all other requests."""
    return head.startswith(_GET_LIVE) and is_dashboard_target(head[4 : head.find(b" ", 4)])


def is_dashboard_target(target: bytes) -> bool:
    return target.startswith(_LIVE) and target[len(_LIVE) : len(_LIVE) + 1] in (b"", b"?", b"/")


class DashboardSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol without two lines of its log that are no errors of ours."""

    async def send(self, message: Any) -> None:
        """Called by the application. A refusal that has been sent whole completes the handshake, too: uvicorn would
        miss a handshake."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True

    def handle_text(self, event: Frame) -> None:
        """Called for a text. uvicorn logs one that is no UTF-8 with a traceback; the application reads bytes itself."""
        self.handle_bytes(event)
