"""Live sessions that must go on, and clients that connect all the time, while a test or a bench breaks something."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Playwright

from pwgrid.installed.driver import Driver

PAGE = "data:text/html,<button onclick='this.textContent = +this.textContent + 1'>0</button>"
CLICK = "() => { const button = document.querySelector('button'); button.click(); return button.textContent; }"
BEAT_S = 0.5
COME_S = 0.2
KNOCK_S = 0.02
PATIENCE_S = 30.0


Comes = Callable[[], Awaitable[Browser]]
"""Connects one more client."""


class Served(Protocol):
    """Anything that has an endpoint for Playwright clients."""

    @property
    def endpoint(self) -> str:
        """ws://host:port"""


@dataclass
class Load:
    """What happened to the clients so far. A knock is a plain HTTP request on a connection of its own."""

    browsers: list[Browser] = field(default_factory=list)
    clicks: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    connects: int = 0
    knocks: int = 0
    refused: list[str] = field(default_factory=list)
    longest_connect_s: float = 0.0
    longest_knock_s: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    at_the_door: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who holds it keeps new sessions out, and none is on the way in or out."""
    rest_s: float = 0.0
    """How much longer nobody comes after a client has gone, unless somebody waits for the next one: where each of them
    costs a browser of its own."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody waits for clients to come, until there have been `due` of them."""
    due: int = 0
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def goes_on(self, beats: int = 3, connects: int = 2) -> None:
        """Returns once every session not lost has done `beats` more clicks, and `connects` more clients came: the first
        of these may have been on its way, the second has come since."""
        clicks, came = list(self.clicks), self.connects
        self.due = max(self.due, came + connects)
        self.wanted.set()

        def enough() -> bool:
            alive = [number for number in range(len(clicks)) if number not in self.lost]
            return self.connects >= came + connects and all(
                self.clicks[number] >= clicks[number] + beats for number in alive
            )

        async with self._moved, asyncio.timeout(60):
            await self._moved.wait_for(enough)

    async def begin(self, sessions: int, comes: Comes) -> None:
        """So many more live sessions."""
        browsers = await asyncio.gather(*(comes() for _ in range(sessions)))
        pages = await asyncio.gather(*(browser.new_page() for browser in browsers))
        await asyncio.gather(*(page.goto(PAGE) for page in pages))
        for number, page in enumerate(pages, len(self.clicks)):
            self.clicks.append(0)
            self.tasks.append(asyncio.create_task(self.click(number, page)))
        self.browsers += browsers

    async def all_lost(self) -> None:
        """Returns once every session has been lost."""
        async with self._moved, asyncio.timeout(60):
            await self._moved.wait_for(lambda: len(self.lost) == len(self.clicks))

    async def ends(self) -> None:
        """Everybody stops and goes. Idempotent."""
        self.over.set()
        self.wanted.set()
        await asyncio.gather(*self.tasks)
        for number, browser in enumerate(self.browsers):
            if number not in self.lost:
                await browser.close()

    def hear(self, said: dict[str, Any]) -> None:
        """What a client in another process says of itself (load_client.cjs)."""
        match said:
            case {"clicked": number}:
                self.clicks[number] += 1
            case {"lost": number, "why": why}:
                self.lost[number] = why
            case {"came": _}:
                self.connects += 1
            case {"refused": why}:
                self.refused.append(why)

    async def tell(self) -> None:
        """Something has moved."""
        async with self._moved:
            self._moved.notify_all()

    async def click(self, number: int, page: Page) -> None:
        """One session's life: click, read, wait a beat. The first session has a mouse; the others tell their pages to
        click, which goes the same way to the page and back, at a third of the processor time."""
        button = page.locator("button")
        try:
            while not self.over.is_set():
                if number == 0:
                    await button.click()
                    shown = await button.inner_text()
                else:
                    shown = await page.evaluate(CLICK)
                self.clicks[number] += 1
                assert shown == str(self.clicks[number])
                await self.tell()
                await self._pause(BEAT_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session is lost, and the test decides
            self.lost[number] = str(error)
            await self.tell()

    async def connect(self, comes: Comes) -> None:
        """A client that comes and goes. It is never cancelled in the middle: its driver would keep the session."""
        while not self.over.is_set():
            async with self.at_the_door:
                began = time.monotonic()
                try:
                    browser = await comes()
                    self.longest_connect_s = max(self.longest_connect_s, time.monotonic() - began)
                    await browser.close()
                    self.connects += 1
                except Exception as error:  # noqa: BLE001 - collected for the test
                    self.refused.append(str(error))
            await self.tell()
            await self._pause(COME_S)
            await self._rest()

    async def knock(self, host: str, port: int) -> None:
        """Asks whether anybody is there, again and again; only 200 is an answer."""
        while not self.over.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await _health(host, port)
                self.longest_knock_s = max(self.longest_knock_s, time.monotonic() - began)
                self.knocks += 1
                if not answer.startswith(b"HTTP/1.1 200 "):
                    self.refused.append(f"GET /health: {answer!r}")
            except (OSError, TimeoutError) as error:
                self.refused.append(f"GET /health: {error!r}")
            await self._pause(KNOCK_S)

    async def _rest(self) -> None:
        """Lasts until another client may come."""
        if self.connects >= self.due and not self.over.is_set():
            self.wanted.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wanted.wait(), self.rest_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)


async def _health(host: str, port: int) -> bytes:
    """The whole answer to GET /health on a new connection; empty when it is closed without one."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return await reader.read()
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def under_load(
    grid: Served, playwright: Playwright, sessions: int = 5, *, cdp: bool = False, rest_s: float = 0.0
) -> AsyncIterator[Load]:
    """`sessions` live sessions that click, one client that comes and goes, and one that knocks, for the length of the
    block. `cdp`: they connect by connect_over_cdp(). `rest_s`: that of the load."""

    async def comes() -> Browser:
        if cdp:
            return await playwright.chromium.connect_over_cdp(f"{grid.endpoint}/cdp", timeout=PATIENCE_S * 1000)
        return await playwright.chromium.connect(grid.endpoint, timeout=PATIENCE_S * 1000)

    address = urlsplit(grid.endpoint)
    assert address.hostname is not None
    assert address.port is not None
    load = Load(rest_s=rest_s)
    await load.begin(sessions, comes)
    load.tasks += [
        asyncio.create_task(load.connect(comes)),
        asyncio.create_task(load.knock(address.hostname, address.port)),
    ]
    try:
        await load.goes_on()
        yield load
    finally:
        await load.ends()


@contextlib.asynccontextmanager
async def under_load_of(driver: Driver, endpoint: str, sessions: int = 3) -> AsyncIterator[Load]:
    """`sessions` live sessions that click, and one client that comes and goes, of another Playwright: in a process of
    its own, for the length of the block."""
    program = str(Path(__file__).with_name("load_client.cjs"))
    process = await asyncio.create_subprocess_exec(
        *(driver.node, program, driver.core, endpoint, PAGE, str(sessions)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    load = Load([], [0] * sessions)
    load.tasks = [asyncio.create_task(_hear(load, process)), asyncio.create_task(_end_with(load, process))]
    try:
        await load.goes_on()
        yield load
    finally:
        await load.ends()


async def _hear(load: Load, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        load.hear(json.loads(line))
        await load.tell()
    assert await process.wait() == 0


async def _end_with(load: Load, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    await load.over.wait()
    process.stdin.close()
