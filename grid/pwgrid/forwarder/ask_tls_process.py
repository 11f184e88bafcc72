"""Asks this host's TLS process for a connection to another host that speaks TLS."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from pwgrid.common.packet_sockets import receive
from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.tls_process_lines import END, NOT_ANSWERED, read_answer, target_line
from pwgrid.forwarder.loop import Loop

NO_TLS: Final = "it speaks TLS, and this host has no TLS process: set TLS_CERT and TLS_KEY here, or TLS_CA"

_MOST_BYTES: Final = 4096
"""Of an answer: a line, behind which nothing comes before the host has been asked for something."""


class NotConnected(NamedTuple):
    """Why there is no connection. The reason is NO_WAY where this host's own process is the trouble, and not the other
    host."""

    reason: OfferRefusal
    detail: str


Connected = socket.socket | NotConnected


class AskedTlsProcess:
    """Asked on the Unix socket `path` for `host` and `port`, from `start` on. Calls `then` once, unless it is cancelled
    before: with the host's own socket, or one to the TLS process, which copies the bytes; or with why there is none."""

    def __init__(self, loop: Loop, path: str, host: str, port: int, then: Callable[[Connected], None]) -> None:
        self._loop = loop
        self._path = path
        self._line = target_line(host, port)
        self._then = then
        self._way: socket.socket | None = None
        self._answer = b""

    def start(self) -> None:
        """It may be answered before this returns."""
        try:
            way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._then(NotConnected(OfferRefusal.NO_WAY, error.strerror or str(error)))
            return
        self._way = way
        try:
            way.connect(self._path)
            way.send(self._line)
        except OSError as error:
            self._is_gone(error)
            return
        self._loop.add_reader(way, self._on_answer, way)

    def cancel(self) -> None:
        """Nobody hears of its answer. Idempotent."""
        if self._way is not None:
            self._loop.remove(self._way)
            self._way.close()
            self._way = None

    def _on_answer(self, way: socket.socket) -> None:
        try:
            more, fds = receive(way, bytearray(_MOST_BYTES), 1)
        except BlockingIOError:
            return
        except OSError as error:
            self._is_gone(error)
            return
        self._answer += more
        if more and not self._answer.endswith(END) and not fds:
            return  # a line in two pieces
        why_not = read_answer(self._answer)
        for fd in fds if why_not else ():
            os.close(fd)
        if why_not:
            is_its_own = why_not == NOT_ANSWERED  # it ended meanwhile
            self._end(NotConnected(OfferRefusal.NO_WAY if is_its_own else OfferRefusal.UNREACHABLE, why_not))
        elif fds:
            host = socket.socket(fileno=fds[0])
            host.setblocking(False)
            self._end(host)
        else:
            self._loop.remove(way)
            self._way = None
            self._then(way)

    def _is_gone(self, error: OSError) -> None:
        self._end(NotConnected(OfferRefusal.NO_WAY, f"the TLS process is gone ({error.strerror or error})"))

    def _end(self, connected: Connected) -> None:
        self.cancel()
        self._then(connected)
