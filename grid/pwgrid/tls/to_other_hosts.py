"""Connects to other hosts that speak TLS, for the forwarder. Where the kernel has TLS the forwarder gets the host's own
socket; else the bytes are copied here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.acceptor import Acceptor, until_readable
from pwgrid.common.connect_tcp import connect_tcp
from pwgrid.common.kernel_tls import is_in_kernel
from pwgrid.common.tls_process_lines import CONNECTED, END, read_target, refusal_line
from pwgrid.tls.handshake import shake_hands
from pwgrid.tls.session import TlsSession

log = structlog.get_logger()

BACKLOG: Final = 1024

CONNECT_S: Final = 2.0
"""How long the connect and the handshake may take."""

_MOST_BYTES: Final = 512


class ToOtherHosts:
    """Listens on `path` from `open` to `close`. `context` has what certificates of other hosts are checked against;
    `kernel_context`, where there is one, also asks for the kernel's TLS. `on_change` is called when a session has begun
    or ended."""

    def __init__(
        self,
        path: Path,
        context: ssl.SSLContext,
        on_change: Callable[[], None],
        *,
        kernel_context: ssl.SSLContext | None = None,
        ping_timeout_s: float = 0.0,
    ) -> None:
        self._path = path
        self._context = context
        self._kernel_context = kernel_context
        self._ping_timeout_s = ping_timeout_s
        self._on_change = on_change
        self._acceptor: Acceptor | None = None
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self.sessions: set[TlsSession] = set()
        """Those whose bytes are copied here."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it."""
        return not (self._connecting or self.sessions)

    def open(self) -> None:
        """Begins to listen, in place of the process before this one. Raises OSError."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        listener.listen(BACKLOG)
        self._acceptor = Acceptor((listener,), self._accepted)
        self._acceptor.open()

    def close(self) -> None:
        """Takes nobody any more. Idempotent."""
        if self._acceptor is not None:
            self._acceptor.close()

    def abort(self) -> None:
        """Ends all sessions at once."""
        for task in self._connecting:
            task.cancel()
        for session in list(self.sessions):
            session.abort()

    def _accepted(self, way: socket.socket) -> None:
        task = self._loop.create_task(self._serve(way))
        self._connecting.add(task)
        task.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("host_failed", error=repr(error))
        self._on_change()

    def _ended(self, session: TlsSession) -> None:
        self.sessions.discard(session)
        self._on_change()

    async def _serve(self, way: socket.socket) -> None:
        """Ends when the forwarder has its connection, or its answer that there is none."""
        session = TlsSession(self._ended)
        try:
            made = await self._reach_host(way, session)
            if made is None:
                way.close()
                return
            transport, _ = await self._loop.connect_accepted_socket(lambda: session.client, way)
        except BaseException:
            session.abort()
            raise
        if session.client.is_closed or session.inner.is_closed:
            session.abort()
            return
        self.sessions.add(session)
        transport.write(CONNECTED)
        made.resume_reading()

    async def _reach_host(self, way: socket.socket, session: TlsSession) -> asyncio.Transport | None:
        """The connection to the host that the forwarder names; None if the forwarder has its answer already: the host's
        own socket, or why there is none."""
        try:
            async with asyncio.timeout(CONNECT_S):
                host, port = read_target(await _line_of(way))
                if (sock := await self._connect_in_kernel(host, port)) is not None:
                    with sock:  # a close of this copy says nothing to the host
                        socket.send_fds(way, [CONNECTED], [sock.fileno()])
                    return None
                plain = await connect_tcp(host, port, CONNECT_S, self._ping_timeout_s)
                made, _ = await self._loop.create_connection(
                    lambda: session.inner, sock=plain, ssl=self._context, server_hostname=host
                )
                return made
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):  # the forwarder has left
                way.send(refusal_line(why_not(error)))
            return None
        except BaseException:
            way.close()
            raise

    async def _connect_in_kernel(self, host: str, port: int) -> ssl.SSLSocket | None:
        """A connection whose TLS is in the kernel; None if the two sides have nothing in common that it takes. Raises
        OSError."""
        if self._kernel_context is None:
            return None
        sock = await connect_tcp(host, port, CONNECT_S, self._ping_timeout_s)
        with contextlib.ExitStack() as closed:
            # This makes the plain socket the secure one's, also if it fails.
            client = self._kernel_context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            closed.enter_context(client)
            try:
                await shake_hands(client)
            except ssl.SSLCertVerificationError:
                raise
            except ssl.SSLError as error:
                log.debug("host_not_in_kernel", host=host, port=port, reason=error.reason or str(error))
                return None
            if client.pending() or not is_in_kernel(client):
                log.debug("host_not_in_kernel", host=host, port=port, cipher=client.cipher(), version=client.version())
                return None
            closed.pop_all()
            return client


async def _line_of(way: socket.socket) -> bytes:
    """What the forwarder says first. Raises OSError, and ValueError for more than a line."""
    said = b""
    while not said.endswith(END):
        await until_readable(way)
        if not (more := way.recv(_MOST_BYTES)):
            raise ConnectionResetError
        said += more
        if len(said) > _MOST_BYTES:
            raise ValueError("it is no line")
    return said.removesuffix(END)


def why_not(error: BaseException) -> str:
    """The sentence about a host that nobody could connect to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted (TLS_CA): {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    return str(getattr(error, "strerror", None) or error)
