"""uvicorn's HTTP protocol with bounds on the size of a head and the time it takes, and with the grid's own refusals."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pwgrid.proxy.connect.dashboard_protocol import DashboardSocketProtocol, is_dashboard_target
from pwgrid.proxy.connect.idle_connections import IdleConnections
from pwgrid.proxy.policy.refusal import Refusal, bad_handshake, head_too_large

MAX_HEAD_BYTES: Final = 32 * 1024
HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 2.0

END_OF_HEAD: Final = b"\r\n\r\n"
_WEBSOCKET: Final = b"websocket"


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection for API requests, which may become a WebSocket.

    httptools and uvicorn do not bound a head; this allows MAX_HEAD_BYTES, complete within HEAD_TIMEOUT_S of the connect
    (or of the first byte after an answered request).
    """

    def __init__(self, idle: IdleConnections, on_refused: Callable[[Refusal], None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle = idle
        self._on_refused = on_refused
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._heads = 0
        """How many heads have ended in the current segment."""
        self._before = b""
        """The last bytes before the current segment: a head's end may be split between both."""
        self._has_seen_body = False
        """Whether the current segment has bytes of a body: then the start of the next head is unknown."""
        self._unfinished = bytearray()
        """What has come of a head that has not ended yet."""
        self._refusal: Refusal | None = None
        """Ends this connection, after the answers to the requests before it."""
        self._upgrades = False
        self._early = b""
        """What came after the head of an upgrade in the same segment; uvicorn would drop it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle.add(self, transport, self.connections)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.discard(self)
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._in_head:
            if self._head_timer is None:  # the next request of a kept-alive connection begins
                self._await_head()
            self._head_bytes += len(data)
        self._heads, self._has_seen_body = 0, False
        super().data_received(data)
        behind = (self._before + data).split(END_OF_HEAD, self._heads)[-1] if self._heads else b""
        if self._upgrades:
            self._early = behind
            self._upgrade()
            return
        if self._in_head and behind and not self._has_seen_body and self._refusal is None:
            self._head_bytes = len(behind)  # the next head has begun in this segment
            self._await_head()
        self._before = data[-len(END_OF_HEAD) + 1 :]
        if not self._in_head or self._has_seen_body:
            return
        self._unfinished += behind if self._heads else data
        # on_headers_complete has checked the size of a complete head.
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_size(parts_of(bytes(self._unfinished)))

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for what is not HTTP."""
        self._refuse(Refusal(400, "this is not HTTP/1.1: connect with a Playwright client to ws://<host>:<port>/"))

    def handle_websocket_upgrade(self) -> None:
        """uvicorn calls this when the head of an upgrade is complete."""
        self._upgrades = self._refusal is None

    def on_response_complete(self) -> None:
        """uvicorn calls this when a request has its answer."""
        is_last = not self.pipeline
        super().on_response_complete()
        if self._upgrades:
            self._upgrade()
        elif is_last and self._refusal is not None:
            self._answer(self._refusal)
        elif is_last and self.cycle.more_body:
            self.transport.close()  # the rest of its body is not needed, and no timer bounds it
        elif is_last and not self.transport.is_closing():
            self._idle.add(self, self.transport, self.connections)

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn calls this when nothing has come for a while. A head that has begun has a timer of its own."""
        if not self._head_bytes:
            super().timeout_keep_alive_handler()

    def _get_upgrade(self) -> bytes | None:
        """uvicorn calls this. Its own function sees only the last of several Upgrade headers."""
        asked = super()._get_upgrade()
        has_websocket = asked and any(
            name == b"upgrade" and value.lower() == _WEBSOCKET for name, value in self.headers
        )
        return _WEBSOCKET if has_websocket else asked

    def _upgrade(self) -> None:
        """Switches to the WebSocket protocol, once the requests before have their answers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.pause_reading()
            return
        self._upgrades = False
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if is_dashboard_target(self.url):
            self.ws_protocol_class = DashboardSocketProtocol
        super().handle_websocket_upgrade()
        self.transport.resume_reading()
        protocol = self.transport.get_protocol()
        if self._early and isinstance(protocol, asyncio.Protocol):
            protocol.data_received(self._early)

    # httptools calls these

    def on_headers_complete(self) -> None:
        self._head_is_done()
        self._in_head = False
        self._unfinished.clear()
        self._heads += 1
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self.send_400_response("")
            return
        sizes = [len(name) + len(value) + 4 for name, value in self.headers]
        if len(self.url) + sum(sizes) > MAX_HEAD_BYTES:
            names = [name.decode("latin-1") for name, _ in self.headers]
            self._refuse_size([("", len(self.url)), *zip(names, sizes, strict=True)])
            return
        if self.parser.should_upgrade() and self._should_upgrade() and self._has_body():
            self._refuse(bad_handshake("it must have no body"))
            return
        self._idle.discard(self)
        before = self.cycle
        super().on_headers_complete()
        if self.parser.should_upgrade() and self.cycle is not before:
            # Other upgrades are ignored, as RFC 9110 7.8 allows; but the parser reads nothing after them.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._has_seen_body = True
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refusal is not None:
            return
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def _await_head(self) -> None:
        self._head_is_done()
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

    def _refuse_size(self, parts: Iterable[tuple[str, int]]) -> None:
        self._refuse(head_too_large(MAX_HEAD_BYTES, parts))

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )

    def _refuse(self, refusal: Refusal) -> None:
        """Refuses the present request and all that follows; requests before it still get their answers."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = refusal
        self._head_is_done()
        cycle = self.cycle
        if self.pipeline and cycle.more_body:
            self.pipeline.popleft()  # the refused request; those before it go on
        elif cycle is None or cycle.response_complete:
            self._answer(refusal)
        elif cycle.more_body and not cycle.response_started:
            # A handler has this request already: it hears that the client has gone, and its answer is dropped.
            cycle.disconnected, cycle.waiting_for_100_continue = True, False
            cycle.message_event.set()
            self._answer(refusal)

    def _answer(self, refusal: Refusal) -> None:
        """Answers and closes, but reads on for LINGER_S: a close with unread bytes resets, which loses the answer."""
        if self.transport.is_closing():
            return
        self._on_refused(refusal)
        self.transport.write(refusal.response())
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.abort)


def parts_of(head: bytes) -> Iterator[tuple[str, int]]:
    """Yields the headers of a head, perhaps cut off, with their sizes; its first line as ""."""
    for number, line in enumerate(head.lstrip(b"\r\n").split(b"\r\n")):
        name = line.partition(b":")[0].decode("latin-1").strip() if number else ""
        yield name, len(line) + 2
