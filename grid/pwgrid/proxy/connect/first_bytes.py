"""Chooses by its first bytes what serves a connection: a client's WebSocket, the dashboard's, or HTTP. Parses a whole
upgrade head."""

import asyncio
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import httptools
from websockets.datastructures import Headers

from pwgrid.proxy.connect.bounded_http import END_OF_HEAD, HEAD_TIMEOUT_S, MAX_HEAD_BYTES, BoundedHttpProtocol
from pwgrid.proxy.connect.dashboard_protocol import DashboardSocketProtocol, is_dashboard_head
from pwgrid.proxy.connect.idle_connections import IdleConnections
from pwgrid.proxy.policy.connect_request import KEY, ClientHead
from pwgrid.proxy.policy.refusal import Refusal, bad_handshake

_UPGRADE: Final = b"\r\nupgrade: websocket\r\n"

_KEY_LINE: Final = re.compile(rb"\r\nSec-WebSocket-Key: ([0-9A-Za-z+/]{22}==)(?=\r\n)")
_SOME_KEY: Final = 22 * b"A" + b"=="

_MOST_HEADS: Final = 64

_ABSOLUTE: Final = re.compile(r"https?://[^/?]*", re.IGNORECASE)
"""Before the path, where a client writes the whole URL as if to a proxy (RFC 9112, 3.2.2)."""
"""How many different heads are kept."""
_KEPT_BYTES: Final = 4096
"""The largest head that is kept: those of clients' libraries are shorter, and anybody can send others."""


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
        and data.find(END_OF_HEAD) == len(data) - len(END_OF_HEAD)
        and len(data) <= MAX_HEAD_BYTES
        and _UPGRADE in data.lower()
    )


def parse_head(head: bytes) -> tuple[ClientHead, str]:
    """Parses one whole head, and returns its key, too. Raises Refusal(400) if it is malformed, not HTTP/1.1, or
    announces a body.

    The heads of a client's library are the same but for the key, so they are parsed once, with another key: in a cold
    loop, the parser takes 0.1 ms.
    """
    if len(head) <= _KEPT_BYTES and (line := _KEY_LINE.search(head)) is not None:
        return _parsed_before(head[: line.start(1)] + _SOME_KEY + head[line.end(1) :]), line[1].decode()
    parsed = _parse(head)
    return parsed, parsed.headers.get_all(KEY)[0] if KEY in parsed.headers else ""


@lru_cache(_MOST_HEADS)
def _parsed_before(head: bytes) -> ClientHead:
    return _parse(head)


def _parse(head: bytes) -> ClientHead:
    """As `parse_head`. websockets' own parser is written in Python: it takes 0.1 ms in a warm loop, and more in a cold
    one."""
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise bad_handshake(str(error)) from None
    if parser.get_http_version() != "1.1":
        raise bad_handshake("it must be HTTP/1.1")
    if fields.has_body:
        raise bad_handshake("it must have no body")
    target = fields.target.decode("latin-1")
    if (absolute := _ABSOLUTE.match(target)) is not None:
        target = target[absolute.end() :]
        target = target if target.startswith("/") else f"/{target}"
    return ClientHead(target, fields.headers, parser.get_method().decode("latin-1"))


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
