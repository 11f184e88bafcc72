"""The clients of a chaos run: raw ones in threads, Playwright ones in processes; each tells how it was served.

Run as `python -m bench.chaos_clients ENDPOINT PATIENCE` it is a Playwright client that lives a session for each line
it reads.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
from playwright.sync_api import Browser, Error, Playwright

from bench.client import ClientProcess, Target, head
from tests.support.load import CLICK, PAGE
from tests.support.raw import GOODBYE, STALL_S, Opcode, frame, reset_at_close

CDP = "/devtools/browser"
"""The path of an endpoint whose clients speak CDP, leave now and then, and come back to the same browser."""
KEEP_S = 5.0

SESSION_S = 6.0
"""No session is longer, so that none outlasts a drain."""


@dataclass(slots=True)
class Life:
    """One session, or the attempt to have one."""

    port: int | None = None
    """The client's own TCP port; None where a driver process has the socket."""
    driver: int | None = None
    is_open: bool = False
    excuse: str = ""
    """Why it may be lost or refused: what it hung on was killed."""


@dataclass
class Book:
    """What happened to all clients."""

    lives: set[int] = field(default_factory=set)
    served: int = 0
    vanished: int = 0
    connects: int = 0
    longest_connect_s: float = 0.0
    longest_after: str = ""
    lost: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    step: str = "the start"
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    under_way: dict[int, Life] = field(default_factory=dict)

    @contextlib.contextmanager
    def life(self, driver: int | None = None) -> Iterator[Life]:
        """One more client for the length of the block."""
        life = Life(driver=driver)
        with self.lock:
            self.under_way[id(life)] = life
        try:
            yield life
        finally:
            with self.lock:
                del self.under_way[id(life)]

    def opened(self, life: Life, took_s: float) -> None:
        life.is_open = True
        with self.lock:
            self.connects += 1
            if took_s > self.longest_connect_s:
                self.longest_connect_s, self.longest_after = took_s, self.step

    def ended(self, life: Life, error: str) -> None:
        """The session went wrong, or never came to be: a fault, unless it had an excuse."""
        what = "lost" if life.is_open else "refused"
        with self.lock:
            if life.excuse:
                getattr(self, what)[life.excuse] += 1
        if not life.excuse:
            self.fault(f"a client was {what}: {error}")

    def fault(self, text: str) -> None:
        """Something that must not happen, with when it happened."""
        text = f"{time.monotonic() - self.began:6.1f} s, after {self.step}: {text}"
        with self.lock:
            self.faults.append(text)
        print(f"FAULT {text}", flush=True)

    def excuse(self, ports: set[int], grid_port: int, why: str) -> int:
        """Who is connected from one of these ports may be lost now; how many that are."""
        with self.lock:
            lives = list(self.under_way.values())
        found = 0
        for life in lives:
            mine = {life.port} if life.driver is None else ports_of_driver(life.driver, grid_port)
            if mine & ports:
                life.excuse = why
                found += 1
        return found


class Ended(Exception):
    """The grid ended a session, or refused it."""


# Whose socket is where: by the kernel, not by what the grid says


def _ports(process: psutil.Process) -> Iterator[tuple[int, int]]:
    """Of its TCP connections: here, there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in process.net_connections("tcp4"):
            if each.raddr:
                yield each.laddr.port, each.raddr.port


def client_ports_at(pid: int, grid_port: int) -> set[int]:
    """The clients' ports of the connections that a process of the grid has open."""
    try:
        return {there for here, there in _ports(psutil.Process(pid)) if here == grid_port}
    except psutil.NoSuchProcess:
        return set()


def ports_of_driver(pid: int, grid_port: int) -> set[int | None]:
    """The ports from which a client's process is connected to the grid."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {here for process in below for here, there in _ports(process) if there == grid_port}


# Raw clients


class _Raw:
    """A WebSocket by hand: pings, and reads what comes back frame by frame."""

    def __init__(self, target: Target, version: str, life: Life) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sock.settimeout(STALL_S)
        self._sock.bind(("127.0.0.1", 0))
        life.port = self._sock.getsockname()[1]
        self._target, self._request = target, head(target, version)
        self._buffer = b""

    def open(self) -> None:
        self._sock.connect(self._target[:2])
        self._sock.sendall(self._request)
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        answer, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 101"):
            raise Ended((answer + b"\r\n\r\n" + self._buffer)[:400].decode("latin-1"))

    def ping(self, size: int) -> None:
        """There and back; the answer must be that, and nothing else."""
        self._sock.sendall(frame(bytes(size), Opcode.PING))
        while True:
            opcode, payload = self._frame()
            if opcode == Opcode.CLOSE:
                raise Ended(f"closed {int.from_bytes(payload[:2])} {payload[2:].decode()}")
            if opcode == Opcode.PONG and payload == bytes(size):
                return
            if opcode != Opcode.PING:
                raise Ended(f"a frame that nobody asked for: opcode {opcode}, {payload[:80]!r}")
            self._sock.sendall(frame(payload, Opcode.PONG))

    def close(self, how: str) -> None:
        if how == "close frame":
            with contextlib.suppress(OSError):
                self._sock.sendall(GOODBYE)
        elif how == "reset":
            reset_at_close(self._sock)
        self._sock.close()

    def _frame(self) -> tuple[int, bytes]:
        while len(self._buffer) < 2 or len(self._buffer) < 2 + (self._buffer[1] & 127):
            self._more()
        size = self._buffer[1] & 127
        if self._buffer[0] & 0x70 or self._buffer[1] & 128 or size > 125:
            raise Ended(f"not a frame of this session: {self._buffer[:120]!r}")
        opcode, payload = self._buffer[0] & 15, self._buffer[2 : 2 + size]
        self._buffer = self._buffer[2 + size :]
        return opcode, payload

    def _more(self) -> None:
        chunk = self._sock.recv(65536)
        if not chunk:
            raise Ended("end of file")
        self._buffer += chunk


def raw_lane(target: Target, version: str, dice: random.Random, book: Book, stopped: threading.Event) -> None:
    """One raw client after the other."""
    while not stopped.is_set():
        with book.life() as life:
            raw = _Raw(target, version, life)
            until = dice.choice([0.0] * 8 + [0.5, SESSION_S * dice.random()])
            how = dice.choice(["close frame", "close frame", "close", "reset"])
            try:
                began = time.monotonic()
                raw.open()
                book.opened(life, time.monotonic() - began)
                until += time.monotonic()
                raw.ping(dice.randrange(1, 126))
                while time.monotonic() < until and not stopped.is_set():
                    raw.ping(dice.randrange(1, 126))
                    stopped.wait(0.05)
                with book.lock:
                    book.served += 1
                    book.vanished += how == "reset"
            except (Ended, OSError) as error:
                book.ended(life, str(error) or repr(error))
            finally:
                raw.close(how)
        stopped.wait(dice.random() * 0.1)


# Playwright clients


class _Client(ClientProcess):
    """A Playwright client's process: of another version, if `path` (PYTHONPATH) has one. Who comes back to a session
    tries it for `patience_s`."""

    def __init__(self, endpoint: str, patience_s: float, path: str) -> None:
        self.patience_s = patience_s
        environment = {"PYTHONPATH": path} if path else None
        super().__init__("chaos_clients", endpoint, f"{patience_s:g}", environment=environment)
        self.read(2 * STALL_S)

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        """What it says next; None when it says nothing for so long."""
        said = self.said(timeout_s)
        if said is None:
            return None
        found: dict[str, Any] = json.loads(said or '{"error": "the client is gone"}')
        return found


def playwright_lane(
    endpoint: str, dice: random.Random, book: Book, stopped: threading.Event, lost_s: float, path: str = ""
) -> None:
    """One Playwright session after the other; some are killed in the middle. `lost_s`: how long a worker may hang, to
    whose sessions nobody comes back meanwhile. `path`: where their version is, if it is not pwgrid's own."""
    client: _Client | None = None
    while not stopped.is_set():
        client = client or _Client(endpoint, lost_s + STALL_S, path)
        vanishes = dice.random() < 0.2
        with book.life(driver=client.pid) as life:
            if not _one_session(client, life, book, dice, vanishes):
                client.kill()
                client = None
        stopped.wait(dice.random() * 0.2)
    if client:
        client.kill()


def _one_session(client: _Client, life: Life, book: Book, dice: random.Random, vanishes: bool) -> bool:
    """Whether the process can live another one."""
    client.tell(str(SESSION_S * dice.random()))
    said = client.read(2 * STALL_S) or {"error": "no answer to a connect"}
    if "opened" not in said:
        book.ended(life, said["error"])
        return False
    book.opened(life, said["opened"])
    if vanishes:
        said = client.read(dice.random() * SESSION_S / 2) or {"done": True}
    else:
        said = client.read(SESSION_S + client.patience_s) or {"error": "the session does not go on"}
    if "done" not in said:
        book.ended(life, said["error"])
        return False
    with book.lock:
        book.served += 1
        book.vanished += vanishes
    return not vanishes


def main() -> None:
    """Lives one session for each line of its input: clicks and reads five times a second for so many seconds. The first
    click is a mouse's; the others, by the page itself, cost a third of its processor time."""
    from playwright.sync_api import sync_playwright

    def say(**what: object) -> None:
        print(json.dumps(what), flush=True)

    with sync_playwright() as playwright:
        say(ready=True)
        for line in sys.stdin:
            try:
                began = time.monotonic()
                over_cdp = f"{sys.argv[1]}/{secrets.token_hex(8)}?keep={KEEP_S:g}" if CDP in sys.argv[1] else ""
                browser = _connect(playwright, over_cdp)
                say(opened=time.monotonic() - began)
                page = browser.contexts[0].pages[0] if over_cdp else browser.new_page()
                page.goto(PAGE)
                until, clicks = time.monotonic() + float(line), 0
                while time.monotonic() < until or not clicks:
                    if clicks:
                        text = page.evaluate(CLICK)
                    else:
                        page.locator("button").click(timeout=STALL_S * 1000)
                        text = page.locator("button").inner_text()
                    clicks += 1
                    if text != str(clicks):
                        raise AssertionError(f"{text} instead of {clicks}")
                    page.wait_for_timeout(200)
                    if over_cdp and clicks % 5 == 0:
                        browser.close()  # it only disconnects
                        browser = _come_back(playwright, over_cdp)
                        page = browser.contexts[0].pages[0]
                if over_cdp:
                    browser.new_browser_cdp_session().send("Browser.close")
                browser.close()
                say(done=clicks)
            except (Error, AssertionError) as error:
                # Why a kept session has ended is on its record, and judged there: nobody was connected.
                is_over = "this session has ended" in str(error) or "there is no such session" in str(error)
                say(**{"done": 0} if is_over else {"error": str(error)})


def _connect(playwright: Playwright, over_cdp: str) -> Browser:
    if over_cdp:
        return playwright.chromium.connect_over_cdp(over_cdp, timeout=STALL_S * 1000)
    return playwright.chromium.connect(sys.argv[1], timeout=STALL_S * 1000)


def _come_back(playwright: Playwright, over_cdp: str) -> Browser:
    """The worker of the session may just be gone, and have no successor yet: a 503 with Retry-After says so."""
    until = time.monotonic() + float(sys.argv[2])
    while True:
        try:
            return _connect(playwright, over_cdp)
        except Error as error:
            if "does not take its client now" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(KEEP_S / 10)


if __name__ == "__main__":
    main()
