"""What serves a connection before its client is known, and all requests that are no client's: uvicorn's protocols, with
bounds on heads and on idle connections, and with the grid's own refusals."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Request

from pwgrid.proxy.policy.refusal import Refusal, head_too_large
from pwgrid.runtime.descriptor_limit import RAISE_IT

log = structlog.get_logger()

MAX_HEAD_BYTES: Final = 32 * 1024
HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 2.0
LOG_EVERY_S: Final = 10.0

_END_OF_HEAD: Final = b"\r\n\r\n"
_UPGRADE: Final = b"\r\nupgrade: websocket\r\n"
_WEBSOCKET: Final = b"websocket"
_LIVE: Final = b"/v1/live"
_DASHBOARD_TARGET: Final = re.compile(rb"[^?]*/v1/live(?:[/?]|$)")
"""Whatever path a reverse proxy serves the grid below: of a client the grid knows no path that ends so."""


class IdleConnections:
    """The connections that have asked for nothing yet, or nothing more.

    Without this, silent connections could keep all others out: without a descriptor left, libuv resets all clients that
    wait. A real client asks at once, so that it is hardly ever the one that has been silent for longest.
    """

    def __init__(self, most_connections: int) -> None:
        self._most = most_connections
        self._idle: dict[asyncio.BaseProtocol, asyncio.Transport] = {}
        self._closed = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, protocol: asyncio.BaseProtocol, transport: asyncio.Transport, all_connections: Sized) -> None:
        """Adds a connection. If there are too many in all, closes the one that has been idle for longest."""
        self._idle[protocol] = transport
        if len(all_connections) > self._most and (oldest := next(iter(self._idle))) is not protocol:
            self._idle.pop(oldest).abort()
            self._closed += 1
            if self._timer is None:
                self._tell()

    def discard(self, protocol: asyncio.BaseProtocol) -> None:
        """Called when the client has asked for something, or has left. Idempotent."""
        self._idle.pop(protocol, None)

    def _tell(self) -> None:
        self._timer = None
        if self._closed:
            log.warning("idle_connections_closed", times=self._closed, open_at_most=self._most, about=RAISE_IT)
            self._closed = 0
            self._timer = asyncio.get_running_loop().call_later(LOG_EVERY_S, self._tell)


class ProtocolChooser(asyncio.Protocol):
    """Chooses a connection's protocol by its first bytes: uvicorn's setting `ws` for a whole upgrade head, for all else
    BoundedHttpProtocol, which calls `on_refused` for each request that it refuses itself.

    uvicorn makes one for each connection (its setting `http`), with `made`. Nearly every connection is an upgrade whose
    head comes in one piece. uvicorn's objects for a connection and a request would cost such a client a third of a
    millisecond before its first answer (docs/decisions.md).
    """

    def __init__(
        self,
        idle: IdleConnections,
        on_refused: Callable[[Refusal], None],
        _loop: asyncio.AbstractEventLoop | None = None,
        **made: Any,
    ) -> None:
        self._idle = idle
        self._on_refused = on_refused
        self._made = made
        self._connections: set[Any] = made["server_state"].connections
        self._loop = _loop or asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._timer = self._loop.call_later(HEAD_TIMEOUT_S, transport.close)
        self._connections.add(self)
        self._idle.add(self, transport, self._connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def data_received(self, data: bytes) -> None:
        self._is_over()
        protocol: asyncio.Protocol
        if is_upgrade(data):
            kind = DashboardSocketProtocol if is_dashboard_head(data) else self._made["config"].ws_protocol_class
            protocol = kind(**self._made)
        else:
            protocol = BoundedHttpProtocol(self._idle, self._on_refused, **self._made, _loop=self._loop)
        protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(data)

    def shutdown(self) -> None:
        """uvicorn calls this when it ends. Closes the connection, on which nothing was asked."""
        self._transport.close()

    def _is_over(self) -> None:
        self._timer.cancel()
        self._idle.discard(self)
        self._connections.discard(self)


def is_upgrade(data: bytes) -> bool:
    """Whether these bytes are exactly one whole head that asks for a WebSocket."""
    return (
        data.startswith(b"GET ")
        and data.find(_END_OF_HEAD) == len(data) - len(_END_OF_HEAD)
        and len(data) <= MAX_HEAD_BYTES
        and _UPGRADE in data.lower()
    )


def parse_head(head: bytes) -> Request:
    """Parses one whole head. Raises Refusal(400) if it is malformed, not HTTP/1.1, or announces a body.

    websockets' own parser is written in Python: it takes 0.1 ms in a warm loop, and more in a cold one.
    """
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise Refusal(400, f"bad WebSocket handshake: {error}") from None
    if parser.get_http_version() != "1.1":
        raise Refusal(400, "bad WebSocket handshake: it must be HTTP/1.1")
    if fields.has_body:
        raise Refusal(400, "bad WebSocket handshake: it must have no body")
    return Request(fields.target.decode("latin-1"), fields.headers, parser.get_method().decode("latin-1"))


class _Fields:
    """The callbacks of httptools."""

    def __init__(self) -> None:
        self.target = b""
        self.headers = Headers()

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1")] = value.decode("latin-1")

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or set(self.headers.get_all("content-length")) - {"0"} != set()


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
        behind = (self._before + data).split(_END_OF_HEAD, self._heads)[-1] if self._heads else b""
        if self._upgrades:
            self._early = behind
            self._upgrade()
            return
        if self._in_head and behind and not self._has_seen_body and self._refusal is None:
            self._head_bytes = len(behind)  # the next head has begun in this segment
            self._await_head()
        self._before = data[-len(_END_OF_HEAD) + 1 :]
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
            self._refuse(Refusal(400, "bad WebSocket handshake: it must have no body"))
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
            refusal = Refusal(400, "bad WebSocket handshake: its head is malformed, or too long")
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
