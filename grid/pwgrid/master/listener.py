"""Opens the grid's listening sockets, or takes over passed ones. The master keeps them over restarts of the proxy."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pwgrid.common.errors import AlreadyRunning, GridError
from pwgrid.runtime.find_grids import find_others, find_running
from pwgrid.settings.model import Settings

BACKLOG: Final = 4096
"""Long, because connections wait in it while the proxy is being restarted."""
_FIRST_SYSTEMD_FD: Final = 3


def open_listener(
    host: str, port: int, runtime_dir: str = "", instead_of: Sequence[socket.socket] = ()
) -> socket.socket:
    """A bound and listening TCP socket; port 0 takes a free one. It may have an address that excludes those of the
    sockets that it is there `instead_of`, which listen until they are closed. Raises GridError with what to do,
    AlreadyRunning when a grid of this user, or one in `runtime_dir`, has the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "it cannot be a name"
        raise GridError(f"cannot listen on {host}: {reason}; set PWGRID_HOST to an address of this host") from None
    try:
        with ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for each in (listener, *instead_of) if instead_of else ():
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)  # for nobody else
            undo.pop_all()
    except OSError as error:  # also of a kernel without IPv6
        raise _refusal(host, port, runtime_dir, error) from None
    return listener


def is_elsewhere(listeners: Iterable[socket.socket], host: str) -> bool:
    """Whether there are TCP sockets among these, and none has an address that `host` means. False where the name cannot
    be resolved."""
    there = addresses(listeners)
    try:
        meant = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        return False
    return bool(there) and {str(address[0]) for *_, address in meant}.isdisjoint(there)


def addresses(listeners: Iterable[socket.socket]) -> list[str]:
    """The address, without the port, of each TCP socket."""
    return [str(each.getsockname()[0]) for each in listeners if each.family != socket.AF_UNIX]


def open_private(path: Path) -> socket.socket:
    """A listening Unix socket for processes of the grid alone; what is at `path` is replaced. Raises GridError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise GridError(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def why_no_listening(host: str, port: int, runtime_dir: str = "") -> GridError | None:
    """What `open_listener` would raise now; None when this address can be listened on."""
    try:
        open_listener(host, port, runtime_dir=runtime_dir).close()
    except GridError as error:
        return error
    return None


def _refusal(host: str, port: int, runtime_dir: str, error: OSError) -> GridError:
    if error.errno == errno.EADDRINUSE:
        for grid in [*find_running(runtime_dir), *find_running(elsewhere=True)]:
            if grid.port == port and grid.pid != os.getpid():
                return AlreadyRunning(grid.pid)
        for other in find_others():
            if other.port == port:
                return GridError(f"cannot listen on {host} port {port}: {other} has it; choose another one with --port")
    reason = os.strerror(error.errno) if error.errno else str(error)
    return GridError(f"cannot listen on {host} port {port}: {reason}; choose another one with --host or --port")


def inherited_listeners(settings: Settings, *, has_tokens: bool = False) -> list[socket.socket]:
    """Listening sockets that systemd (LISTEN_FDS, LISTEN_PID) or supervisord's fcgi-program (descriptor 0) passed to
    this process; may be empty.

    Raises GridError when one of them is open to other hosts, and neither a token nor ALLOW_PUBLIC is set.
    """
    fds = _systemd_fds() or ([0] if _is_listening(0) else [])
    listeners = []
    for fd in fds:
        if not _is_listening(fd):
            raise GridError(f"descriptor {fd}, which was passed to listen on, is not a listening socket")
        listener = socket.socket(fileno=os.dup(fd) if fd == 0 else fd)
        os.set_inheritable(listener.fileno(), False)
        listener.setblocking(True)
        listeners.append(listener)
    for listener in listeners:
        if not has_tokens and _is_unprotected(listener, settings):
            address = listener.getsockname()[0]
            for each in listeners:
                each.close()
            raise GridError(
                f"the socket that was passed to listen on is open to other hosts ({address}): set PWGRID_TOKEN, or "
                "ALLOW_PUBLIC=true where that is meant"
            )
    return listeners


def _systemd_fds() -> list[int]:
    count, pid = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not count.isdigit() or pid != str(os.getpid()):
        return []
    return list(range(_FIRST_SYSTEMD_FD, _FIRST_SYSTEMD_FD + int(count)))


def _is_listening(fd: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(fileno=os.dup(fd)) as probe:
        return bool(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and probe.type == socket.SOCK_STREAM


def _is_unprotected(listener: socket.socket, settings: Settings) -> bool:
    address = listener.getsockname()
    if not isinstance(address, tuple) or settings.token or settings.allow_public:
        return False
    return not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
