"""What stands around a forwarder in tests: a stand-in for the proxy, which offers it clients over its socket, and plain
TCP servers in the place of another host's proxy. So these tests are about the forwarder and the master alone."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.grid import eventually

BOUND_S: Final = 60.0
"""Bounds a failure; nothing is meant to take this long."""

SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
HEAD: Final = "GET /forwarded/0123 HTTP/1.1\r\nHost: elsewhere\r\nUpgrade: websocket\r\n\r\n"


class OtherHost:
    """A listener in the place of another host's proxy. The test itself answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(BOUND_S)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> OtherHost:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def accept(self, early: str = "") -> socket.socket:
        """The next connection, whose head, and what the client has sent early, were read."""
        sock, _ = self._listener.accept()
        sock.settimeout(BOUND_S)
        assert received(sock, len(HEAD) + len(early)) == (HEAD + early).encode("latin-1")
        return sock


class StandInProxy:
    """Accepts clients, and offers them to a forwarder over one link."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._front = socket.create_server(("127.0.0.1", 0))
        self._count = 0
        self.link = self._connect()

    def __enter__(self) -> StandInProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._front.close()
        self.link.close()

    def _connect(self) -> socket.socket:
        """Waits for a forwarder that listens."""

        def try_it() -> socket.socket | None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.settimeout(BOUND_S)
            try:
                link.connect(str(self._path))
            except OSError:
                link.close()
                return None
            return link

        link: socket.socket = eventually(try_it, "the forwarder listens")
        return link

    def reconnect(self) -> None:
        """As a proxy does whose forwarder has a successor."""
        self.link.close()
        self.link = self._connect()

    def client(self) -> tuple[socket.socket, socket.socket]:
        """A client, and the proxy's socket for it."""
        client = socket.create_connection(self._front.getsockname(), timeout=BOUND_S)
        accepted, _ = self._front.accept()
        return client, accepted

    def offer(self, accepted: socket.socket, to: tuple[str, int], **changes: Any) -> str:
        """Offers a client and lets go of its socket. Returns the session's id."""
        self._count += 1
        session = f"session-{self._count}"
        said = {"session": session, "deadline": time.monotonic() + 2, "to": to, "head": HEAD, "early": "", "limit": 2}
        with accepted:
            socket.send_fds(self.link, [json.dumps({**said, **changes}).encode()], [accepted.fileno()])
        return session

    def answer(self) -> dict[str, Any]:
        """The next packet that the forwarder sends."""
        said: dict[str, Any] = json.loads(self.link.recv(4096))
        return said

    def forwarded(self, host: OtherHost) -> tuple[socket.socket, socket.socket]:
        """A forwarded session: its client, and its connection at the other host."""
        client, accepted = self.client()
        session = self.offer(accepted, ("127.0.0.1", host.port))
        served = host.accept()
        served.sendall(SWITCHING)
        answer = self.answer()
        assert (answer["session"], answer["refused"]) == (session, None), answer
        assert received(client, len(SWITCHING)) == SWITCHING
        return client, served


def received(sock: socket.socket, size: int) -> bytes:
    """So many bytes of it, or all until its end."""
    got = b""
    while len(got) < size and (chunk := sock.recv(size - len(got))):
        got += chunk
    return got


def goes_both_ways(one: socket.socket, other: socket.socket) -> bool:
    """Whether each hears what the other one says now."""
    for says, hears in ((one, other), (other, one)):
        words = random.randbytes(100)
        says.sendall(words)
        if received(hears, len(words)) != words:
            return False
    return True


def is_over(sock: socket.socket) -> bool:
    """Waits for its end, by FIN or reset."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


class Stream:
    """Random bytes that a thread sends on one socket, and that another one receives on the other: what each has seen of
    them, as a digest. `on_received` is called with the number of bytes so far."""

    def __init__(self, says: socket.socket, hears: socket.socket, size: int, seed: int) -> None:
        self._says, self._hears, self._size, self._seed = says, hears, size, seed
        self.sent, self.got = hashlib.blake2b(), hashlib.blake2b()
        self.received = 0
        self.failures: list[BaseException] = []
        self.progress = threading.Condition()
        self._threads = [threading.Thread(target=self._noting, args=(work,)) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def reaches(self, size: int) -> None:
        """Returns once so many bytes have been received, or it has failed."""
        with self.progress:
            assert self.progress.wait_for(lambda: self.received >= size or self.failures, BOUND_S)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(BOUND_S)
        assert not self.failures, self.failures
        assert self.received == self._size
        assert self.sent.digest() == self.got.digest()

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells
            self.failures.append(error)
        with self.progress:
            self.progress.notify_all()

    def _send(self) -> None:
        chance, left = random.Random(self._seed), self._size
        while left:
            chunk = chance.randbytes(min(left, chance.choice((1, 100, 4096, 65536, 1 << 20))))
            self._says.sendall(chunk)
            self.sent.update(chunk)
            left -= len(chunk)

    def _receive(self) -> None:
        buffer = memoryview(bytearray(1 << 18))
        while self.received < self._size and (size := self._hears.recv_into(buffer)):
            self.got.update(buffer[:size])
            with self.progress:
                self.received += size
                self.progress.notify_all()


@contextmanager
def stream_between(one: socket.socket, other: socket.socket, size: int) -> Iterator[tuple[Stream, Stream]]:
    """Random bytes both ways at once; at the end of the block all of them have arrived as they were sent."""
    streams = Stream(one, other, size, 1), Stream(other, one, size, 2)
    yield streams
    for stream in streams:
        stream.join()
