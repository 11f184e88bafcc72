"""Two marks on a client's TCP connection, by which its proxy knows who has the client although nobody has answered it.

They belong to the connection itself, not to a process's copy of it, so they outlive whoever has set them. A Unix socket
carries only the first one.
"""

from __future__ import annotations

import contextlib
import socket


def clear_marks(sock: socket.socket) -> None:
    """Removes both, before the client is offered."""
    # uvloop's own socket object would make such a socket for each call. Python asks the kernel for a protocol that is
    # not given.
    own = socket.socket(sock.family, socket.SOCK_STREAM, 0, fileno=sock.fileno())
    try:
        if sock.family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0)
    finally:
        own.detach()


def mark_passed_on(sock: socket.socket) -> None:
    """From now on this client may be served: a worker is about to pass it on to its browser server, or a forwarder to
    join it with another host."""
    with contextlib.suppress(OSError):  # a client that has left
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)


def is_passed_on(sock: socket.socket) -> bool:
    """Whether the first mark is set."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))


def mark_served(sock: socket.socket) -> None:
    """From now on this client is served, whatever happens to this process."""
    with contextlib.suppress(OSError):  # a Unix socket, or a client that has left
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def is_served(sock: socket.socket) -> bool:
    """Whether the second mark is set: the first thing that a browser server does with a client is to set TCP_NODELAY
    (launcher.cjs). Raises OSError for a socket that carries no marks."""
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
