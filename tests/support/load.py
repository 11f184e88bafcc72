"""Live sessions that must go on, and a client that connects all the time, while a test breaks something."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from playwright.async_api import Browser, Page, Playwright

from tests.support.grid import Grid

PAGE = "data:text/html,<button onclick='this.textContent = +this.textContent + 1'>0</button>"
BEAT_S = 0.1


@dataclass
class Load:
    """What happened to the clients so far."""

    browsers: list[Browser]
    clicks: list[int]
    lost: dict[int, str] = field(default_factory=dict)
    connects: int = 0
    refused: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def goes_on(self, beats: int = 5, connects: int = 3) -> None:
        """Returns once every session not lost has done `beats` more clicks, and `connects` more clients came."""
        clicks, came = list(self.clicks), self.connects

        def enough() -> bool:
            alive = [number for number in range(len(clicks)) if number not in self.lost]
            return self.connects >= came + connects and all(
                self.clicks[number] >= clicks[number] + beats for number in alive
            )

        async with self._moved, asyncio.timeout(60):
            await self._moved.wait_for(enough)

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def click(self, number: int, page: Page) -> None:
        """One session's life: click, read, wait a beat."""
        button = page.locator("button")
        try:
            while True:
                await button.click()
                self.clicks[number] += 1
                assert await button.inner_text() == str(self.clicks[number])
                await self._tell()
                await asyncio.sleep(BEAT_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session is lost, and the test decides
            self.lost[number] = str(error)
            await self._tell()

    async def connect(self, grid: Grid, playwright: Playwright) -> None:
        """A client that comes and goes. It is never cancelled in the middle: its driver would keep the session."""
        while not self.over.is_set():
            try:
                browser = await playwright.chromium.connect(grid.endpoint, timeout=30_000)
                await browser.close()
                self.connects += 1
            except Exception as error:  # noqa: BLE001 - collected for the test
                self.refused.append(str(error))
            await self._tell()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), BEAT_S)


@contextlib.asynccontextmanager
async def under_load(grid: Grid, playwright: Playwright, sessions: int = 5) -> AsyncIterator[Load]:
    """`sessions` live sessions that click, and one client that comes and goes, for the length of the block."""
    browsers = await asyncio.gather(*(playwright.chromium.connect(grid.endpoint) for _ in range(sessions)))
    pages = await asyncio.gather(*(browser.new_page() for browser in browsers))
    await asyncio.gather(*(page.goto(PAGE) for page in pages))
    load = Load(list(browsers), [0] * sessions)
    tasks = [asyncio.create_task(load.click(number, page)) for number, page in enumerate(pages)]
    newcomer = asyncio.create_task(load.connect(grid, playwright))
    try:
        await load.goes_on()
        yield load
    finally:
        load.over.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, newcomer, return_exceptions=True)
        for number, browser in enumerate(browsers):
            if number not in load.lost:
                await browser.close()
