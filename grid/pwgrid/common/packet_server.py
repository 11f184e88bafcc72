"""Takes packets, with the sockets that come along, from proxies over a SEQPACKET Unix socket, and answers them: what a
worker (worker/handoff_server.py) and the forwarder (forwarder/offers.py) have in common."""

from __future__ import annotations

import array
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import structlog

from pwgrid.common.packet_sockets import MAX_OFFER_BYTES, DescriptorsLost, receive

log = structlog.get_logger()

_MOST_FDS: Final = 4
_BACKLOG: Final = 64
_PRIVATE: Final = 0o600

PROMISE_S: Final = 2.0
"""For so long a proxy waits for whoever works on its answer and is not heard of: then that is frozen, or as good as
frozen, and another worker gets the client."""

PROMISE_AGAIN_S: Final = 0.5

SHORTAGE_S: Final = 0.2
"""How long it accepts no proxy when no descriptor is free: the listener stays readable, so the loop would not wait."""

Action = Callable[[], object]


class Loop(Protocol):
    """What it needs of a loop: asyncio's has it, and the forwarder's."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], /, *args: Any) -> Any: ...
    def remove_reader(self, fd: Any, /) -> Any: ...
    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> Any: ...


class PacketServer:
    """Listens from `_open` to `close`. Links are numbered. Subclasses define `_read`, and perhaps the other two."""

    def __init__(self, path: Path, loop: Loop) -> None:
        self._path = path
        self._last_link = 0
        self._loop = loop
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._links: dict[socket.socket, int] = {}
        self._buffer = memoryview(mmap.mmap(-1, MAX_OFFER_BYTES))  # takes no memory before it is written
        self._is_short = False
        """Whether no connection could be accepted the last time."""

    def close(self) -> None:
        """Ends the listener and every link; proxies see the end and take other workers. Idempotent."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for link in list(self._links):
            self._on_readable(link)  # answers offers that have arrived, so that no proxy is left in doubt
            self._drop(link)

    def _read(self, link: socket.socket, said: dict[str, Any], fds: array.array[int]) -> Action:
        """Reads a packet; returns what it asks for, and has taken its descriptors then. Raises OSError, ValueError,
        TypeError or LookupError if it is malformed."""
        raise NotImplementedError

    def _link_began(self) -> None:
        """Called when a proxy has connected."""

    def _link_ended(self, number: int) -> None:
        """Called when a proxy is gone."""

    def _open(self) -> None:
        """Starts to listen. Raises OSError."""
        self._path.unlink(missing_ok=True)
        os.fchmod(self._listener.fileno(), _PRIVATE)  # the file that bind() makes has this mode from the beginning
        self._listener.bind(str(self._path))
        self._listener.listen(_BACKLOG)
        self._listen()

    def _send(self, link: socket.socket, reply: bytes) -> None:
        if link not in self._links:
            return
        try:
            link.send(reply)
        except OSError as error:
            log.warning("handoff_answer_lost", error=str(error))
            # A dead proxy's last offers are still to be read, and the reader sees the end behind them. One that does
            # not read its answers gives up on them by its own deadline.
            if not isinstance(error, ConnectionError):
                self._drop(link)

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is free, or no memory; the proxy waits in the listener's queue
            if not self._is_short:
                log.error("handoff_accept_failed", error=error.strerror or str(error))
            self._is_short = True
            self._loop.remove_reader(self._listener)
            self._loop.call_later(SHORTAGE_S, self._listen)
            return
        self._is_short = False
        link.setblocking(False)
        self._last_link += 1
        self._links[link] = self._last_link
        self._loop.add_reader(link, self._on_readable, link)
        self._link_began()

    def _drop(self, link: socket.socket) -> None:
        if link in self._links:
            number = self._links.pop(link)
            self._loop.remove_reader(link)
            link.close()
            self._link_ended(number)

    def _on_readable(self, link: socket.socket) -> None:
        while link in self._links:
            try:
                # One buffer for all packets: a new one of this size would take fresh pages for each.
                packet, fds = receive(link, self._buffer, _MOST_FDS)
            except BlockingIOError:
                return
            except OSError as error:
                if isinstance(error, DescriptorsLost):
                    log.error("handoff_packet_corrupt", error=error.strerror)
                self._drop(link)
                return
            if packet or fds:
                self._take(link, packet, fds)
            else:
                self._drop(link)

    def _take(self, link: socket.socket, packet: bytes, fds: array.array[int]) -> None:
        try:
            act = self._read(link, orjson.loads(packet), fds)  # a newer proxy may say more
        except (OSError, ValueError, TypeError, LookupError) as error:
            for each in fds:
                os.close(each)
            log.error("handoff_packet_corrupt", error=repr(error))
            self._drop(link)
            return
        act()
