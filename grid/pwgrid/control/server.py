"""The master's control socket: passes on operators' requests and reconnects of children, and answers them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.errors import system_error
from pwgrid.common.packet_sockets import DescriptorsLost, receive
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame, ProtocolError, decode, encode, to_json

log = structlog.get_logger()

MAX_VISITORS: Final = 64
REPLY_BUFFER_BYTES: Final = 1 << 20
MAX_FDS: Final = 16
_BACKLOG: Final = 1024
SHORTAGE_S: Final = 0.2
"""How long it accepts nobody when no descriptor is free: the listener stays readable, so the loop would not wait."""
_PEERCRED: Final = struct.Struct("3i")


class Deferred:
    """An answer that is not known yet: the visitor waits, the master does not."""

    def __init__(self) -> None:
        self._then: Callable[[Frame], None] | None = None
        self._answer: Frame | None = None

    def reply(self, data: Frame) -> None:
        """Answer with `data`."""
        self._settle({"t": "reply", "data": data})

    def refuse(self, sentence: str) -> None:
        """Answer with an error; `sentence` says what is wrong."""
        self._settle({"t": "error", "error": sentence})

    def when_known(self, then: Callable[[Frame], None]) -> None:
        """Call `then` with the answer's frame, now or later."""
        self._then = then
        if self._answer is not None:
            then(self._answer)

    def _settle(self, answer: Frame) -> None:
        self._answer = answer
        if self._then is not None:
            self._then(answer)


Request = Callable[[Frame], "Frame | Deferred"]
"""Answers a request's data. Raises ValueError with the sentence to answer instead. An error of the operating system is
logged and answered as such, any other exception as a bug: neither ends a session."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """A child's new connection. `name` is what the child says, `pid` what the kernel says; `init` is its first packet,
    and `sockets` are those that came with it."""

    name: str
    pid: int
    sock: socket.socket
    init: bytes
    sockets: list[socket.socket]


class ControlServer:
    """Listens on `path`; `listener` is a socket that listens there already. `on_reconnect` returns whether it took over
    a child's connection, and with it all sockets."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        requests: Mapping[str, Request],
        on_reconnect: Callable[[Reconnect], bool],
        listener: socket.socket | None = None,
    ) -> None:
        self._loop = loop
        self._path = path
        self._requests = requests
        self._on_reconnect = on_reconnect
        self._visitors: dict[int, socket.socket] = {}
        self._is_inherited = listener is not None
        self._is_short = False
        """Whether no connection could be accepted the last time."""
        self._accepts_again = loop.timer(self._listen)
        self._listener = listener or socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )

    @property
    def fd(self) -> int:
        """The listening descriptor, which this process keeps when it executes itself."""
        return self._listener.fileno()

    def open(self) -> None:
        """Start to listen. Raises OSError."""
        if self._is_inherited:
            self._listener.setblocking(False)
        else:
            self._listener.bind(str(self._path))
            self._listener.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        """Stop listening and close all connections."""
        for sock in list(self._visitors.values()):
            self._disconnect(sock)
        self._accepts_again.cancel()
        self._loop.remove(self._listener.fileno())
        self._listener.close()

    def _listen(self) -> None:
        self._loop.add(self._listener.fileno(), self._on_connect)

    def _on_connect(self) -> None:
        for _ in range(MAX_VISITORS):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is free, or no memory
                self._wait_for_descriptors(error)
                return
            self._is_short = False
            self._admit(sock)

    def _wait_for_descriptors(self, error: OSError) -> None:
        """Accept nobody for SHORTAGE_S; who connects waits in the listener's queue. Logged once for each shortage."""
        if not self._is_short:
            log.error("control_accept_failed", reason=error.strerror or str(error))
        self._is_short = True
        self._loop.remove(self._listener.fileno())
        self._accepts_again.arm(self._loop.now() + SHORTAGE_S)

    def _admit(self, sock: socket.socket) -> None:
        pid, uid = _peer(sock)
        if uid not in (os.geteuid(), 0):
            log.warning("foreign_peer_refused", pid=pid, uid=uid)
            sock.close()
            return
        if len(self._visitors) >= MAX_VISITORS:
            self._disconnect(next(iter(self._visitors.values())))  # the one that has been here longest
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REPLY_BUFFER_BYTES)
        self._visitors[sock.fileno()] = sock
        self._loop.add(sock.fileno(), lambda: self._on_packet(sock))
        self._on_packet(sock)  # at once: more children than there are visitors may come back to a new master together

    def _on_packet(self, sock: socket.socket) -> None:
        try:
            packet, fds = receive(sock, bytearray(MAX_FRAME_BYTES + 1), MAX_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            if isinstance(error, DescriptorsLost):  # a child comes again, with all of them
                log.error("control_accept_failed", reason=error.strerror)
            self._disconnect(sock)
            return
        sockets = _sockets(fds)
        try:
            if not packet:
                self._disconnect(sock)
                return
            frame = decode(packet)
            if frame["t"] == "init":
                self._forget(sock)
                pid, _ = _peer(sock)
                if self._on_reconnect(Reconnect(str(frame.get("name")), pid, sock, packet, sockets)):
                    sockets = []
                else:
                    log.warning("reconnect_refused", pid=pid, name=frame.get("name"))
                    self._write(sock, encode({"t": "close", "reason": "this master has no such child"}))
                    sock.close()
            elif frame["t"] == "request":
                self._answer(sock, frame)
            else:
                raise ProtocolError(f"a {frame['t']} frame opens no conversation here")
        except ProtocolError as error:
            log.warning("control_socket_protocol_error", pid=_peer(sock)[0], reason=str(error))
            self._disconnect(sock)
        finally:
            for each in sockets:
                each.close()

    def _answer(self, sock: socket.socket, frame: Frame) -> None:
        handler = self._requests.get(frame["name"])
        try:
            if handler is None:
                raise ValueError(f"the master knows no request {frame['name']!r:.40}")
            answer = handler(frame["data"])
            if isinstance(answer, Deferred):
                answer.when_known(lambda reply: self._reply(sock, to_json(reply)))
                return
            packet = to_json({"t": "reply", "data": answer})
        except ValueError as error:
            packet = to_json({"t": "error", "error": str(error)})
        except Exception as error:  # the grid goes on
            log.exception("request_failed", name=frame["name"])
            packet = to_json({"t": "error", "error": f"{_cause(error)}; its log has more (request_failed)"})
        self._reply(sock, packet)

    def _reply(self, sock: socket.socket, packet: bytes) -> None:
        """A reply may be larger than the frames of a link: a status names every worker."""
        if self._visitors.get(sock.fileno()) is not sock:
            return  # the visitor left before its answer was known
        if not self._write(sock, packet):
            self._disconnect(sock)

    def _write(self, sock: socket.socket, packet: bytes) -> bool:
        """Returns False when the peer's buffer has no room for it: the master waits for nobody."""
        try:
            sock.send(packet)
        except ConnectionError as error:  # it is gone; the reader sees that behind what it has asked before
            log.debug("control_reply_failed", reason=str(error))
        except OSError as error:
            log.debug("control_reply_failed", reason=str(error))
            return False
        return True

    def _forget(self, sock: socket.socket) -> None:
        self._visitors.pop(sock.fileno(), None)
        self._loop.remove(sock.fileno())

    def _disconnect(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()


def _sockets(fds: Sequence[int]) -> list[socket.socket]:
    """The descriptors that a child sent, as sockets. Other descriptors are closed."""
    found = []
    for fd in fds:
        try:
            found.append(socket.socket(fileno=fd))
        except OSError:
            os.close(fd)
    return found


def _cause(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"the master cannot do that: {system_error(error)}"
    return f"a bug in the master: {error!r:.200}"


def _peer(sock: socket.socket) -> tuple[int, int]:
    pid, uid, _ = _PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    return pid, uid
