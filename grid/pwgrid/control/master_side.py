"""The master's side of a control link on a non-blocking socket. Its owner decides what the frames mean."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.common.packet_sockets import despite_reset
from pwgrid.common.selectors_loop import READ, WRITE, Loop
from pwgrid.control.exactly_once import Link, LinkFullError
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, ProtocolError
from pwgrid.control.frozen_peer import FrozenPeerDetector

log = structlog.get_logger()

_PACKETS_A_TURN: Final = 64


class MasterSide:
    """The link to the child `ident`, a worker id or "proxy". It outlives the connection: `attach` resumes it on another
    one. `adopts`: another master had the child until now.

    `on_frame` gets each frame that `Link.receive` returns. It may raise ValueError for content that makes no sense;
    that ends the connection, as a broken frame does. `on_silent` is called when nothing has come for `lost_s` seconds,
    on any connection; and again when that has happened after something came.
    """

    def __init__(
        self,
        loop: Loop,
        ident: str,
        lost_s: float,
        on_frame: Callable[[Frame], None],
        on_silent: Callable[[], None],
        *,
        adopts: bool = False,
    ) -> None:
        self._loop = loop
        self._link = Link("master", ident, adopts=adopts)
        self._lost_s = lost_s
        self._silence = FrozenPeerDetector(lost_s, loop.now())
        self._on_frame = on_frame
        self._on_silent = on_silent
        self._sock: socket.socket | None = None
        self._is_too_large = False
        """Whether the latest state was not sent."""
        self._silence_timer = loop.call_at(self._silence.look_at, self._check_silence)

    def attach(self, sock: socket.socket, first: bytes | None = None) -> None:
        """Go on over `sock`; `first` is its init frame, if that was read already. Raises ProtocolError for a link that
        was closed for good."""
        self._drop()
        self._link.connect({"lostThresholdS": self._lost_s})
        sock.setblocking(False)
        self._sock = sock
        self._loop.add(sock.fileno(), self._on_ready)
        if first is not None:
            self._take(first)
        self._flush()

    def send(self, name: str, data: dict[str, Any]) -> None:
        """Send a command, exactly once, on this connection or the next one."""
        try:
            self._link.send(name, data)
        except LinkFullError as error:
            log.error("command_dropped", process=self._link.ident, command=name, reason=str(error))
        self._flush()

    def push_state(self, data: dict[str, Any]) -> None:
        """Send the latest state; only the latest one counts. One that is too large for a frame is not sent."""
        try:
            self._link.state(data)
        except ValueError as error:
            if not self._is_too_large:
                log.error("state_dropped", process=self._link.ident, reason=str(error))
            self._is_too_large = True
            return
        self._is_too_large = False
        self._flush()

    def unacknowledged(self) -> list[tuple[str, dict[str, Any]]]:
        """The commands that the child may not have heard."""
        return self._link.unacknowledged()

    def read_what_is_left(self) -> None:
        """Take the last frames of a child that has ended."""
        while self._sock is not None and self._read_once():
            pass

    def close(self, reason: str) -> None:
        """End the link: the child hears why, if its buffer has room for that, and is heard no more. Idempotent."""
        self._silence_timer.cancel()
        self._link.close(reason)
        self._flush()
        self._drop()

    def _check_silence(self) -> None:
        """Check for silence. Frames only note the time: to re-arm a timer at each would cost more than this."""
        if self._silence.is_over(self._loop.now()):
            self._on_silent()
        else:
            self._silence_timer.arm(self._silence.look_at)

    def _flush(self) -> None:
        """Write what the link has, as far as the child's buffer takes it."""
        while self._sock is not None and (packet := self._link.next_packet()) is not None:
            try:
                self._sock.send(packet)
            except BlockingIOError:
                self._loop.want(self._sock.fileno(), READ | WRITE)
                return
            except OSError:
                # What the child wrote before it ended is still to be read; the reader will see the end.
                break
            self._link.sent()
        if self._sock is not None:
            self._loop.want(self._sock.fileno(), READ)

    def _on_ready(self) -> None:
        for _ in range(_PACKETS_A_TURN):
            if self._sock is None or not self._read_once():
                break
        self._flush()

    def _read_once(self) -> bool:
        assert self._sock is not None
        try:
            packet = despite_reset(self._sock.recv, MAX_FRAME_BYTES + 1)
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
        self._silence.heard(self._loop.now())
        if self._silence_timer.when == math.inf:  # it was silent
            self._silence_timer.arm(self._silence.look_at)
        try:
            if (frame := self._link.receive(packet)) is not None:
                self._on_frame(frame)
                if frame["t"] == "close":
                    self._drop()
        except ValueError as error:
            kind = "protocol error" if isinstance(error, ProtocolError) else "bad content"
            self._down(f"{kind}: {error}")
            return False
        return True

    def _down(self, reason: str) -> None:
        self._drop()
        log.debug("control_link_down", process=self._link.ident, reason=reason)

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove(sock.fileno())
            sock.close()
            self._link.disconnect()
