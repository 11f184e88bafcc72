"""A connection's first bytes: a whole upgrade head goes straight to the gateway, all else to uvicorn's protocol.

Nearly every connection is an upgrade whose head comes in one piece. For those uvicorn's state of a connection and of a
request would be a third of the proxy's work (docs/decisions.md); this class keeps none.
"""

import asyncio
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from grid.core.upgrade import MAX_HEAD_BYTES
from grid.proxy.http_protocol import HEAD_TIMEOUT_S, GridHttpProtocol, TakeUpgrade

_END_OF_HEAD: Final = b"\r\n\r\n"


class Opening(asyncio.Protocol):
    """One accepted connection until its first bytes. uvicorn makes it, as it would make its own protocol."""

    take_upgrade: TakeUpgrade  # set by `bound_to`

    @classmethod
    def bound_to(cls, take_upgrade: TakeUpgrade) -> type["Opening"]:
        """The class that uvicorn instantiates, with the gateway that takes its upgrades."""
        return type("BoundOpening", (cls,), {"take_upgrade": staticmethod(take_upgrade)})

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
        self._timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._timer = self._loop.call_later(HEAD_TIMEOUT_S, transport.close)
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._is_over()
        if data.startswith(b"GET ") and (end := data.find(_END_OF_HEAD)) >= 0 and end <= MAX_HEAD_BYTES:
            rest = self._upgrade(data)
            if rest is not None:
                self.take_upgrade(self._transport, self._url, self._headers, rest)
                return
        successor = GridHttpProtocol.bound_to(self.take_upgrade)(
            config=self._config, server_state=self._server_state, app_state=self._app_state, _loop=self._loop
        )
        successor.connection_made(self._transport)
        self._transport.set_protocol(successor)
        successor.data_received(data)

    def shutdown(self) -> None:
        """The server ends: nothing was asked on this connection yet (uvicorn calls this)."""
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
