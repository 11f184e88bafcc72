"""Connects to a host of which one address may not answer, while another one does."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from pwgrid.common.tcp_options import tune

MOST_SHARE_S: Final = 0.25
"""How long an address that does not answer keeps the next one waiting (RFC 8305 has this as happy eyeballs' delay)."""


def share_s(left_s: float, addresses: int) -> float:
    """How long the first of so many addresses has before the next one is tried; the last has what is left."""
    return min(MOST_SHARE_S, left_s / addresses)


async def connect_tcp(host: str, port: int, limit_s: float, ping_timeout_s: float = 0.0) -> socket.socket:
    """A connection to the first address that answers, tuned for this time (`tcp_options.py`). Raises OSError, which
    TimeoutError is, too. uvloop itself tries one address after the other, each for as long as the kernel does."""
    loop, failed = asyncio.get_running_loop(), OSError("its name has no address")
    until = loop.time() + limit_s
    async with asyncio.timeout_at(until):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for at, (family, _, _, _, address) in enumerate(found, 1):
        left_s = max(0.0, until - loop.time())
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            tune(sock, ping_timeout_s)
            async with asyncio.timeout(left_s if at == len(found) else share_s(left_s, len(found) - at + 1)):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed
