"""Accepts connections on an asyncio loop, for those who have to look at a socket before it becomes a transport; and
waits for such a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

log = structlog.get_logger()

SHORTAGE_S: Final = 0.1
"""How long nobody is accepted when no descriptor is free."""

_ACCEPTED_A_TURN: Final = 64


class Acceptor:
    """Gives each connection, non-blocking, to `on_accepted`, from `open` to `close`. Owns its listeners."""

    def __init__(self, listeners: Iterable[socket.socket], on_accepted: Callable[[socket.socket], None]) -> None:
        self._listeners = tuple(listeners)
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._is_short = False
        """Whether nobody could be accepted the last time."""

    def open(self) -> None:
        """Begins to accept, unless it is closed."""
        for listener in self._listeners:
            self._listen(listener)

    def close(self) -> None:
        """Accepts nobody any more; who waits in the listeners' queues is served by another process. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for listener in self._listeners:
                self._loop.remove_reader(listener.fileno())
                listener.close()

    def _listen(self, listener: socket.socket) -> None:
        if not self._is_closed:
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has left meanwhile
                continue
            except OSError as error:
                if not self._is_short:
                    log.error("client_not_accepted", reason=error.strerror or str(error))
                self._is_short = True
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(SHORTAGE_S, self._listen, listener)
                return
            self._is_short = False
            sock.setblocking(False)
            self._on_accepted(sock)


async def until_readable(sock: socket.socket) -> None:
    """Returns when a read of it would not wait."""
    loop = asyncio.get_running_loop()
    await _until(loop.add_reader, loop.remove_reader, sock)


async def until_writable(sock: socket.socket) -> None:
    """Returns when a write to it would not wait."""
    loop = asyncio.get_running_loop()
    await _until(loop.add_writer, loop.remove_writer, sock)


async def _until(add: Callable[..., Any], remove: Callable[[int], Any], sock: socket.socket) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), is_ready)
    try:
        await ready
    finally:
        remove(sock.fileno())
