"""Finds the addresses of other hosts without stopping the forwarder: names are looked up in threads."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pwgrid.forwarder.loop import Loop

Address = tuple[socket.AddressFamily, Any]
"""A family, and what connect() gets."""

Found = list[Address] | OSError
_READ_BYTES: Final = 4096


class Resolver:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._found: deque[tuple[Callable[[Found], None], Found]] = deque()
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        loop.add_reader(self._wakes, self._on_found)

    def resolve(self, host: str, port: int, then: Callable[[Found], None]) -> None:
        """Calls `then` with the addresses, or with what is wrong: at once for a host that is an IP address."""
        found = _look_up(host, port, socket.AI_NUMERICHOST)
        if isinstance(found, OSError):
            threading.Thread(target=self._in_thread, args=(host, port, then), daemon=True).start()
        else:
            then(found)

    def close(self) -> None:
        """What is still looked up is told to nobody. Idempotent."""
        self._loop.remove(self._wakes)
        self._wakes.close()
        self._waker.close()

    def _in_thread(self, host: str, port: int, then: Callable[[Found], None]) -> None:
        self._found.append((then, _look_up(host, port, 0)))
        with suppress(OSError):  # the process is about to end
            self._waker.send(b"x")

    def _on_found(self) -> None:
        self._wakes.recv(_READ_BYTES)
        while self._found:
            then, found = self._found.popleft()
            then(found)


def _look_up(host: str, port: int, flags: int) -> Found:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except OSError as error:
        return error
    except UnicodeError:  # no name that DNS could know
        return OSError(f"{host!r:.80} is no host name")
    return [(family, address) for family, _, _, _, address in found]
