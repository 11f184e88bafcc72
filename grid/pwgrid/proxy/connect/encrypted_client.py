"""Clients that speak TLS: they come from the grid's TLS process, which says first whose they are."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.common.acceptor import Acceptor, until_readable
from pwgrid.common.packet_sockets import receive
from pwgrid.common.proxy_protocol import END, Endpoint, read_line
from pwgrid.proxy.connect.bounded_http import HEAD_TIMEOUT_S
from pwgrid.proxy.connect.first_bytes import ProtocolChooser

log = structlog.get_logger()

_SEEN_BYTES: Final = 4096
"""So much of a connection is looked at for its line, which is there at once, and shorter."""


class EncryptedClient(asyncio.Transport):
    """The transport of such a client: its addresses are the client's, and the one that the client has connected to.

    Its own socket may be a Unix one, whose addresses say nothing. `socket_of` returns it, for the handoff.
    """

    def __init__(self, transport: asyncio.Transport, client: Endpoint, local: Endpoint) -> None:
        super().__init__({"peername": client, "sockname": local, "sslcontext": True})
        self.inner = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # uvicorn would ask the socket for its addresses.
        return default if name == "socket" else super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.inner.is_closing()

    def close(self) -> None:
        self.inner.close()

    def abort(self) -> None:
        self.inner.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.inner.get_protocol()

    def is_reading(self) -> bool:
        return self.inner.is_reading()

    def pause_reading(self) -> None:
        self.inner.pause_reading()

    def resume_reading(self) -> None:
        self.inner.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.inner.get_write_buffer_size()

    def write(self, data: Any) -> None:
        self.inner.write(data)

    def can_write_eof(self) -> bool:
        return self.inner.can_write_eof()

    def write_eof(self) -> None:
        self.inner.write_eof()


def socket_of(transport: asyncio.Transport) -> Any:
    """The socket by which a worker can have this connection."""
    if isinstance(transport, EncryptedClient):
        transport = transport.inner
    return transport.get_extra_info("socket")


class EncryptedClientChooser(ProtocolChooser):
    """The same for a client whose `addresses` are known: its own, and the one that it has connected to."""

    def __init__(self, *arguments: Any, addresses: tuple[Endpoint, Endpoint], **made: Any) -> None:
        super().__init__(*arguments, **made)
        self._addresses = addresses

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(EncryptedClient(transport, *self._addresses))


class EncryptedClients:
    """Accepts clients from the TLS process on `listener`. Each connection there begins with a line of the PROXY
    protocol. With it comes the client's own socket, whose TLS is in the kernel; or the connection itself is the
    client's, and the TLS process copies its bytes.

    `new_chooser` gets the `addresses` of the line. uvicorn waits for `tasks` when it ends.
    """

    def __init__(
        self,
        listener: socket.socket,
        new_chooser: Callable[..., EncryptedClientChooser],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._acceptor = Acceptor((listener,), self._accepted)
        self._new_chooser = new_chooser
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.open = self._acceptor.open
        self.close = self._acceptor.close

    def _accepted(self, sock: socket.socket) -> None:
        task = self._loop.create_task(self._serve(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, way: socket.socket) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                client, addresses = await _introduced(way)
        except (OSError, ValueError) as error:
            log.error("client_without_address", reason=str(error), about="it has come from the grid's TLS process")
            return
        try:
            await self._loop.connect_accepted_socket(lambda: self._new_chooser(addresses=addresses), client)
        except OSError as error:  # it has left
            log.debug("client_left", reason=error.strerror or str(error))
            client.close()


async def _introduced(way: socket.socket) -> tuple[socket.socket, tuple[Endpoint, Endpoint]]:
    """The socket and the addresses of the client that comes by this connection, which is the client's itself if no
    socket comes with its line. Else it is closed. Raises OSError and ValueError."""
    client = way
    try:
        while True:
            try:
                seen = way.recv(_SEEN_BYTES, socket.MSG_PEEK)
                break
            except BlockingIOError:
                await until_readable(way)
        line, end, _ = seen.partition(END)
        # What follows the line is the client's, and stays to be read.
        _, fds = receive(way, bytearray(len(line + end) or 1), 1)
        if fds:
            way.close()
            client = socket.socket(fileno=fds[0])
        addresses = read_line(line)
    except BaseException:
        client.close()
        raise
    return client, addresses
