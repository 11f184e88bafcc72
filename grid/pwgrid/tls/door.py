"""Accepts clients on the grid's ports and does the handshake of TLS with them. Then the kernel goes on with it, and the
proxy gets their sockets; without the kernel's TLS it joins each with a connection to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.acceptor import Acceptor
from pwgrid.common.kernel_tls import is_in_kernel
from pwgrid.common.proxy_protocol import hand_over, line_of
from pwgrid.tls.files import CertificateFiles
from pwgrid.tls.handshake import shake_hands
from pwgrid.tls.session import ENDING_S, TlsSession

log = structlog.get_logger()

HANDSHAKE_S: Final = 10.0
"""A client that is not done with its handshake by then is disconnected, also one that says nothing."""

PLAIN_S: Final = 2.0
"""How long one who is refused may take to read its answer."""

_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection (RFC 8446, 5.1)."""

_SENTENCE: Final = "this port speaks TLS: use wss:// or https://"
_BUSY: Final = "the grid takes no connection now: connect again"
_NOT_IN_KERNEL: Final = (
    "the kernel does not take this connection's TLS: connect again, or set TLS_KERNEL=off for the grid"
)


def _answer(status: str, sentence: str) -> bytes:
    body = json.dumps({"error": sentence}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n".encode() + body


class TlsDoor:
    """Serves the clients of `listeners`, `most` at once; `inner` is the Unix socket on which the proxy accepts them.
    With `by_kernel` it hands over each whose handshake is done, and keeps nothing of it. `on_change` is called when one
    has begun or ended."""

    def __init__(
        self,
        listeners: tuple[socket.socket, ...],
        inner: Path,
        files: CertificateFiles,
        most: int,
        on_change: Callable[[], None],
        *,
        by_kernel: bool = False,
    ) -> None:
        self._acceptor = Acceptor(listeners, self._accepted)
        self._by_kernel = by_kernel
        self._inner = inner
        self._files = files
        self._most = most
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Those that have not said a byte yet, oldest first, and when they are disconnected."""
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Those whose handshake is not done, or that get an answer in clear, oldest first."""
        self.sessions: set[TlsSession] = set()
        """Those whose bytes are copied here."""

    @property
    def is_idle(self) -> bool:
        """Whether it has no client."""
        return not (self._silent or self._shaking or self.sessions)

    def open(self) -> None:
        """Begins to accept."""
        self._acceptor.open()

    def close(self) -> None:
        """Accepts nobody any more; who waits in the listeners' queues is served by another process. Idempotent."""
        self._acceptor.close()

    def abort(self) -> None:
        """Ends all sessions at once."""
        for sock in list(self._silent):
            self._forget(sock).close()
        for task in self._shaking:
            task.cancel()
        for session in list(self.sessions):
            session.abort()

    # One client

    def _accepted(self, sock: socket.socket) -> None:
        if len(self._silent) + len(self._shaking) + len(self.sessions) >= self._most:
            self._make_room()
        self._silent[sock] = self._loop.call_later(HANDSHAKE_S, self._drop, sock)
        self._loop.add_reader(sock.fileno(), self._on_first_byte, sock)

    def _make_room(self) -> None:
        """Disconnects who has said nothing for longest: a client begins at once. If there is none, it is who has taken
        longest for its handshake."""
        if (oldest := next(iter(self._silent), None)) is not None:
            self._drop(oldest)
        elif (slowest := next(iter(self._shaking), None)) is not None:
            del self._shaking[slowest]
            slowest.cancel()

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
        self._shaking[task] = None
        task.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
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
        if self._by_kernel:
            await self._hand_over(sock, line)
        else:
            await self._join(sock, line)

    async def _hand_over(self, sock: socket.socket, line: bytes) -> None:
        """Does the handshake, and gives the proxy the socket."""
        try:
            client = self._files.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it has left; its socket is closed
            log.debug("handshake_failed", reason=str(error))
            return
        with client:  # a close of this copy says nothing to the client
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    await shake_hands(client)
            except OSError as error:  # also ssl.SSLError: as in `_join`
                log.debug("handshake_failed", reason=str(error))
                return
            if client.pending() or not is_in_kernel(client):
                # The probe at the start found that it does. A client with an extension that the kernel lacks, perhaps.
                log.error("client_not_in_kernel", cipher=client.cipher(), about="TLS_KERNEL=off serves such clients")
                await self._refuse(client, _NOT_IN_KERNEL)
                return
            try:
                hand_over(self._inner, line, client)
            except OSError as error:
                log.error("proxy_not_reached", reason=error.strerror or str(error))
                await self._refuse(client, _BUSY)

    async def _refuse(self, client: ssl.SSLSocket, sentence: str) -> None:
        with contextlib.suppress(OSError):  # it has left
            client.send(_answer("503 Service Unavailable", sentence))
        await self._end(socket.socket(fileno=client.detach()), b"")

    async def _join(self, sock: socket.socket, line: bytes) -> None:
        """Does the handshake, and has the bytes copied from now on."""
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
        await self._end(sock, _answer("400 Bad Request", _SENTENCE))

    async def _end(self, sock: socket.socket, answer: bytes) -> None:
        transport, refused = await self._loop.connect_accepted_socket(lambda: RefusedClient(answer), sock)
        try:
            await refused.ended
        finally:
            transport.abort()


class RefusedClient(asyncio.Protocol):
    """One that is not served: gets an answer, and PLAIN_S to read it, since a close with unread bytes would lose it."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._answer)
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(PLAIN_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
