"""The addresses at which clients find a grid: here, and from other hosts. Connects to nobody."""

import contextlib
import socket
from typing import Final

from pwgrid.settings.endpoint import base_url
from pwgrid.settings.model import Settings

_ANY: Final = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}
"""The addresses that mean all of this host, each with one that no host has: the route to that shows our own."""


def url_for_others(settings: Settings) -> str | None:
    """The endpoint for clients of other hosts; None where that is the one for everybody.

    Where the grid listens on all addresses, it is the one that this host has on its way to others, or its name.
    """
    if settings.advertised_host or settings.host not in _ANY:
        return None
    return base_url(settings.model_copy(update={"advertised_host": _own_address(settings.host)}))


def _own_address(listening_on: str) -> str:
    families = [_ANY[listening_on], _ANY["0.0.0.0"]]  # who listens on :: takes IPv4 clients, too
    for family, elsewhere in families:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((elsewhere, 9))  # of a datagram socket: nothing is sent
            return str(sock.getsockname()[0])
    return socket.gethostname()
