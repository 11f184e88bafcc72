"""The load client: raw sockets, no library, in a process of its own so that its CPU is not anybody else's.

Run as `python -m bench.client`; reads one JSON order a line, answers one JSON line. `Client` is the other end of that.
A target is [host, port, path]; over TLS it has a fourth part, the file of the authority to trust.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.support import raw
from tests.support.raw import STALL_S, Opcode, frame, upgrade

ROOT = Path(__file__).resolve().parents[1]

Target = tuple[str, int, str] | tuple[str, int, str, str]

WITH_WINDOW = "launch-options=%7B%22headless%22%3Afalse%7D"
"""The query of an endpoint whose clients want a browser with a window."""


def head(target: Target, playwright_version: str, *, compression: bool = True) -> bytes:
    """What Playwright's own client sends (node's `ws`); it offers compression."""
    host, port, path = target[:3]
    return raw.head(
        target=path,
        Host=f"{host}:{port}",
        User_Agent=f"Playwright/{playwright_version} (x64; debian 12) python/3.11",
        x_playwright_browser="chromium",
        x_playwright_proxy="",
        Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits" if compression else None,
    )


class ClientProcess:
    """A module of bench as a client in a process, and a process group, of its own: it hears and says lines,
    until the end of the block."""

    def __init__(
        self, module: str, *arguments: str, stderr: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{module}", *arguments],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def tell(self, line: str) -> None:
        """One line to it."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def said(self, within_s: float | None = None) -> str | None:
        """The next line from it, "" at its end; None when it says nothing for so long."""
        if not select.select([self._stdout], [], [], within_s)[0]:
            return None
        return self._stdout.readline()

    def signal(self, signum: int) -> None:
        """To the whole group."""
        os.killpg(self.pid, signum)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends it, and with it every connection that it holds."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Client(ClientProcess):
    """The load client's process, driven from the bench."""

    def __init__(self, playwright_version: str) -> None:
        super().__init__("client", playwright_version)

    def order(self, do: str, **arguments: Any) -> Any:
        """One order and its answer. Raises RuntimeError with the client's own words when it failed."""
        self.tell(json.dumps({"do": do, **arguments}))
        answer = json.loads(self.said() or '{"error": "the client ended"}')
        if "error" in answer:
            raise RuntimeError(f"load client: {answer['error']}")
        return answer["ok"]


# What runs in the client's process


_INITIALIZE = json.dumps(
    {"id": 1, "guid": "", "method": "initialize", "params": {"sdkLanguage": "python"}, "metadata": {"wallTime": 0}}
).encode()


def latency(targets: list[Target], count: int, pauses_ms: list[float], seed: int) -> list[list[list[float]]]:
    """`count` clients of each target, one at a time and in random order, with random pauses between them.

    For each target and client: milliseconds from connect() to the complete 101, and to the answer to `initialize`.
    """
    order = [*range(len(targets))] * count
    chance = random.Random(seed)
    chance.shuffle(order)
    requests = [head(target, sys.argv[1], compression=False) for target in targets]
    clock = time.perf_counter
    found: list[list[list[float]]] = [[] for _ in targets]
    for each in order:
        time.sleep(chance.uniform(*pauses_ms) / 1000)
        started = clock()
        sock = upgrade(targets[each][:2], requests[each])
        upgraded = clock()
        initialize(sock)
        found[each].append([(upgraded - started) * 1000, (clock() - started) * 1000])
        sock.close()
    return found


def opened(target: Target) -> socket.socket:
    """A connection that has its 101. Raises OSError otherwise."""
    request = head(target, sys.argv[1])
    if len(target) == 3:
        return upgrade((target[0], target[1]), request)
    sock: socket.socket = socket.create_connection((target[0], target[1]), STALL_S)
    try:
        sock = _trusting(target[3]).wrap_socket(sock, server_hostname="localhost")
        sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer and (chunk := sock.recv(4096)):
            answer += chunk
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise OSError(f"no upgrade: {answer[:300]!r}")
    except BaseException:
        sock.close()
        raise
    return sock


@cache
def _trusting(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def first_answers(targets: list[Target], count: int, pauses_ms: list[float], seed: int) -> list[list[float]]:
    """For each target `count` times milliseconds from connect() to the answer to a first message of 100 bytes; one
    client at a time, in random order, with random pauses between them."""
    order = [*range(len(targets))] * count
    chance = random.Random(seed)
    chance.shuffle(order)
    found: list[list[float]] = [[] for _ in targets]
    message, answer = frame(bytes(100)), memoryview(bytearray(_answer_bytes(100)))
    for each in order:
        time.sleep(chance.uniform(*pauses_ms) / 1000)
        started = time.perf_counter()
        with opened(targets[each]) as sock:
            _echo(sock, message, answer)
            found[each].append((time.perf_counter() - started) * 1000)
    return found


def served(target: Target, request: bytes) -> socket.socket:
    """A connection whose browser server has answered `initialize`. Raises OSError otherwise."""
    sock = upgrade(target[:2], request)
    try:
        initialize(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def initialize(sock: socket.socket) -> None:
    """Sends what Playwright's client does behind its handshake, and returns, as its user's `connect()`, once the answer
    is there; the objects that it makes come before it."""
    sock.sendall(frame(_INITIALIZE, Opcode.TEXT))
    received = b""
    while b'{"id":1,' not in received:
        chunk = sock.recv(65536)
        if not chunk:
            raise OSError(f"no answer to initialize: {received[-300:]!r}")
        received = received[-16:] + chunk


class _Burst:
    """`count` connects, `at_once` of them under way all the time."""

    def __init__(self, target: Target, count: int, at_once: int) -> None:
        self.address = (target[0], target[1])
        self.request = head(target, sys.argv[1])
        self.left = count
        self.at_once = at_once
        self.open: dict[int, tuple[socket.socket, float]] = {}
        self.poll = select.epoll()
        self.taken: list[float] = []
        self.failures: list[str] = []

    def start(self) -> None:
        self.left -= 1
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.open[sock.fileno()] = (sock, time.perf_counter())
        sock.connect_ex(self.address)
        try:
            sock.send(self.request)  # on loopback the connection is mostly there by now
        except BlockingIOError:
            self.poll.register(sock, select.EPOLLOUT)
        else:
            self.poll.register(sock, select.EPOLLIN)

    def run(self) -> float:
        started = time.perf_counter()
        for _ in range(min(self.at_once, self.left)):
            self.start()
        while self.open:
            events = self.poll.poll(STALL_S)
            if not events:
                raise OSError(f"{len(self.open)} upgrades without an answer for {STALL_S:g} s")
            for fd, event in events:
                self.step(fd, event)
        self.poll.close()
        return time.perf_counter() - started

    def step(self, fd: int, event: int) -> None:
        sock, started = self.open[fd]
        if event == select.EPOLLOUT:
            sock.send(self.request)
            self.poll.modify(fd, select.EPOLLIN)
            return
        try:
            answer = sock.recv(4096)
        except ConnectionError as error:
            answer = repr(error).encode()
        # One segment carries the whole answer here; a split one would show as a failure, not as a false success.
        if answer.startswith(b"HTTP/1.1 101") and b"\r\n\r\n" in answer:
            self.taken.append((time.perf_counter() - started) * 1000)
        else:
            self.failures.append(answer[:200].decode("latin-1"))
        del self.open[fd]
        sock.close()
        if self.left:
            self.start()


def burst(target: Target, count: int, at_once: int) -> dict[str, Any]:
    """Connects per second and each one's milliseconds at a steady number under way; failures are told."""
    each = _Burst(target, count, at_once)
    seconds = each.run()
    return {"seconds": seconds, "ms": each.taken, "failures": each.failures}


def _answer_bytes(size: int) -> int:
    return size + (2 if size < 126 else 4 if size < 65536 else 10)


def _echo(sock: socket.socket, message: bytes, into: memoryview) -> None:
    sock.sendall(message)
    got = 0
    while got < len(into):
        n = sock.recv_into(into[got:])
        if not n:
            raise OSError("the server ended the session")
        got += n


def traffic(targets: list[Target], rounds: int, pings: int, messages: int) -> list[dict[str, list[float]]]:
    """For each target: by round, the median microseconds of 100-byte round trips and MiB/s of 1 MiB echoes."""
    links = []
    for target in targets:
        sock = opened(target)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        links.append(sock)
    small, large = frame(bytes(100)), frame(bytes(1 << 20))
    small_answer, large_answer = (
        memoryview(bytearray(_answer_bytes(100))),
        memoryview(bytearray(_answer_bytes(1 << 20))),
    )
    found: list[dict[str, list[float]]] = [{"us": [], "mib_s": []} for _ in links]
    clock = time.perf_counter
    for number in range(rounds + 1):
        for turn in range(len(links)):
            index = (turn + number) % len(links)
            sock = links[index]
            trips = []
            for _ in range(pings):
                started = clock()
                _echo(sock, small, small_answer)
                trips.append(clock() - started)
            started = clock()
            for _ in range(messages):
                _echo(sock, large, large_answer)
            seconds = clock() - started
            if number:  # the first round warms up
                found[index]["us"].append(sorted(trips)[len(trips) // 2] * 1e6)
                found[index]["mib_s"].append(messages / seconds)
    for sock in links:
        sock.close()
    return found


_held: list[socket.socket] = []


def hold(target: Target, count: int) -> int:
    """Opens sessions and keeps them; returns how many are held now."""
    request = head(target, sys.argv[1])
    _held.extend(upgrade(target[:2], request) for _ in range(count))
    return len(_held)


def drop() -> int:
    """Closes what is held."""
    for sock in _held:
        sock.close()
    dropped = len(_held)
    _held.clear()
    return dropped


class _Line:
    """Clients of one target: those that have sessions, and those in line for one."""

    def __init__(self, target: Target) -> None:
        self.address = (target[0], target[1])
        self.request = head(target, sys.argv[1], compression=False)
        self.live: deque[socket.socket] = deque()
        self.waiting: dict[int, socket.socket] = {}
        self.poll = select.epoll()

    def join(self) -> None:
        sock = socket.create_connection(self.address)
        sock.sendall(self.request)
        self.waiting[sock.fileno()] = sock
        self.poll.register(sock, select.EPOLLIN)

    def next_served(self) -> None:
        """Returns once one of them has its 101. Raises OSError with the answer otherwise."""
        events = self.poll.poll(STALL_S, 1)
        if not events:
            raise OSError(f"none of {len(self.waiting)} in line was answered for {STALL_S:g} s")
        ((fd, _),) = events
        answer = self.waiting[fd].recv(4096)
        if not answer.startswith(b"HTTP/1.1 101"):
            raise OSError(f"no upgrade: {answer[:300]!r}")
        self.poll.unregister(fd)
        self.live.append(self.waiting.pop(fd))

    def free(self) -> float:
        """One session ends; milliseconds until the next client has its 101."""
        leaving = self.live.popleft()
        started = time.perf_counter()
        leaving.close()
        self.next_served()
        return (time.perf_counter() - started) * 1000


_lines: dict[Target, _Line] = {}


def join(target: Target, served: int, waiting: int) -> None:
    """So many clients get sessions, and so many more stand in line behind them."""
    line = _lines[target] = _Line(target)
    for _ in range(served):
        line.join()
        line.next_served()
    for _ in range(waiting):
        line.join()


def free(
    targets: list[Target], free_target: Target, count: int, pauses_ms: list[float]
) -> list[list[tuple[float, float]]]:
    """In turns between the targets, with random pauses: a session ends, the next in line gets its slot, and another
    client comes. For each target the milliseconds from the close to the 101, and when that had come, in Unix seconds;
    last those of a plain connect to `free_target`, which has free slots."""
    found: list[list[tuple[float, float]]] = [[] for _ in (*targets, free_target)]
    request = head(free_target, sys.argv[1], compression=False)
    for _ in range(count):
        for each, target in enumerate(targets):
            time.sleep(random.uniform(*pauses_ms) / 1000)
            found[each].append((_lines[target].free(), time.time()))
            _lines[target].join()
        time.sleep(random.uniform(*pauses_ms) / 1000)
        started = time.perf_counter()
        sock = upgrade(free_target[:2], request)
        found[-1].append(((time.perf_counter() - started) * 1000, time.time()))
        sock.close()
    return found


_ORDERS: dict[str, Callable[..., Any]] = {
    "join": join,
    "free": free,
    "latency": latency,
    "burst": burst,
    "first_answers": first_answers,
    "traffic": traffic,
    "hold": hold,
    "drop": drop,
}


def main() -> None:
    """Serves orders until its input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        arguments = {name: _target(value) for name, value in order.items() if name != "do"}
        try:
            answer = {"ok": _ORDERS[order["do"]](**arguments)}
        except OSError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _target(value: Any) -> Any:
    """JSON has no tuples: a target comes as a list."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [tuple(each) for each in value]
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
