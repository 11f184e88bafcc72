"""A control link on a socket, without blocking; what the frames mean is for its owner."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from pwgrid.control.frames import MAX_FRAME_BYTES, ProtocolError
from pwgrid.control.poll import READ, WRITE, Loop
from pwgrid.control.protocol import ClosedSeen, Link, Received

_PACKETS_A_TURN: Final = 64


class Channel:
    """The master's end of one child's link. The link outlives the connection: `attach` resumes it on another one.

    `on_received(item)` may raise ValueError for what cannot be; that ends the connection, as a broken frame does.
    `on_down(reason)` tells that the connection is gone.
    """

    def __init__(
        self, loop: Loop, link: Link, on_received: Callable[[Received], None], on_down: Callable[[str], None]
    ) -> None:
        self.link = link
        self.heard_at = loop.now()
        self._loop = loop
        self._on_received = on_received
        self._on_down = on_down
        self._sock: socket.socket | None = None
        self._waits_to_write = False

    def attach(self, sock: socket.socket, greeting: Mapping[str, Any], first: bytes | None = None) -> None:
        """Go on over `sock`; `first` is its init frame, if that was read already."""
        self._drop()
        sock.setblocking(False)
        self._sock = sock
        self.link.connect(greeting)
        self._loop.add(sock.fileno(), self._on_ready)
        if first is not None:
            self._take(first)
        self.flush()

    def send(self, name: str, data: dict[str, Any]) -> None:
        """A command, exactly once. Raises LinkFullError when far too much is unacknowledged."""
        self.link.send(name, data)
        self.flush()

    def push_state(self, data: dict[str, Any]) -> None:
        """The latest state."""
        self.link.state(data)
        self.flush()

    def tick(self, now: float) -> None:
        """Let pending acknowledgements go."""
        self.link.tick(now)
        self.flush()

    def flush(self) -> None:
        """Write what the link has, as far as the child's buffer takes it."""
        while self._sock is not None and (packet := self.link.next_packet()) is not None:
            try:
                self._sock.send(packet)
            except BlockingIOError:
                self._wait_to_write(True)
                return
            except OSError:
                # What the child wrote before it ended is still to be read; the read tells the end.
                break
            self.link.sent()
        self._wait_to_write(False)

    def read_rest(self) -> None:
        """Take what an ended child has left in the socket."""
        while self._sock is not None and self._read_once():
            pass

    def close(self) -> None:
        """End the connection. Idempotent; nobody is told."""
        self._drop()

    def _on_ready(self) -> None:
        for _ in range(_PACKETS_A_TURN):
            if self._sock is None or not self._read_once():
                break
        self.flush()

    def _read_once(self) -> bool:
        assert self._sock is not None
        try:
            packet = self._sock.recv(MAX_FRAME_BYTES + 1)
        except BlockingIOError:
            return False
        except OSError as error:
            self._down(str(error))
            return False
        if not packet:
            self._down("closed by the child")
            return False
        return self._take(packet)

    def _take(self, packet: bytes) -> bool:
        self.heard_at = self._loop.now()
        try:
            for item in self.link.receive(packet, self.heard_at):
                self._on_received(item)
                if isinstance(item, ClosedSeen):
                    self._drop()
        except ValueError as error:
            kind = "protocol error" if isinstance(error, ProtocolError) else "bad content"
            self._down(f"{kind}: {error}")
            return False
        return True

    def _down(self, reason: str) -> None:
        self._drop()
        self._on_down(reason)

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove(sock.fileno())
            sock.close()
            self.link.disconnect()
        self._waits_to_write = False

    def _wait_to_write(self, waits: bool) -> None:
        if self._sock is not None and waits != self._waits_to_write:
            self._waits_to_write = waits
            self._loop.want(self._sock.fileno(), READ | WRITE if waits else READ)
