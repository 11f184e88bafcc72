"""Closes the connection that has been idle for longest when there are too many."""

import asyncio
from collections.abc import Sized
from typing import Final

import structlog

from pwgrid.runtime.descriptor_limit import RAISE_IT

log = structlog.get_logger()

LOG_EVERY_S: Final = 10.0


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
