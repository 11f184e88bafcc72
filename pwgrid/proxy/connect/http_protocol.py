"""uvicorn's HTTP protocol with a bound on the request head, its time and its size, and refusals in our own shape."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pwgrid.proxy.connect.refusals import render
from pwgrid.proxy.policy.upgrade_request import Refusal

MAX_HEAD_BYTES: Final = 32 * 1024
HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 2.0
_END_OF_HEAD: Final = b"\r\n\r\n"


class BoundedHttpProtocol(HttpToolsProtocol):
    """One client connection until it turns out to be an API request or the upgrade of a session.

    Bounds what httptools and uvicorn leave open: a head of at most MAX_HEAD_BYTES, complete within HEAD_TIMEOUT_S of
    the connect (or of the first byte after an answered request).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._heads = 0
        """Those that have ended in the segment that is being read."""
        self._before = b""
        """The last bytes before that segment: the end of a head may be in both."""
        self._refused = False
        self._upgrades = False
        self._early = b""
        """What came behind the head of an upgrade in the same segment: uvicorn itself drops it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            if self._head_timer is None:  # the next request of a kept-alive connection begins
                self._await_head()
            self._head_bytes += len(data)
        self._heads = 0
        super().data_received(data)
        if self._upgrades:
            self._early = (self._before + data).split(_END_OF_HEAD, self._heads)[-1]
            self._upgrade()
            return
        self._before = data[-len(_END_OF_HEAD) + 1 :]
        # A complete head was judged by its own size; what came behind it is the API's business.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_size()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is not HTTP."""
        self._refuse(Refusal(400, "this is not HTTP/1.1: connect with a Playwright client to ws://<host>:<port>/"))

    def handle_websocket_upgrade(self) -> None:
        """Called by uvicorn when the head of an upgrade is complete; what a refused one says is not read."""
        self._upgrades = not self._refused

    def on_response_complete(self) -> None:
        """Called by uvicorn when a request has its answer."""
        super().on_response_complete()
        if self._upgrades:
            self._upgrade()

    def _upgrade(self) -> None:
        """Goes on with the protocol of WebSockets, once the requests before it have their answers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.pause_reading()
            return
        self._upgrades = False
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().handle_websocket_upgrade()
        self.transport.resume_reading()
        protocol = self.transport.get_protocol()
        if self._early and isinstance(protocol, asyncio.Protocol):
            protocol.data_received(self._early)

    # httptools calls these

    def on_headers_complete(self) -> None:
        self._head_is_done()
        self._in_head = False
        self._heads += 1
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_size()
            return
        before = self.cycle
        super().on_headers_complete()
        if self.parser.should_upgrade() and self.cycle is not before:
            # An upgrade to something else is ignored, as RFC 9110 7.8 allows; the parser stands still behind it.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(Refusal(408, f"no complete request head within {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()

    def _refuse_size(self) -> None:
        self._refuse(Refusal(431, f"the request head is larger than {MAX_HEAD_BYTES} bytes"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answers and closes, but reads on for a moment: closing with unread bytes would reset the answer away."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._head_is_done()
        self.transport.write(render(refusal))
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.abort)
