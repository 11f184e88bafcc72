"""Live sessions that work all the time, and a client that connects all the time: they tell what a fault cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from playwright.async_api import Browser, Page, Playwright

from tests.support.grid import Grid

STEP_S = 0.1
PATIENCE_S = 30.0


class LiveSessions:
    """Sessions whose pages click and read ten times a second until `end`."""

    def __init__(self) -> None:
        self.browsers: list[Browser] = []
        self.lost: list[str] = []
        self.steps = 0
        self.longest_step_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def start(self, playwright: Playwright, grid: Grid, count: int) -> None:
        """Connects `count` clients; returns when all of them work."""
        for number in range(count):
            browser = await playwright.chromium.connect(grid.endpoint)
            page = await browser.new_page()
            await page.set_content("<button onclick='this.textContent = +this.textContent + 1'>0</button>")
            self.browsers.append(browser)
            self._tasks.append(asyncio.create_task(self._work(page, number)))

    async def steps_more(self, count: int) -> None:
        """Returns when every session has gone on for a while."""
        wanted = self.steps + count * len(self.browsers)
        async with asyncio.timeout(PATIENCE_S):
            while self.steps < wanted and not self.lost:
                await asyncio.sleep(STEP_S)

    async def end(self) -> None:
        """Stops the work and closes the clients; then `lost` has every session that did not come through."""
        self._over.set()
        await asyncio.gather(*self._tasks)
        for browser in self.browsers:
            with contextlib.suppress(Exception):
                await browser.close()

    async def _work(self, page: Page, number: int) -> None:
        clicks = 0
        try:
            while not self._over.is_set():
                began = time.monotonic()
                async with asyncio.timeout(PATIENCE_S):
                    clicks += 1
                    text = await page.evaluate(
                        "() => { const b = document.querySelector('button'); b.click(); return b.textContent }"
                    )
                assert text == str(clicks)
                self.steps += 1
                self.longest_step_s = max(self.longest_step_s, time.monotonic() - began)
                await asyncio.sleep(STEP_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the fault cost
            self.lost.append(f"session {number} after {clicks} clicks: {error!r}")


class Knocker:
    """A client that connects, looks at a page and leaves, over and over."""

    def __init__(self) -> None:
        self.served = 0
        self.failed: list[str] = []
        self.longest_s = 0.0
        self._over = asyncio.Event()

    async def run(self, playwright: Playwright, grid: Grid) -> None:
        """Goes on until `end`."""
        while not self._over.is_set():
            began = time.monotonic()
            try:
                browser = await playwright.chromium.connect(grid.endpoint, timeout=PATIENCE_S * 1000)
                try:
                    await (await browser.new_page()).evaluate("1")
                finally:
                    await browser.close()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the fault cost
                self.failed.append(repr(error))
                await asyncio.sleep(STEP_S)
            else:
                self.served += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def served_more(self, count: int) -> None:
        """Returns when `count` more clients were served."""
        wanted = self.served + count
        async with asyncio.timeout(PATIENCE_S):
            while self.served < wanted:
                await asyncio.sleep(STEP_S)

    def end(self) -> None:
        """After the connect that is under way."""
        self._over.set()


@contextlib.asynccontextmanager
async def under_load(playwright: Playwright, grid: Grid, count: int = 5) -> AsyncIterator[tuple[LiveSessions, Knocker]]:
    """Live sessions and a knocking client for the length of the block; at its end nothing may have been lost."""
    live, knocker = LiveSessions(), Knocker()
    await live.start(playwright, grid, count)
    knocking = asyncio.create_task(knocker.run(playwright, grid))
    try:
        await knocker.served_more(1)
        yield live, knocker
        await live.steps_more(3)
        await knocker.served_more(2)
    finally:
        knocker.end()
        await knocking
        await live.end()
    assert live.lost == []
    assert knocker.failed == []
