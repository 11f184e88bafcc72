"""Reads packets, and the descriptors that come with them, from the SEQPACKET sockets between the grid's processes, also
the last ones of a peer that has closed its end; and says how large a packet may be."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

MAX_OFFER_BYTES: Final = 160 * 1024
"""The largest packet from a proxy to a worker: it has room for the largest head of a client with 64 KiB of text behind
it. Another version, which may be at the other end during an upgrade, reads just as much."""


class DescriptorsLost(OSError):
    """The kernel has dropped descriptors that came with a packet, because none was free for them here."""


_Arguments = ParamSpec("_Arguments")
_Received = TypeVar("_Received")


def despite_reset(
    call: Callable[_Arguments, _Received], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Received:
    """Returns what `call(…)` returns; calls it a second time if the first one says that the connection was reset.
    Raises OSError.

    If a process closes a SEQPACKET socket and has left packets in it unread, Linux tells its peer so, once: the peer's
    next read fails with ECONNRESET. Only the reads after that return what the process had sent, and then the end. Who
    takes the error for the end loses what was sent last.

    On uvloop, read on until there is nothing or the end: it calls the reader of such a socket once and no more.
    """
    try:
        return call(*arguments, **named)
    except ConnectionResetError:
        return call(*arguments, **named)


def receive(sock: socket.socket, buffer: bytearray | memoryview, most_fds: int) -> tuple[bytes, array.array[int]]:
    """The next packet, which is read into `buffer`, and the descriptors that came with it; no bytes are the end. What
    this process executes does not get the descriptors. Raises OSError, as `despite_reset` does, and DescriptorsLost."""
    fds = array.array("i")
    # Not socket.recv_fds: up to Python 3.11 it ignores the flag.
    size, ancillary, flags, _ = despite_reset(
        sock.recvmsg_into, [buffer], socket.CMSG_SPACE(most_fds * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & socket.MSG_CTRUNC and len(fds) < most_fds:
        for fd in fds:
            os.close(fd)
        raise DescriptorsLost(errno.EMFILE, "no descriptor is free for one that came with a packet")
    return bytes(memoryview(buffer)[:size]), fds
