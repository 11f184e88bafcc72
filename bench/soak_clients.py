"""The soak's clients: what users and their machines do to a grid. A behaviour raises what went wrong for it.

Run as `python -m bench.soak_clients raw|playwright ENDPOINT SEED VERSION` it is one client in a process of its own,
which can be killed and stopped; it says `open` once its session is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from bench.client import WITH_WINDOW, ClientProcess, Target, head
from tests.support.raw import GOODBYE, STALL_S, Opcode, frame, read_all, reset_at_close, upgrade


class Failed(Exception):
    """A client did not get what it should have got."""


@dataclass(frozen=True, slots=True)
class World:
    """What a client needs to know."""

    target: Target
    endpoint: str
    playwright_version: str
    ping_timeout_s: float
    stopped: threading.Event
    temporary: Path
    """Where the clients' drivers have their files: those that are killed remove none."""
    saved: set[str] = field(default_factory=set)
    """Profiles that a session has left in order."""

    def pause(self, seconds: float) -> None:
        """Waits, or less when the soak ends."""
        self.stopped.wait(seconds)

    def session(self) -> socket.socket:
        """An open session. Raises Failed with the refusal."""
        try:
            return upgrade(self.target[:2], head(self.target, self.playwright_version))
        except OSError as error:
            raise Failed(str(error)) from None


Behaviour = Callable[[World, random.Random], None]


# Raw clients in this process


def polite(world: World, dice: random.Random) -> None:
    """Pings, waits, closes with a close frame and reads the answer to its end."""
    with world.session() as sock:
        for _ in range(dice.randrange(1, 10)):
            sock.sendall(frame(bytes(dice.randrange(0, 126)), Opcode.PING))
            if not sock.recv(4096):
                raise Failed("the session ended by itself")
            world.pause(dice.random() * 0.1)
        sock.sendall(GOODBYE)
        _read_to_end(sock)


def leaves(world: World, dice: random.Random) -> None:
    """Closes the connection without a word (FIN)."""
    with world.session():
        world.pause(dice.random() * 0.5)


def vanishes(world: World, dice: random.Random) -> None:
    """Resets the connection (RST)."""
    with world.session() as sock:
        world.pause(dice.random() * 0.5)
        reset_at_close(sock)


def gives_up(world: World, dice: random.Random) -> None:
    """Goes while it connects, after 0 to 10 ms."""
    with _connection(world) as sock:
        sock.sendall(head(world.target, world.playwright_version))
        time.sleep(dice.choice([0, 0.0001, 0.0005, 0.002, 0.01]))
        if dice.random() < 0.5:
            reset_at_close(sock)


def stammers(world: World, dice: random.Random) -> None:
    """Sends half a head, or nothing at all, and goes."""
    with _connection(world) as sock:
        request = head(world.target, world.playwright_version)
        sock.sendall(request[: dice.randrange(len(request) - 1)])
        world.pause(dice.random())
        if dice.random() < 0.5:
            reset_at_close(sock)


def babbles(world: World, dice: random.Random) -> None:
    """Sends garbage instead of a head."""
    with _connection(world) as sock:
        sock.sendall(dice.randbytes(dice.randrange(1, 20_000)) + b"\r\n\r\n")
        _read_to_end(sock)


def breaks_the_protocol(world: World, dice: random.Random) -> None:
    """Sends an unmasked frame in an open session."""
    with world.session() as sock:
        sock.sendall(b"\x82\x05" + dice.randbytes(5))
        _read_to_end(sock)


# Raw clients that speak CDP

KEEP_S, WITH_ONE_BROWSER, PROFILES = 5, 4, 6


def comes_back(world: World, dice: random.Random) -> None:
    """Leaves a session that is kept, comes back to its page, and closes its browser or leaves it to its time."""
    path = f"/devtools/browser/{dice.randbytes(8).hex()}?keep={KEEP_S}"
    address = f"data:text/html,{dice.randbytes(8).hex()}"
    with _cdp(world, path) as client:
        _ask(client, "Target.createTarget", url=address)
    world.pause(dice.random())
    with _cdp(world, path) as client:
        if address not in [each["url"] for each in _ask(client, "Target.getTargets")["targetInfos"]]:
            raise Failed("a kept session has lost its page")
        if dice.random() < 0.8:
            _ask(client, "Browser.close")
        else:
            return
    _is_over(world, path)


def shares(world: World, dice: random.Random) -> None:
    """Several clients of one browser, which ends with the last of them; some vanish."""
    path = f"/devtools/browser/{dice.randbytes(8).hex()}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_cdp(world, path)) for _ in range(dice.randrange(2, WITH_ONE_BROWSER + 1))]
        context = _ask(clients[0], "Target.createBrowserContext")["browserContextId"]
        dice.shuffle(clients)
        for each in clients:
            if context not in _ask(each, "Target.getBrowserContexts")["browserContextIds"]:
                raise Failed("clients of one session see different browsers")
            if dice.random() < 0.3:
                reset_at_close(each.socket)
                each.socket.close()
            else:
                each.close()


def has_a_profile(world: World, dice: random.Random) -> None:
    """Has what the last session with this profile has left, unless another one has it."""
    name = f"soak-{dice.randrange(PROFILES)}"
    try:
        client = connect(_url(world, f"/cdp?profile={name}"), compression=None, open_timeout=STALL_S)
    except InvalidStatus as refused:
        if refused.response.status_code == 409:
            return
        raise Failed(bytes(refused.response.body or b"").decode()) from None
    with client:
        had = world.saved.copy()
        cookies = [each["name"] for each in _ask(client, "Storage.getCookies")["cookies"]]
        if name in had and "soak" not in cookies:
            raise Failed("a profile has lost what it had")
        cookie = {"name": "soak", "value": "1", "url": "https://soak.test", "expires": time.time() + 3600}
        _ask(client, "Storage.setCookies", cookies=[cookie])
        _ask(client, "Browser.close")
        world.saved.add(name)


def _url(world: World, path: str) -> str:
    host, port = world.target[:2]
    return f"ws://{host}:{port}{path}"


@contextlib.contextmanager
def _cdp(world: World, path: str) -> Iterator[ClientConnection]:
    try:
        with connect(_url(world, path), compression=None, open_timeout=STALL_S) as client:
            yield client
    except InvalidStatus as refused:
        raise Failed(bytes(refused.response.body or b"").decode()) from None
    except (WebSocketException, OSError) as error:
        raise Failed(repr(error)) from None


def _ask(client: ClientConnection, method: str, **params: object) -> dict[str, Any]:
    number = next(_numbers)
    client.send(json.dumps({"id": number, "method": method, "params": params}))
    while (message := json.loads(client.recv(STALL_S))).get("id") != number:
        pass
    if "error" in message:
        raise Failed(f"{method}: {message['error']}")
    result: dict[str, Any] = message["result"]
    return result


def _is_over(world: World, path: str) -> None:
    """Nobody gets a session whose client has closed its browser."""
    try:
        with connect(_url(world, path), compression=None, open_timeout=STALL_S):
            raise Failed("a session goes on whose client has closed its browser")
    except InvalidStatus as refused:
        if refused.response.status_code not in (404, 410):
            raise Failed(bytes(refused.response.body or b"").decode()) from None


_numbers = itertools.count(1)


# Clients in processes of their own


def freezes(world: World, dice: random.Random) -> None:
    """A raw client whose process is stopped until the grid has ended its session."""
    with _Process(world, "raw", dice) as client:
        client.signal(signal.SIGSTOP)
        time.sleep(2.5 * world.ping_timeout_s)  # at the soak's end too: the session must end by itself
        client.signal(signal.SIGCONT)
        said = client.line()
    if "its client gave no sign of life for SESSION_PING_TIMEOUT" not in said:
        raise Failed(f"a frozen client was told {said!r}")


def works(world: World, dice: random.Random) -> None:
    """A real Playwright client that works for a while and closes."""
    with _Process(world, "playwright", dice) as client:
        said = client.line()
    if said != "done":
        raise Failed(f"a Playwright client said {said!r}")


def works_in_a_window(world: World, dice: random.Random) -> None:
    """A real Playwright client whose browser has a window, on a display of its own."""
    with _Process(world, "playwright", dice, f"?{WITH_WINDOW}") as client:
        said = client.line()
    if said != "done":
        raise Failed(f"a Playwright client with a window said {said!r}")


def is_killed(world: World, dice: random.Random) -> None:
    """A real Playwright client that is SIGKILLed in the middle of its work."""
    with _Process(world, "playwright", dice):
        world.pause(dice.random())


def freezes_at_work(world: World, dice: random.Random) -> None:
    """A real Playwright client that is stopped for good in the middle of its work."""
    with _Process(world, "playwright", dice) as client:
        client.signal(signal.SIGSTOP)
        world.pause(2.5 * world.ping_timeout_s)


RAW: dict[Behaviour, int] = {
    polite: 6,
    leaves: 4,
    vanishes: 4,
    gives_up: 8,
    stammers: 2,
    babbles: 1,
    breaks_the_protocol: 1,
    freezes: 1,
}
"""Behaviours and their weights."""

CDP: dict[Behaviour, int] = {**RAW, comes_back: 4, shares: 4, has_a_profile: 2}
"""The raw ones of a soak over CDP."""

REAL: dict[Behaviour, int] = {works: 6, is_killed: 3, freezes_at_work: 1}

WITH_WINDOWS: dict[Behaviour, int] = {**REAL, works_in_a_window: 2}
"""The real ones where the host makes windows."""


class _Process(ClientProcess):
    """A client whose session is open, killed at the block's end."""

    def __init__(self, world: World, kind: str, dice: random.Random, query: str = "") -> None:
        seed = str(dice.randrange(1 << 30))
        super().__init__(
            *("soak_clients", kind, world.endpoint + query, seed, world.playwright_version),
            stderr=subprocess.STDOUT,
            environment={"TMPDIR": str(world.temporary)},
        )

    def __enter__(self) -> Self:
        said = self.line()
        if said != "open":
            self.kill()
            raise Failed(f"a client could not open its session: {said}")
        return self

    def line(self) -> str:
        """The next line that the client says, "" at its end. Raises Failed when it says nothing for too long."""
        said = self.said(2 * STALL_S)
        if said is None:
            raise Failed("a client says nothing any more")
        return said.strip()


def _connection(world: World) -> socket.socket:
    return socket.create_connection(world.target[:2], timeout=STALL_S)


def _read_to_end(sock: socket.socket) -> bytes:
    try:
        return read_all(sock)
    except TimeoutError:
        raise Failed("the grid does not close a connection that it should") from None


# What runs in such a process


def _say(text: str) -> None:
    print(text, flush=True)


def _raw(endpoint: str, dice: random.Random) -> None:
    """Answers pings until the session ends; says why it ended."""
    parts = urlsplit(endpoint)
    target = (str(parts.hostname), parts.port or 80, parts.path or "/")
    with upgrade(target[:2], head(target, sys.argv[4])) as sock:
        _say("open")
        sock.settimeout(None)
        buffered = b""
        while chunk := sock.recv(65536):
            buffered += chunk
            while len(buffered) >= 2 and len(buffered) >= 2 + buffered[1]:
                opcode, payload = buffered[0] & 15, buffered[2 : 2 + buffered[1]]
                buffered = buffered[2 + buffered[1] :]
                if opcode == Opcode.CLOSE:
                    return _say(f"closed {int.from_bytes(payload[:2])} {payload[2:].decode()}")
                if opcode == Opcode.PING:
                    with contextlib.suppress(OSError):  # what follows in the buffer says why it is closed
                        sock.sendall(frame(payload, Opcode.PONG))
        _say("ended without a close frame")
    return None


def _playwright(endpoint: str, dice: random.Random) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        over_cdp = endpoint.endswith("/cdp")
        browser = (playwright.chromium.connect_over_cdp if over_cdp else playwright.chromium.connect)(endpoint)
        page = browser.contexts[0].pages[0] if over_cdp else browser.new_context().new_page()
        page.goto("data:text/html,<title>soak</title><canvas></canvas>")
        _say("open")
        for _ in range(dice.randrange(1, 8)):
            size = dice.randrange(1, 300_000)
            assert len(page.evaluate("size => 'x'.repeat(size)", size)) == size
            page.wait_for_timeout(dice.random() * 200)
        page.screenshot()
        browser.close()
    _say("done")


if __name__ == "__main__":
    {"raw": _raw, "playwright": _playwright}[sys.argv[1]](sys.argv[2], random.Random(int(sys.argv[3])))
