"""What a process said last reaches its peer, although it left something unread; and how large a packet may be. Knows no
packet's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

MAX_OFFER_BYTES: Final = 160 * 1024
"""The largest packet from a proxy to a worker: it has room for the largest head of a client with 64 KiB of text behind
it. An earlier version may be at the other end: it reads just as much."""

_Arguments = ParamSpec("_Arguments")
_Received = TypeVar("_Received")


def despite_reset(
    receive: Callable[_Arguments, _Received], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Received:
    """What `receive(…)` returns, a second time if the first says that the connection was reset. Raises OSError.

    Linux tells the peer of a SEQPACKET socket that was closed with unread packets so (ECONNRESET), once, and before it
    gives out what is still queued; then comes the end. Who takes this error for the end loses what was said last.

    On uvloop, read on until there is nothing or the end: it calls the reader of such a socket once and no more.
    """
    try:
        return receive(*arguments, **named)
    except ConnectionResetError:
        return receive(*arguments, **named)
