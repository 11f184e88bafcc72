"""The forwarder's side of the parking place: the master keeps a copy of the descriptors of each forwarded session, for
a successor of this process."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from pwgrid import __version__
from pwgrid.common.packet_sockets import DescriptorsLost, receive
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, ProtocolError, decode, encode
from pwgrid.control.parked_session import FDS, NAME, PING_S, PINGS_WITHIN_THRESHOLD, ParkedSession
from pwgrid.forwarder.loop import READABLE, Loop, Timer
from pwgrid.forwarder.spliced_session import ForwardedSession, close_all

log = structlog.get_logger()

RECONNECT_S: Final = 0.1


class Parking:
    """Connects to the master's control socket, again and again if it has to. `sessions` are those that live, by their
    ids; the caller changes it.

    `on_left` is called for each session that the process before this one has left, with its descriptors, which the
    callee owns. `on_command` gets the master's commands. `on_lost` is called when there has been no master for the
    lost threshold, or for the time that it allowed when it detached; `on_found` when there is one again after that;
    `on_told` when the master may have heard everything.
    """

    def __init__(
        self,
        loop: Loop,
        path: Path,
        lost_threshold_s: float,
        sessions: Mapping[str, ForwardedSession],
        on_left: Callable[[ParkedSession, list[int]], None],
    ) -> None:
        self.on_command: Callable[[str, dict[str, Any]], None] = lambda _name, _data: None
        self.on_lost: Callable[[], None] = lambda: None
        self.on_found: Callable[[], None] = lambda: None
        self.on_told: Callable[[], None] = lambda: None
        self._loop = loop
        self._path = path
        self._lost_threshold_s = lost_threshold_s
        self._sessions = sessions
        self._on_left = on_left
        self._link: socket.socket | None = None
        self._is_fresh = True
        """Whether no master has told this process all that another one has left."""
        self._greeting: bytes | None = None
        self._is_greeted = False
        """Whether the master has answered on this connection: it may only wait in the queue of one that is dead."""
        self._news: dict[str, None] = {}
        """The ids of sessions that the master does not know yet, or that have ended, oldest first."""
        self._grace_s: float | None = None
        self._is_lost = False
        self._lost: Timer = loop.call_later(lost_threshold_s, self._lose)
        self._flush_again: Timer = loop.call_later(0, lambda: None)
        self._buffer = bytearray(MAX_FRAME_BYTES + 1)
        self._ping()

    @property
    def is_connected(self) -> bool:
        """Whether there is a master that listens."""
        return self._is_greeted

    @property
    def is_up_to_date(self) -> bool:
        """Whether a master has everything."""
        return self._is_greeted and not self._news

    def connect(self) -> None:
        """Connects now, or later if nobody listens."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            link.connect(str(self._path))
        except OSError:  # nobody listens, or the queue is full
            link.close()
            self._loop.call_later(RECONNECT_S, self.connect)
            return
        self._link = link
        init = {"t": "init", "name": NAME, "role": NAME, "version": __version__, "pid": os.getpid()}
        self._greeting = encode({**init, "lastCommandIdx": 0, "lastEventIdx": 0, "isFresh": self._is_fresh})
        self._news |= dict.fromkeys(self._sessions)  # also what another master has heard
        self._loop.add_edges(link, self._on_link)
        self._flush()

    def note(self, session: str) -> None:
        """Tells the master of a session that has begun or ended, now or later."""
        self._news[session] = None
        self._flush()

    def close(self) -> None:
        self._lost.cancel()
        self._drop()

    # The link

    def _on_link(self, events: int) -> None:
        if events & READABLE:
            self._read()
        self._flush()

    def _read(self) -> None:
        while self._link is not None:
            try:
                packet, fds = receive(self._link, self._buffer, FDS)
            except BlockingIOError:
                return
            except OSError as error:
                if isinstance(error, DescriptorsLost):  # those of a session that another one has left: all come again
                    self._is_fresh = True
                self._down(error.strerror or str(error))
                return
            if not packet:
                self._down("the master closed the connection")
                return
            try:
                self._take(decode(packet), fds)
            except ProtocolError as error:
                close_all(fds)
                self._down(str(error))
                return

    def _take(self, frame: Frame, fds: array[int]) -> None:
        match frame:
            case {"t": "init"}:
                self._is_fresh, self._is_greeted = False, True
                self._grace_s = None
                self._lost.cancel()
                if self._is_lost:
                    self._is_lost = False
                    log.warning("master_found")
                    self.on_found()
            case {"t": "park", "data": data} if len(fds) == FDS:
                self._on_left(ParkedSession.read(data), list(fds))
            case {"t": "command", "name": "detached", "data": data}:
                self._grace_s = float(data["graceS"])
            case {"t": "command", "name": name, "data": data}:
                self.on_command(name, data)
            case {"t": "close", "reason": reason}:
                self._down(reason)
            case _:
                raise ProtocolError(f"a {frame['t']} frame with {len(fds)} descriptors is not expected")

    def _down(self, reason: str) -> None:
        log.info("parking_link_down", reason=reason)
        self._drop()
        self._lost.cancel()
        limit_s = self._lost_threshold_s if self._grace_s is None else self._grace_s
        self._lost = self._loop.call_later(limit_s, self._lose)
        self._loop.call_later(RECONNECT_S, self.connect)

    def _drop(self) -> None:
        link, self._link = self._link, None
        self._is_greeted = False
        if link is not None:
            self._loop.remove(link)
            link.close()

    def _lose(self) -> None:
        self._is_lost = True
        log.error("master_lost", after_s=self._lost_threshold_s if self._grace_s is None else self._grace_s)
        self.on_lost()

    # What it says

    def _flush(self) -> None:
        """Writes what there is, as far as the master's buffer takes it."""
        link = self._link
        if link is None:
            return
        try:
            if self._greeting is not None:
                link.send(self._greeting)
                self._greeting = None
            while self._news:
                name = next(iter(self._news))
                session = self._sessions.get(name)
                if session is None:
                    link.send(encode({"t": "release", "session": name}))
                else:
                    socket.send_fds(link, [encode(session.parked.frame())], session.fds)
                del self._news[name]
            self.on_told()
        except OSError as error:  # it takes no more now; or it has ended, which is read behind what it has said
            if not isinstance(error, BlockingIOError | ConnectionError):  # too many descriptors are on their way
                log.warning("session_not_parked", reason=error.strerror or str(error))
                self._flush_again.cancel()
                self._flush_again = self._loop.call_later(RECONNECT_S, self._flush)

    def _ping(self) -> None:
        if self._link is not None and self._greeting is None:
            with suppress(OSError):  # the master does not read; or it has ended, which the reader sees
                self._link.send(encode({"t": "ping", "data": {"sessions": len(self._sessions)}}))
        self._loop.call_later(min(PING_S, self._lost_threshold_s / PINGS_WITHIN_THRESHOLD), self._ping)
