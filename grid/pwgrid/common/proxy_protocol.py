"""The first line of a connection that a process between client and proxy has made: whose it is (PROXY protocol,
version 1, https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt)."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

END: Final = b"\r\n"
MOST_BYTES: Final = 107
"""The longest line, with its end."""

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
