"""The WebSockets of the dashboard's page: which requests are for one, and uvicorn's protocol for them."""

import re
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Request

from pwgrid.proxy.policy.refusal import bad_handshake

_LIVE: Final = b"/v1/live"
_DASHBOARD_TARGET: Final = re.compile(rb"[^?]*/v1/live(?:[/?]|$)")
"""Whatever path a reverse proxy serves the grid below: of a client the grid knows no path that ends so."""


def is_dashboard_head(head: bytes) -> bool:
    """Whether a request with this head is for `/v1/live` or below it. Fast for all other requests."""
    return _LIVE in head and is_dashboard_target(head[4 : head.find(b" ", 4)])


def is_dashboard_target(target: bytes) -> bool:
    return _DASHBOARD_TARGET.match(target) is not None


class DashboardSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, without two lines of its log that are no errors of ours. It refuses heads that uvicorn would
    never answer."""

    def data_received(self, data: bytes) -> None:
        """Gets the whole head first. If websockets cannot read that, uvicorn would leave the connection open."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # no page says anything before it is answered, and uvicorn may raise for it
            return
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            refusal = bad_handshake("its head is malformed, or too long")
            self.transport.write(refusal.response())
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Called for the head. uvicorn raises for a target that is not ASCII, and nobody would hear of it. It passes
        names of header fields on as they are, and the application looks for those in lower case, as ASGI has them."""
        if event.path.isascii():
            event.headers = Headers((name.lower(), value) for name, value in event.headers.raw_items())
            super().handle_connect(event)

    async def send(self, message: Any) -> None:
        """Called by the application. A refusal that has been sent whole completes the handshake, too: uvicorn would
        miss a handshake."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True

    def handle_text(self, event: Frame) -> None:
        """Called for a text. uvicorn logs one that is no UTF-8 with a traceback; the application reads bytes itself."""
        self.handle_bytes(event)
