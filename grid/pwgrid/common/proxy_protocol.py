"""What a process between client and proxy says first of a client that it has: a line with whose it is (PROXY protocol,
version 1, https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt), perhaps with the client's own socket."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Final

END: Final = b"\r\n"
_ADDRESSES: Final = 5

Endpoint = tuple[str, int]
"""Host and port."""


def line_of(client: Endpoint, local: Endpoint) -> bytes:
    """The line for a client that has connected to `local`. Raises ValueError for a host that is no IP address."""
    hosts = [ip_address(host.partition("%")[0]) for host, _ in (client, local)]
    family = "TCP4" if all(host.version == 4 for host in hosts) else "TCP6"
    return f"PROXY {family} {hosts[0]} {hosts[1]} {client[1]} {local[1]}".encode() + END


def read_line(line: bytes) -> tuple[Endpoint, Endpoint]:
    """Client and local address of a line, without its end. Raises ValueError for any other text."""
    words = line.decode("ascii").split(" ")
    if len(words) != _ADDRESSES + 1 or words[0] != "PROXY" or words[1] not in ("TCP4", "TCP6"):
        raise ValueError("no line of the PROXY protocol")
    client, local = (str(ip_address(host)) for host in words[2:4])
    return (client, int(words[4])), (local, int(words[5]))


def hand_over(path: Path, line: bytes, client: socket.socket) -> None:
    """Sends the line and the client's own socket to whoever accepts on this Unix socket, also if nobody does before
    this process has ended: both wait in the kernel. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as way:
        way.connect(str(path))
        socket.send_fds(way, [line], [client.fileno()])
