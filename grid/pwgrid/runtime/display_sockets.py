"""The sockets of displays that workers make.

X libraries look for them in one directory of the host, by the display's number, so they cannot be in the worker's own.
There each display has a directory with its number as name: whoever removes that finds the socket."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

SOCKETS: Final = Path("/tmp/.X11-unix")

DISPLAYS: Final = "displays"
"""The directory for displays in that of a worker."""

_FIRST, _NUMBERS = 1000, 50_000
"""Displays of desktops, of xvfb-run and of X servers that choose a number themselves are far below."""
_TRIES: Final = 20
_MAY_CONNECT: Final = 0o600
_BACKLOG: Final = 64


def make_place() -> None:
    """Makes the directory for all displays of the host as X servers do. Raises OSError."""
    with suppress(FileExistsError):
        SOCKETS.mkdir()
        SOCKETS.chmod(0o1777)


def take_number(directory: Path) -> tuple[Path, socket.socket]:
    """Takes a number that no other display of the host has. Returns a new directory for it, with that name, and its
    socket, which listens, and to which only this user may connect.

    An X server that looks for a number itself (-displayfd) is no help: without an abstract socket, which everybody may
    connect to, it takes also those of others. Raises OSError.
    """
    make_place()
    directory.mkdir(mode=0o700, exist_ok=True)
    for tries_left in reversed(range(_TRIES)):
        own = directory / str(_FIRST + secrets.randbelow(_NUMBERS))
        listener = socket.socket(socket.AF_UNIX)
        try:
            own.mkdir(mode=0o700)
            os.fchmod(listener.fileno(), _MAY_CONNECT)  # the file that bind() makes has this mode from the beginning
            listener.bind(str(_path(own)))
            listener.listen(_BACKLOG)
        except OSError:  # taken, most likely
            listener.close()
            own.rmdir()
            if not tries_left:
                raise
        else:
            return own, listener
    raise AssertionError


def remove_socket(own: Path) -> None:
    """Removes the socket of the display with this directory, if nobody listens there any more."""
    path = _path(own)
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def remove_sockets(directory: Path) -> None:
    """The same for all displays that have a directory in this one."""
    for own in directory.glob("*"):
        remove_socket(own)


def _path(own: Path) -> Path:
    return SOCKETS / f"X{int(own.name)}"
