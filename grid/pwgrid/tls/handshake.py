"""The handshake of TLS on a connection's own socket: only so can OpenSSL tell the kernel the keys."""

from __future__ import annotations

import ssl

from pwgrid.common.acceptor import until_readable, until_writable


async def shake_hands(sock: ssl.SSLSocket) -> None:
    """Does the handshake of a non-blocking socket. Raises OSError."""
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await until_readable(sock)
        except ssl.SSLWantWriteError:
            await until_writable(sock)
        else:
            return
