"""Counts the wrong tokens of each peer, so that guessing stays slow. Reads no clock."""

from __future__ import annotations

from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_address
from typing import Final

MOST: Final = 10
WITHIN_S: Final = 60.0
"""A peer gets 401 for MOST wrong tokens within this time, then 429."""

MAX_PEERS: Final = 10_000
"""Beyond these the peer that failed longest ago is forgotten."""

_NETWORK_BITS: Final = 64
"""The bits of an IPv6 address that a host chooses itself; the other bits identify the peer."""


class FailedLogins:
    """Who has failed, and when, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, host: str, now: float) -> float:
        """Returns how long this host has to wait before it may try another wrong token; mostly 0."""
        failures = self._failures.get(_peer(host)) if self._failures else None
        if failures is None or len(failures) < MOST:
            return 0.0
        return max(0.0, failures[0] + WITHIN_S - now)

    def note(self, host: str, now: float) -> None:
        peer = _peer(host)
        failures = self._failures.setdefault(peer, deque(maxlen=MOST))
        failures.append(now)
        self._failures.move_to_end(peer)
        if len(self._failures) > MAX_PEERS:
            self._failures.popitem(last=False)


def _peer(host: str) -> str:
    """Returns one name for all addresses that one host may use."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket has no address
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> _NETWORK_BITS:x}"
