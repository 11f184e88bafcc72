"""The way to other hosts that speak TLS: the forwarder connects here as it does to a host, and says first to which."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.tls_way_out import read_target
from pwgrid.tls.session import TlsSession

log = structlog.get_logger()

BACKLOG: Final = 1024

CONNECT_S: Final = 2.0
"""How long the connect and the handshake may take."""

_END: Final = b"\r\n"
_MOST_BYTES: Final = 512


class WayOut:
    """Listens on `path` from `open` to `close`. `context` has what certificates of other hosts are checked against.
    `on_change` is called when a session has begun or ended."""

    def __init__(self, path: Path, context: ssl.SSLContext, on_change: Callable[[], None]) -> None:
        self._path = path
        self._context = context
        self._on_change = on_change
        self._server: asyncio.Server | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self.sessions: set[TlsSession] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it."""
        return not (self._connecting or self.sessions)

    async def open(self) -> None:
        """Begins to listen, in place of the process before this one. Raises OSError."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Asked(self), sock=listener, backlog=BACKLOG
        )

    def close(self) -> None:
        """Takes nobody any more. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def abort(self) -> None:
        """Ends all sessions at once."""
        for task in self._connecting:
            task.cancel()
        for session in list(self.sessions):
            session.abort()

    def asked(self, transport: asyncio.Transport, line: bytes, rest: bytes) -> None:
        """Called when the forwarder has said to which host; `rest` is what came behind that."""
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._join(transport, line, rest))
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

    async def _join(self, transport: asyncio.Transport, line: bytes, rest: bytes) -> None:
        """Ends when both are joined, or there is no connection: then the forwarder gets an answer that is no 101."""
        session = TlsSession(self._ended)
        try:
            host, port = read_target(line)
            async with asyncio.timeout(CONNECT_S):
                made, _ = await asyncio.get_running_loop().create_connection(
                    lambda: session.inner, host, port, ssl=self._context, server_hostname=host
                )
        except (OSError, ValueError, TimeoutError) as error:
            transport.write(f"HTTP/1.1 502 {why_not(error)}\r\n\r\n".encode("latin-1", "replace"))
            transport.close()
            return
        except asyncio.CancelledError:
            transport.abort()
            session.abort()
            raise
        if transport.is_closing() or session.inner.is_closed:
            transport.abort()
            made.abort()
            return
        self.sessions.add(session)
        transport.set_protocol(session.client)
        session.client.connection_made(transport)
        made.write(rest)
        transport.resume_reading()
        made.resume_reading()


class Asked(asyncio.Protocol):
    """A connection of the forwarder until it has said to which host."""

    def __init__(self, way_out: WayOut) -> None:
        self._way_out = way_out
        self._said = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._said += data
        line, end, rest = self._said.partition(_END)
        if end:
            self._way_out.asked(self._transport, line, rest)
        elif len(self._said) > _MOST_BYTES:
            self._transport.abort()


def why_not(error: BaseException) -> str:
    """The sentence about a host that nobody could connect to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted (TLS_CA): {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    return str(getattr(error, "strerror", None) or error)
