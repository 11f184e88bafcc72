"""Keeps the descriptors of forwarded sessions for the forwarder, so that no session ends with that process: a successor
gets all of them, and goes on in the middle of a frame."""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common.packet_sockets import DescriptorsLost, receive
from pwgrid.common.selectors_loop import READ, WRITE, Loop
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, ProtocolError, decode, encode
from pwgrid.control.frozen_peer import FrozenPeerDetector
from pwgrid.control.parked_session import FDS, ParkedSession

log = structlog.get_logger()

OWN_FDS: Final = 256
"""So many descriptors are left for all else that the master opens: links, listeners, files."""

AGAIN_S: Final = 0.05
"""How long to wait when more descriptors are on their way than the kernel allows."""

Parked = tuple[ParkedSession, tuple[int, ...]]


class ParkedSessions:
    """The parking place, and the link to the one forwarder there is. `on_silent` is called when nothing has come from
    it for `lost_s` seconds."""

    def __init__(self, loop: Loop, lost_s: Callable[[], float], on_silent: Callable[[], None]) -> None:
        self._loop = loop
        self._lost_s = lost_s
        self._on_silent = on_silent
        self._parked: dict[str, Parked] = {}
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._link: socket.socket | None = None
        self._buffer = bytearray(MAX_FRAME_BYTES + 1)
        self._is_full = False
        """Whether the last session found no room."""
        self._silence = FrozenPeerDetector(lost_s(), loop.now())
        self._silence_timer = loop.timer(self._check_silence)
        self._again = loop.timer(self._flush)

    @property
    def is_connected(self) -> bool:
        """Whether the forwarder is."""
        return self._link is not None

    def __len__(self) -> int:
        """How many sessions are parked."""
        return len(self._parked)

    @property
    def are_with_forwarder(self) -> bool:
        """Whether the forwarder has all that is parked, or nothing is."""
        return not self._parked or (self._link is not None and not self._unsent)

    def attach(self, link: socket.socket, init: bytes) -> None:
        """Take the forwarder's connection. One that is new gets all that is parked; any other one knows better, and
        parks everything anew. Raises ProtocolError."""
        is_fresh = decode(init).get("isFresh") is True
        self.drop_link()
        link.setblocking(False)
        self._link = link
        self.expect_within(self._lost_s())
        self._loop.add(link.fileno(), self._on_ready)
        self._unsent.append((encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0}), ()))
        if is_fresh:
            self._unsent.extend((encode(session.frame()), fds) for session, fds in self._parked.values())
        else:
            self.clear()
        self._flush()

    def tell(self, name: str, data: Frame) -> None:
        """Send the forwarder a command, if it is connected."""
        if self._link is not None:
            self._unsent.append((encode({"t": "command", "idx": 0, "name": name, "data": data}), ()))
            self._flush()

    def expect_within(self, lost_s: float) -> None:
        """Take the forwarder for silent when nothing comes within so many seconds; never, if that is infinity."""
        self._silence = FrozenPeerDetector(lost_s, self._loop.now())
        self._silence_timer.arm(self._silence.look_at)

    def drop_link(self) -> None:
        """Take what a forwarder has said before it ended, and close the link. Idempotent."""
        self.read_what_is_left()
        self._close_link()

    def read_what_is_left(self) -> None:
        """Take all that the forwarder has said so far; its end, too."""
        while self._link is not None and self._read_once():
            pass

    def clear(self) -> None:
        """Let go of everything that is parked."""
        for name in list(self._parked):
            self._release(name)

    def close(self) -> None:
        """End the link, and let go of everything: the sessions end, unless a forwarder has them. Idempotent."""
        self._close_link()
        self.clear()

    # What comes

    def _on_ready(self) -> None:
        self.read_what_is_left()
        self._flush()

    def _read_once(self) -> bool:
        assert self._link is not None
        try:
            packet, fds = receive(self._link, self._buffer, FDS)
        except BlockingIOError:
            return False
        except DescriptorsLost as error:
            log.error("session_not_parked", reason=error.strerror)
            return True
        except OSError as error:
            self._down(error.strerror or str(error))
            return False
        if not packet:
            self._down("closed by the forwarder")
            return False
        self._silence.heard(self._loop.now())
        try:
            self._take(decode(packet), fds)
        except ProtocolError as error:
            for fd in fds:
                os.close(fd)
            self._down(str(error))
            return False
        return True

    def _take(self, frame: Frame, fds: array[int]) -> None:
        match frame:
            case {"t": "park", "data": data} if len(fds) == FDS:
                self._park(ParkedSession.read(data), tuple(fds))
            case {"t": "release", "session": name} if not fds:
                self._release(name)
            case {"t": "ping"} if not fds:
                pass
            case _:
                raise ProtocolError(f"a {frame['t']} frame with {len(fds)} descriptors is not expected")

    def _park(self, session: ParkedSession, fds: tuple[int, ...]) -> None:
        self._release(session.session)
        if len(self._parked) >= room():
            if not self._is_full:
                log.error("session_not_parked", reason="too few descriptors are free", parked=len(self._parked))
            self._is_full = True
            for fd in fds:
                os.close(fd)
            return
        self._is_full = False
        self._parked[session.session] = (session, fds)

    def _release(self, name: str) -> None:
        _, fds = self._parked.pop(name, (None, ()))
        for fd in fds:
            os.close(fd)

    # What is said

    def _flush(self) -> None:
        """Write what there is, as far as the forwarder's buffer takes it."""
        link = self._link
        if link is None:
            return
        wanted = READ
        while self._unsent:
            packet, fds = self._unsent[0]
            try:
                socket.send_fds(link, [packet], fds) if fds else link.send(packet)
            except BlockingIOError:
                wanted = READ | WRITE
                break
            except ConnectionError:
                break  # the reader will see the end, after what the forwarder has said before it
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    log.error("parking_link_failed", reason=error.strerror or str(error))
                self._again.arm(self._loop.now() + AGAIN_S)
                break
            self._unsent.popleft()
        self._loop.want(link.fileno(), wanted)

    def _check_silence(self) -> None:
        if self._silence.is_over(self._loop.now()):
            self._silence_timer.cancel()
            self._on_silent()
        else:
            self._silence_timer.arm(self._silence.look_at)

    def _down(self, reason: str) -> None:
        self._close_link()
        log.debug("parking_link_down", reason=reason)

    def _close_link(self) -> None:
        link, self._link = self._link, None
        self._unsent.clear()
        self._again.cancel()
        if link is not None:
            self._loop.remove(link.fileno())
            link.close()


def room() -> int:
    """How many sessions can be parked under the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, (sys.maxsize if soft == resource.RLIM_INFINITY else soft) - OWN_FDS) // FDS
