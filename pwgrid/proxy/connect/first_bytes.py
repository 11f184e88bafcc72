"""A connection's first bytes: a whole upgrade head goes straight to the gateway, all else to uvicorn's protocol.

Nearly every connection is an upgrade whose head comes in one piece. For those uvicorn's state of a connection and of a
request would be a third of the proxy's work (docs/decisions.md); this class keeps none.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from pwgrid.proxy.connect.http_protocol import HEAD_TIMEOUT_S, GridHttpProtocol, TakeUpgrade
from pwgrid.proxy.policy.upgrade_request import MAX_HEAD_BYTES

_END_OF_HEAD: Final = b"\r\n\r\n"

TakeKnown = Callable[[asyncio.Transport, bytes], bool]
"""Gets the transport and the first bytes; True if it took the connection, because it knows the head."""


class Patience:
    """Shuts down the openings that last longer than `limit_s`. One timer for all: the oldest is always the next."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._since: dict[Opening, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, opening: "Opening") -> None:
        """Its time runs from now on."""
        self._since[opening] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._look)

    def end(self, opening: "Opening") -> None:
        """It is over. Harmless when said twice."""
        self._since.pop(opening, None)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for opening, since in list(self._since.items()):
            if since + self._limit_s > now:
                self._timer = self._loop.call_at(since + self._limit_s, self._look)
                return
            self.end(opening)
            opening.shutdown()


class Opening(asyncio.Protocol):
    """One accepted connection until its first bytes. uvicorn makes it, as it would make its own protocol."""

    take_known: TakeKnown  # set by `bound_to`
    take_upgrade: TakeUpgrade
    patience: "Patience"

    @classmethod
    def bound_to(cls, take_known: TakeKnown, take_upgrade: TakeUpgrade) -> type["Opening"]:
        """The class that uvicorn instantiates, with the gateway that takes its upgrades."""
        bound = {"take_known": staticmethod(take_known), "take_upgrade": staticmethod(take_upgrade)}
        return type("BoundOpening", (cls,), {**bound, "patience": Patience(HEAD_TIMEOUT_S)})

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.patience.begin(self)
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._is_over()
        if self.take_known(self._transport, data):
            return
        if data.startswith(b"GET ") and (end := data.find(_END_OF_HEAD)) >= 0 and end <= MAX_HEAD_BYTES:
            rest = self._upgrade(data)
            if rest is not None:
                self.take_upgrade(self._transport, self._url, self._headers, rest, data)
                return
        successor = GridHttpProtocol.bound_to(self.take_upgrade)(
            config=self._config, server_state=self._server_state, app_state=self._app_state, _loop=self._loop
        )
        successor.connection_made(self._transport)
        self._transport.set_protocol(successor)
        successor.data_received(data)

    def shutdown(self) -> None:
        """Nothing was asked on this connection, and shall not be any more (uvicorn calls this when it ends, too)."""
        if self._transport is not None:
            self._transport.close()

    # httptools calls these

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def _upgrade(self, data: bytes) -> bytes | None:
        """What came behind the head if this is a WebSocket upgrade; None for anything else, also what is malformed."""
        parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            is_websocket = any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self._headers)
            return data[upgrade.args[0] :] if is_websocket and parser.get_http_version() == "1.1" else None
        except httptools.HttpParserError:
            return None
        return None

    def _is_over(self) -> None:
        self._server_state.connections.discard(self)
        self.patience.end(self)
