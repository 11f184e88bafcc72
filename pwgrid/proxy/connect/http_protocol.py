"""uvicorn's HTTP protocol with a bound on the request head, its time and its size. Upgrades go to the gateway."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pwgrid.proxy.connect.refusals import render
from pwgrid.proxy.policy.upgrade_request import MAX_HEAD_BYTES, Headers, Refusal

HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 2.0

TakeUpgrade = Callable[[asyncio.Transport, bytes, Headers, bytes, bytes], None]
"""Gets the transport, the request target, the header pairs, the bytes that came behind the head, and all of it as it
came in one piece; b"" if it did not."""


class GridHttpProtocol(HttpToolsProtocol):
    """One client connection until it turns out to be an API request or the upgrade of a session.

    Bounds what httptools and uvicorn leave open: a head of at most MAX_HEAD_BYTES, complete within HEAD_TIMEOUT_S of
    the connect (or of the first byte after an answered request).
    """

    take_upgrade: TakeUpgrade  # set by `bound_to`

    @classmethod
    def bound_to(cls, take_upgrade: TakeUpgrade) -> type["GridHttpProtocol"]:
        """The class that uvicorn instantiates, with the gateway that takes its upgrades."""
        return type("BoundGridHttpProtocol", (cls,), {"take_upgrade": staticmethod(take_upgrade)})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._refused = False

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
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade() and not self._refused:
                self.connections.discard(self)
                self.take_upgrade(self.transport, self.url, self.headers, data[upgrade.args[0] :], b"")
            return
        except httptools.HttpParserError:
            self._refuse(Refusal(400, "this is not HTTP/1.1: connect with a Playwright client to ws://<host>:<port>/"))
            return
        # A complete head was judged by its own size; what came behind it is the API's business.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_size()

    def on_headers_complete(self) -> None:
        self._head_is_done()
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_size()
            return
        super().on_headers_complete()
        if self.parser.should_upgrade() and not self._should_upgrade():
            # Any other upgrade is ignored, as RFC 9110 7.8 allows; the parser stands still behind it.
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

    def _should_upgrade(self) -> bool:
        return (
            self._get_upgrade() == b"websocket"
            and self.parser.get_method() == b"GET"
            and self.parser.get_http_version() == "1.1"
        )

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
