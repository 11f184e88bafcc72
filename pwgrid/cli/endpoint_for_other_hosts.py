"""Finds the address at which clients on other hosts reach the grid. Sends nothing."""

import contextlib
import socket
from typing import Final

from pwgrid.settings.model import Settings

_ANY: Final = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}
"""The addresses that mean all of this host. The route to the documentation address beside each shows our own one."""


def url_for_others(settings: Settings) -> str | None:
    """The endpoint for clients on other hosts; None where it is the same as for clients here.

    Where the grid listens on all addresses, it has the address from which this host reaches others, else its name.
    """
    if settings.advertised_host or settings.host not in _ANY:
        return None
    return settings.model_copy(update={"advertised_host": _own_address(settings.host)}).base_url()


def _own_address(listening_on: str) -> str:
    families = [_ANY[listening_on], _ANY["0.0.0.0"]]  # a listener on :: takes IPv4 clients, too
    for family, elsewhere in families:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((elsewhere, 9))  # sends nothing: it is a datagram socket
            return str(sock.getsockname()[0])
    return socket.gethostname()
