"""Opens the listening sockets that the master keeps over the proxy's restarts; accepts nothing."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from grid.errors import AlreadyRunning, GridError
from grid.runtime_dir import find_running

BACKLOG: Final = 4096


def open_listener(host: str, port: int, backlog: int = BACKLOG, runtime_dir: str = "") -> socket.socket:
    """A bound and listening TCP socket; port 0 takes a free one. Raises GridError with what to do,
    AlreadyRunning when a grid (looked for in `runtime_dir`) has the port.

    The queue is long because connections wait in it while the proxy is being restarted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise GridError(
            f"cannot listen on {host}: {error.strerror}; set PWGRID_HOST to an address of this host"
        ) from None
    listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, runtime_dir, error) from None
    return listener


def _refusal(host: str, port: int, runtime_dir: str, error: OSError) -> GridError:
    if error.errno == errno.EADDRINUSE:
        for grid in find_running(runtime_dir):
            if grid.port == port and grid.pid != os.getpid():
                return AlreadyRunning(grid.pid)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return GridError(f"cannot listen on {host} port {port}: {reason}; choose another one with --host or --port")
