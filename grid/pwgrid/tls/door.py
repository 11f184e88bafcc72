"""Accepts clients on the grid's ports, ends their TLS, and joins each with a connection to the proxy."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.proxy_protocol import line_of
from pwgrid.tls.files import CertificateFiles
from pwgrid.tls.session import ENDING_S, TlsSession

log = structlog.get_logger()

HANDSHAKE_S: Final = 10.0
"""A client that is not done with its handshake by then is disconnected, also one that says nothing."""

SHORTAGE_S: Final = 0.1
"""How long nobody is accepted when no descriptor is free."""

PLAIN_S: Final = 2.0
"""How long one who speaks no TLS may take to read its answer."""

_ACCEPTED_A_TURN: Final = 64
_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection (RFC 8446, 5.1)."""

_SENTENCE: Final = "this port speaks TLS: use wss:// or https://"
_BUSY: Final = "the grid takes no connection now: connect again"


def _answer(status: str, sentence: str) -> bytes:
    body = json.dumps({"error": sentence}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n".encode() + body


class TlsDoor:
    """Serves the clients of `listeners`; `inner` is the Unix socket on which the proxy accepts them. `most` sessions at
    once. `on_change` is called when a session has begun or ended."""

    def __init__(
        self,
        listeners: tuple[socket.socket, ...],
        inner: Path,
        files: CertificateFiles,
        most: int,
        on_change: Callable[[], None],
    ) -> None:
        self._listeners = listeners
        self._inner = inner
        self._files = files
        self._most = most
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Those that have not said a byte yet, oldest first, and when they are disconnected."""
        self._shaking: set[asyncio.Task[None]] = set()
        self.sessions: set[TlsSession] = set()
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Whether it has no client."""
        return not (self._silent or self._shaking or self.sessions)

    def open(self) -> None:
        """Begins to accept."""
        self._is_open = True
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Accepts nobody any more; who waits in the listeners' queues is served by another process. Idempotent."""
        if self._is_open:
            self._is_open = False
            for listener in self._listeners:
                self._loop.remove_reader(listener.fileno())
                listener.close()

    def abort(self) -> None:
        """Ends all sessions at once."""
        for sock in list(self._silent):
            self._forget(sock).close()
        for task in self._shaking:
            task.cancel()
        for session in list(self.sessions):
            session.abort()

    # One client

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it has left meanwhile
                continue
            except OSError as error:
                log.error("client_not_accepted", reason=error.strerror or str(error))
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(SHORTAGE_S, self._accept_again, listener)
                return
            sock.setblocking(False)
            if len(self._silent) + len(self._shaking) + len(self.sessions) >= self._most:
                self._make_room()
            self._silent[sock] = self._loop.call_later(HANDSHAKE_S, self._drop, sock)
            self._loop.add_reader(sock.fileno(), self._on_first_byte, sock)

    def _accept_again(self, listener: socket.socket) -> None:
        if self._is_open:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _make_room(self) -> None:
        """Disconnects who has said nothing for longest: a client begins at once."""
        if (oldest := next(iter(self._silent), None)) is not None:
            self._drop(oldest)

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock).close()
        self._on_change()

    def _forget(self, sock: socket.socket) -> socket.socket:
        self._silent.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())
        return sock

    def _on_first_byte(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._drop(sock)
            return
        self._forget(sock)
        serving = self._serve(sock) if first[0] == _HANDSHAKE else self._refuse_plain(sock)
        task = self._loop.create_task(serving)
        self._shaking.add(task)
        task.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("client_failed", error=repr(error))
        self._on_change()

    async def _serve(self, sock: socket.socket) -> None:
        """Ends when the client is joined with the proxy, or gone."""
        self._files.look_if_due()
        try:
            line = line_of(sock.getpeername()[:2], sock.getsockname()[:2])
        except OSError:  # it has left
            sock.close()
            return
        session = TlsSession(self._ended)
        try:
            await self._loop.connect_accepted_socket(
                lambda: session.client,
                sock,
                ssl=self._files.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=ENDING_S,
            )
        except OSError as error:  # also ssl.SSLError: it speaks an older TLS, say, or does not trust the certificate
            log.debug("handshake_failed", reason=str(error))
            return
        except asyncio.CancelledError:
            session.abort()
            raise
        client = session.client.transport
        assert client is not None
        self.sessions.add(session)
        try:
            await self._loop.create_unix_connection(lambda: session.inner, str(self._inner))
        except OSError as error:
            log.error("proxy_not_reached", reason=error.strerror or str(error))
            client.write(_answer("503 Service Unavailable", _BUSY))
            session.client.finish()
            return
        inner = session.inner.transport
        assert inner is not None
        if session.client.is_closed:
            inner.abort()
            return
        inner.write(line)
        client.resume_reading()

    def _ended(self, session: TlsSession) -> None:
        self.sessions.discard(session)
        self._on_change()

    async def _refuse_plain(self, sock: socket.socket) -> None:
        """Nobody is served in clear."""
        transport, answer = await self._loop.connect_accepted_socket(PlainClient, sock)
        await answer.ended
        transport.abort()


class PlainClient(asyncio.Protocol):
    """One who speaks no TLS: gets an answer, and PLAIN_S to read it, since a close with unread bytes would lose it."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(_answer("400 Bad Request", _SENTENCE))
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(PLAIN_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
