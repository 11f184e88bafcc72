"""The kill table for CDP: sessions whose clients are connected, and those whose browsers wait for them to come back.

Each test strikes one grid several times: what it loses by the first it would lose by all.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from playwright.async_api import Playwright

from tests.support.grid import Grid, eventually_async
from tests.support.kill_table_row import all_serve, failures, is_gone, no_counter_was_repaired, row, workers
from tests.support.leases import request
from tests.support.load import Load

ENVIRONMENT = {
    "ISOLATION": "browser",
    "WARM_BROWSERS": "1",
    "MAX_CONCURRENT_SESSIONS": "4",
    "HEARTBEAT_INTERVAL": "1",
    "WORKER_LOST_THRESHOLD": "120",  # a busy machine takes its time for another master
}
LOST = {**ENVIRONMENT, "WORKER_LOST_THRESHOLD": "5"}
SESSIONS, KEPT = 2, 2
TITLE = "data:text/html,<title>as it was</title>"


@dataclass
class Waiting:
    """Sessions whose clients have gone, by their URLs."""

    grid: Grid
    playwright: Playwright
    urls: list[str] = field(default_factory=list)

    async def one_more(self) -> None:
        told = await asyncio.to_thread(request, self.grid, "GET", "/json/version?keep=600")
        self.urls.append(url := told.body["webSocketDebuggerUrl"])
        browser = await self.playwright.chromium.connect_over_cdp(url)
        await browser.contexts[0].pages[0].goto(TITLE)
        await browser.close()
        await self.wait()

    async def wait(self) -> None:
        """Returns once all of them are kept, as their records say."""
        for url in self.urls:
            path = f"/v1/sessions/{self.id_in(url)}"

            def is_kept(path: str = path) -> bool:
                return request(self.grid, "GET", path).body.get("kept") is True

            await eventually_async(is_kept, "it is kept")

    async def are_as_they_were(self) -> None:
        """A client comes to each of them, finds its page, and goes."""
        for url in self.urls:
            browser = await self.playwright.chromium.connect_over_cdp(url)
            assert await browser.contexts[0].pages[0].title() == "as it was"
            await browser.close()

    async def end(self) -> None:
        for url in self.urls:
            await asyncio.to_thread(request, self.grid, "DELETE", f"/v1/sessions/{self.id_in(url)}")

    @staticmethod
    def id_in(url: str) -> str:
        return url.partition("?")[0].rpartition("/")[2]


@contextlib.asynccontextmanager
async def waiting(grid: Grid, playwright: Playwright) -> AsyncIterator[Waiting]:
    kept = Waiting(grid, playwright)
    for _ in range(KEPT):
        await kept.one_more()
    yield kept
    await kept.wait()
    await kept.end()


async def nothing_is_lost(load: Load, kept: Waiting) -> None:
    await load.goes_on()
    await kept.are_as_they_were()
    assert load.lost == {}


async def a_proxy_gets(signum: int, grid: Grid, load: Load, kept: Waiting) -> None:
    async with load.at_the_door:
        proxy = grid.status()["proxy"]["pid"]
        os.kill(proxy, signum)
        await is_gone(proxy)
    load.refused.clear()  # those that asked whether anybody is there
    await nothing_is_lost(load, kept)


async def test_a_killed_proxy_master_and_redis_lose_none(playwright: Playwright) -> None:
    async with (
        row(playwright, environment=ENVIRONMENT, repaired=True, cdp=True, sessions=SESSIONS) as (grid, load),
        waiting(grid, playwright) as kept,
    ):
        await a_proxy_gets(signal.SIGKILL, grid, load, kept)

        await asyncio.to_thread(grid.kill_master)
        await nothing_is_lost(load, kept)
        await asyncio.to_thread(grid.start_again)
        await nothing_is_lost(load, kept)

        redis = grid.status()["redis"]["pid"]
        os.kill(redis, signal.SIGKILL)
        await kept.are_as_they_were()
        await eventually_async(lambda: grid.status()["redis"]["pid"] not in (None, redis), "another Redis runs")
        await nothing_is_lost(load, kept)
        await eventually_async(lambda: grid.active() >= len(load.clicks) + KEPT, "the counters are true again")
        assert load.refused == []


async def test_a_worker_that_is_killed_one_that_is_frozen_and_a_frozen_proxy_lose_none(playwright: Playwright) -> None:
    async with row(playwright, environment=LOST, repaired=True, cdp=True, sessions=SESSIONS) as (grid, load):
        async with waiting(grid, playwright) as kept:
            victims = []
            for signum in (signal.SIGKILL, signal.SIGSTOP):
                status = grid.status()
                victims.append(victim := next(each for each in status["workers"] if each["status"] == "available"))
                async with load.at_the_door:
                    os.kill(victim["pid"], signum)
                    await is_gone(victim["pid"])
                await all_serve(grid)
                await nothing_is_lost(load, kept)
                assert load.refused == []
            assert no_counter_was_repaired(grid)
            await a_proxy_gets(signal.SIGSTOP, grid, load, kept)
            assert load.refused == []
        await load.ends()
        ids = {victim["id"] for victim in victims}
        await eventually_async(lambda: not ids & workers(grid).keys(), "the old workers are gone")
        assert failures(grid) == {}
