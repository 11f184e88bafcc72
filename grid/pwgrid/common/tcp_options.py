"""The TCP options of clients' connections, and of those between hosts."""

from __future__ import annotations

import contextlib
import socket


def tune(listener: socket.socket, ping_timeout_s: float) -> None:
    """Sets no delay on a listener, and, for dead peers, keepalive and a bound on unacknowledged data.

    Accepted sockets inherit these (tcp(7)), so that no upgrade pays for six system calls. Playwright itself never
    notices a client whose host or cable is gone. With a timeout of 0 the kernel's defaults for dead peers stay.
    """
    with contextlib.suppress(OSError):  # a listening Unix socket, from systemd, has none of these
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ping_timeout_s <= 0:
            return
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(ping_timeout_s / 3)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(ping_timeout_s / 6)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, int(ping_timeout_s * 1000)))
