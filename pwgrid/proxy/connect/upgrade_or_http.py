"""Chooses a connection's protocol by its first bytes: a whole upgrade head goes to the gateway, all else to uvicorn.

Nearly every connection is an upgrade whose head comes in one piece. uvicorn's objects for a connection and a request
would cost such a client a third of a millisecond before its first answer (docs/decisions.md).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from pwgrid.proxy.connect.dashboard_sockets import DashboardSocketProtocol, is_dashboard_head
from pwgrid.proxy.connect.http_head_limits import HEAD_TIMEOUT_S, MAX_HEAD_BYTES, BoundedHttpProtocol
from pwgrid.proxy.connect.idle_connections import IdleConnections
from pwgrid.proxy.policy.refusal import Refusal

_END_OF_HEAD: Final = b"\r\n\r\n"
_UPGRADE: Final = b"\r\nupgrade: websocket\r\n"


class ProtocolChooser(asyncio.Protocol):
    """uvicorn makes one for each connection (its setting `http`). After its first bytes the connection gets another
    protocol. BoundedHttpProtocol calls `on_refused` for each request that it refuses itself.
    """

    def __init__(
        self,
        idle: IdleConnections,
        on_refused: Callable[[Refusal], None],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._idle = idle
        self._on_refused = on_refused
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._timer = self._loop.call_later(HEAD_TIMEOUT_S, transport.close)
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self._idle.add(self, transport, self._server_state.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over()

    def data_received(self, data: bytes) -> None:
        self._is_over()
        made = {"config": self._config, "server_state": self._server_state, "app_state": self._app_state}
        protocol: asyncio.Protocol
        if is_upgrade(data):
            kind = DashboardSocketProtocol if is_dashboard_head(data) else self._config.ws_protocol_class
            protocol = kind(**made)  # type: ignore[misc]
        else:
            protocol = BoundedHttpProtocol(self._idle, self._on_refused, **made, _loop=self._loop)
        protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(data)

    def shutdown(self) -> None:
        """uvicorn calls this when it ends. Closes the connection, on which nothing was asked."""
        self._transport.close()

    def _is_over(self) -> None:
        self._timer.cancel()
        self._idle.discard(self)
        self._server_state.connections.discard(self)


def is_upgrade(data: bytes) -> bool:
    """Whether these bytes are exactly one whole head that asks for a WebSocket."""
    return (
        data.startswith(b"GET ")
        and data.find(_END_OF_HEAD) == len(data) - len(_END_OF_HEAD)
        and len(data) <= MAX_HEAD_BYTES
        and _UPGRADE in data.lower()
    )
