"""Packets with descriptors; what a process said last, which reaches its peer although it left something unread; and how
large a packet may be. Knows no packet's meaning."""

from __future__ import annotations

import array
import socket
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

MAX_OFFER_BYTES: Final = 160 * 1024
"""The largest packet from a proxy to a worker: it has room for the largest head of a client with 64 KiB of text behind
it. An earlier version may be at the other end: it reads just as much."""

_Arguments = ParamSpec("_Arguments")
_Received = TypeVar("_Received")


def despite_reset(
    call: Callable[_Arguments, _Received], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Received:
    """What `call(…)` returns, a second time if the first says that the connection was reset. Raises OSError.

    Linux tells the peer of a SEQPACKET socket that was closed with unread packets so (ECONNRESET), once, and before it
    gives out what is still queued; then comes the end. Who takes this error for the end loses what was said last.

    On uvloop, read on until there is nothing or the end: it calls the reader of such a socket once and no more.
    """
    try:
        return call(*arguments, **named)
    except ConnectionResetError:
        return call(*arguments, **named)


def receive(sock: socket.socket, buffer: bytearray | memoryview, most_fds: int) -> tuple[bytes, array.array[int]]:
    """The next packet, which is read into `buffer`, and the descriptors that came with it; no bytes are the end. What
    this process executes does not get the descriptors. Raises OSError, as `despite_reset` does."""
    fds = array.array("i")
    # Not socket.recv_fds: up to Python 3.11 it ignores the flag.
    size, ancillary, _, _ = despite_reset(
        sock.recvmsg_into, [buffer], socket.CMSG_SPACE(most_fds * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return bytes(memoryview(buffer)[:size]), fds
