"""Connections of clients that speak TLS: the grid's TLS process has made them, and says first whose they are."""

import asyncio
from typing import Any, Final

import structlog

from pwgrid.common.proxy_protocol import END, MOST_BYTES, Endpoint, read_line
from pwgrid.proxy.connect.first_bytes import ProtocolChooser

log = structlog.get_logger()

_ADDRESSES: Final = ("peername", "sockname")


class EncryptedClient(asyncio.Transport):
    """The transport of such a connection: its addresses are the client's, and the one that the client has connected to.

    Its own socket is a Unix one, whose addresses say nothing. `socket_of` returns it, for the handoff.
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
    """The same for a grid with a certificate: a connection on `path` begins with a line of the PROXY protocol."""

    def __init__(self, path: str, *arguments: Any, **made: Any) -> None:
        super().__init__(*arguments, **made)
        self._path = path
        self._line: bytes | None = None
        """What has come of the line; None when none is expected, or it has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if transport.get_extra_info("sockname") == self._path:
            self._line = b""

    def data_received(self, data: bytes) -> None:
        if self._line is not None:
            line, end, data = (self._line + data).partition(END)
            if not end and len(line) < MOST_BYTES:
                self._line = line
                return
            try:
                self._transport = EncryptedClient(self._transport, *read_line(line))
            except ValueError:
                log.error("client_without_address", about="it has connected to the socket of the grid's TLS process")
                self._transport.abort()
                return
            self._line = None
        if data:
            super().data_received(data)
