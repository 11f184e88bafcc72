"""Speaks Node's IPC over a Unix stream socket: JSON lines both ways, sockets only to Node."""

from __future__ import annotations

import array
import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import orjson

from pwgrid.common.errors import BrowserServerGone

Message = dict[str, Any]

_READ_BYTES: Final = 64 * 1024
_WHOLE_BYTES: Final = 32 * 1024
"""Up to this size the kernel takes a write whole or not at all (one socket buffer), so that a SIGKILL of this process
leaves no half line."""

_ANSWERS: Final = {"NODE_HANDLE_ACK", "NODE_HANDLE_NACK"}

_Line = tuple[bytes | memoryview, socket.socket | None, "asyncio.Future[None] | None"]
"""What is to be written, the socket that goes with it, and who waits for the answer to it."""


class NodeLink:
    """One end of a Node process's IPC, on the running loop. Node calls a socket that it gets a handle.

    `on_message` gets every message that is no answer about a handle; `on_end` is called once, when Node is gone.
    Neither may raise. Skips lines that do not parse: a successor may start in the middle of one.
    """

    def __init__(self, sock: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._incoming = bytearray()
        self._outgoing: deque[_Line] = deque()
        self._unanswered: deque[asyncio.Future[None]] = deque()
        self._barred_until: asyncio.Future[None] | None = None
        self._plain_bytes = 0
        """What was written since the last socket."""
        self._waits_for_room = False
        self._closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<NodeLink {state} unsent={len(self._outgoing)} unanswered={len(self._unanswered)}>"

    def send(self, message: Message) -> None:
        """Sends a message, now or when there is room. Does nothing once the link has ended."""
        if not self._closed:
            self._put(message, None, None)

    def send_handle(self, message: Message, handle: socket.socket) -> asyncio.Future[None]:
        """Sends a socket with its message. The future is done when Node has the socket, and fails with
        BrowserServerGone when the link ends first or Node did not get it.

        The caller keeps the socket open until then: a copy of it would need a descriptor, and none may be free.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._closed:
            future.set_exception(BrowserServerGone())
        else:
            self._put({"cmd": "NODE_HANDLE", "type": "net.Socket", "msg": message}, handle, future)
        return future

    def close(self) -> None:
        """Closes the socket; pending futures fail. Idempotent, does not call `on_end`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        pending = [*self._unanswered, *(future for _, _, future in self._outgoing if future is not None)]
        self._outgoing.clear()
        self._unanswered.clear()
        for future in pending:
            if not future.done():
                future.set_exception(BrowserServerGone())

    def drain(self) -> None:
        """Reads what has arrived, without waiting, when Node is known to be dead."""
        while not self._closed and self._read():
            pass

    # Writing

    def _put(self, message: Message, handle: socket.socket | None, future: asyncio.Future[None] | None) -> None:
        self._outgoing.append((orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE), handle, future))
        if len(self._outgoing) == 1:  # else it goes with what is before it
            self._flush()

    def _flush(self) -> None:
        """Writes as much as the kernel takes, up to a socket that is barred."""
        while self._outgoing:
            data, handle, future = self._outgoing[0]
            if future is not None and self._barred_until is not None:
                break
            self._outgoing.popleft()
            if future is not None:
                self._expect_answer(future, len(data))
            sent = self._transmit(data, handle)
            if sent < 0:
                return
            if handle is None:
                self._plain_bytes += sent
            if sent < len(data):
                rest = memoryview(data)[sent:]
                self._outgoing.appendleft((rest, None if sent else handle, None))  # it went with the first byte
                self._loop.add_writer(self._sock, self._flush)
                self._waits_for_room = True
                return
        if self._waits_for_room:
            self._loop.remove_writer(self._sock)
            self._waits_for_room = False

    def _expect_answer(self, future: asyncio.Future[None], line_bytes: int) -> None:
        # Node keeps one received socket until the line that it came with is complete, and a second one replaces it. So
        # after a line that Node may read in two pieces, further sockets are barred until it is answered.
        if line_bytes + self._plain_bytes > _WHOLE_BYTES:
            self._barred_until = future
        self._plain_bytes = 0
        self._unanswered.append(future)

    def _transmit(self, data: bytes | memoryview, handle: socket.socket | None) -> int:
        """How many bytes the kernel took; -1 when it takes no more: the link ends soon."""
        try:
            if handle is None:
                return self._sock.send(data)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle.fileno()]))]
            return self._sock.sendmsg([data], rights)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # Node may have said more before. It is read later: this may be called while a line of Node's is taken.
            self._loop.call_soon(self._end_after_what_is_left)
            return -1

    # Reading

    def _read(self) -> bool:
        """Reads once. Returns False when there was nothing, or the link has ended."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._incoming += data
        if b"\n" in data:
            *lines, rest = self._incoming.split(b"\n")
            self._incoming = rest
            for line in lines:
                self._take(line)
        return True

    def _take(self, line: bytearray) -> None:
        try:
            message = orjson.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            return
        if message.get("cmd") in _ANSWERS:
            self._answered(message["cmd"] == "NODE_HANDLE_ACK")
        elif not self._closed:
            self._on_message(message)

    def _answered(self, received: bool) -> None:
        if not self._unanswered:
            return  # an answer to this worker's dead predecessor
        future = self._unanswered.popleft()
        if not future.done():
            if received:
                future.set_result(None)
            else:
                future.set_exception(
                    BrowserServerGone("the browser server did not get the socket (too many open files?)")
                )
        if future is self._barred_until:
            self._barred_until = None
            self._flush()

    def _end_after_what_is_left(self) -> None:
        self.drain()
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._on_end()
