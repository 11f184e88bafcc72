"""Hands accepted sockets to workers over their handoff sockets. Chooses no worker, answers no client."""

import array
import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

HANDOFF_TIMEOUT_S: Final = 2.0
"""After it the worker refuses the offer as late and the proxy takes another worker."""

_ANSWER_BYTES: Final = 4096
_LATE_ANSWER_S: Final = 0.25
_DATA_SEGS_OUT: Final = 156


class HandoffFailed(Exception):
    """The worker did not take the session: its own word (`draining`, `full`, `late`), or what befell the link."""

    def __init__(self, reason: str, *, in_doubt: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.in_doubt = in_doubt
        """Nobody said no: a browser server may have the socket all the same."""


class HandoffLink:
    """One SEQPACKET connection to a worker. A packet is a line (session, deadline, client), the rewritten head, and the
    socket itself.

    `on_freed` is called when the worker says that it was full and has a slot again.
    """

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, on_freed: Callable[[], None]) -> None:
        self._loop = loop
        self._on_freed = on_freed
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._sock.connect(str(path))
        except OSError:
            self._sock.close()
            raise
        self._unsent: deque[tuple[str, bytes, int]] = deque()
        self._pending: dict[str, asyncio.Future[None]] = {}
        self.closed = False
        loop.add_reader(self._sock, self._read_answers)

    def __repr__(self) -> str:
        return f"<HandoffLink pending={len(self._pending)} unsent={len(self._unsent)} closed={self.closed}>"

    def send(self, session_id: str, packet: bytes, fd: int) -> asyncio.Future[None]:
        """Sends the packet with the socket `fd`, which must stay open until the future is done.

        The future ends with None once the browser server has the socket, else with HandoffFailed.
        """
        answer: asyncio.Future[None] = self._loop.create_future()
        self._pending[session_id] = answer
        self._unsent.append((session_id, packet, fd))
        if len(self._unsent) == 1:
            self._write()
        return answer

    def forget(self, session_id: str) -> None:
        """The caller no longer waits for this answer, and may close the socket: a packet not sent yet stays here."""
        self._pending.pop(session_id, None)
        if self._unsent:
            self._unsent = deque(each for each in self._unsent if each[0] != session_id)

    def close(self, reason: str) -> None:
        """Ends the link and fails what is pending with `reason`."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._unsent.clear()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(HandoffFailed(reason, in_doubt=True))
        self._pending.clear()

    def _write(self) -> None:
        while self._unsent:
            _, packet, fd = self._unsent[0]
            try:
                self._sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._write)
                return
            except OSError as error:
                self.close(f"the worker is gone ({error.strerror})")
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    def _read_answers(self) -> None:
        while not self.closed:
            try:
                packet = self._sock.recv(_ANSWER_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(f"the worker is gone ({error.strerror})")
                return
            if not packet:
                self.close("the worker is gone")
                return
            self._settle(json.loads(packet))

    def _settle(self, message: dict[str, object]) -> None:
        if "freed" in message:
            self._on_freed()
            return
        answer = self._pending.pop(str(message["session"]), None)
        if answer is None or answer.done():
            return
        if message["ok"]:
            answer.set_result(None)
        else:
            reason = str(message["reason"])
            answer.set_exception(HandoffFailed(reason, in_doubt=reason == "gone"))


class Handoffs:
    """The links to all workers, opened at the first session of each.

    `on_freed(worker_id)`: a full worker has a slot again. `on_silent(worker_id)`: it did not answer in time.
    """

    def __init__(self, runtime: Path, on_freed: Callable[[str], None], on_silent: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._on_silent = on_silent
        self._on_freed = on_freed
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, HandoffLink] = {}

    async def hand_over(self, worker_id: str, session_id: str, client: str, head: bytes, fd: int) -> None:
        """Moves the socket `fd` to the worker. Raises HandoffFailed; the socket is then still ours alone."""
        link = self._link(worker_id)
        packet = f"{session_id} {time.monotonic() + HANDOFF_TIMEOUT_S:.6f} {client}\n".encode() + head
        answer = link.send(session_id, packet, fd)
        try:
            # The worker's deadline is the shorter one, so that it never takes a socket that we have given up on.
            async with asyncio.timeout(HANDOFF_TIMEOUT_S + _LATE_ANSWER_S):
                await answer
        except TimeoutError:
            # The link stays: later offers on it have deadlines of their own. To fail them now would give their clients
            # to another worker while this one may still wake up and take them.
            self._on_silent(worker_id)
            raise HandoffFailed("the worker does not answer", in_doubt=True) from None
        finally:
            link.forget(session_id)

    def drop(self, worker_id: str, reason: str) -> None:
        """Closes the link to a worker; what waits on it fails with `reason`."""
        if link := self._links.pop(worker_id, None):
            link.close(reason)

    def close(self) -> None:
        """Closes all links."""
        for worker_id in list(self._links):
            self.drop(worker_id, "the proxy is stopping")

    def _link(self, worker_id: str) -> HandoffLink:
        link = self._links.get(worker_id)
        if link is None or link.closed:
            try:
                path = self._runtime / "w" / worker_id / "handoff.sock"
                link = HandoffLink(path, self._loop, lambda: self._on_freed(worker_id))
            except OSError as error:
                self._links.pop(worker_id, None)
                raise HandoffFailed(f"the worker is gone ({error.strerror})") from None
            self._links[worker_id] = link
        return link


def is_answered(sock: socket.socket) -> bool:
    """Whether data was sent on this connection, by us or by any process that has a copy of the socket.

    The kernel counts it (tcpi_data_segs_out of struct tcp_info in linux/tcp.h, since 4.6). False for Unix sockets.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGS_OUT + 4)
    except OSError:
        return False
    return len(info) >= _DATA_SEGS_OUT + 4 and struct.unpack_from("I", info, _DATA_SEGS_OUT)[0] > 0


def tune(listener: socket.socket, ping_timeout_s: float) -> None:
    """Sets what finds a dead peer in the kernel: no delay, keepalive, and a bound on unacknowledged data.

    Accepted sockets inherit it all from the listener (tcp(7)), so that no upgrade pays for six system calls.
    Playwright itself never notices a client whose host or cable is gone. 0 leaves the kernel's defaults.
    """
    with contextlib.suppress(OSError):  # a listening Unix socket, from systemd, has none of these
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ping_timeout_s <= 0:
            return
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(ping_timeout_s / 3)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(ping_timeout_s / 6)))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, int(ping_timeout_s * 1000)))
