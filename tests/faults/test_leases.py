"""Leases outlive whatever dies around them, with real Chromium: a page that goes on, and a lease that waits."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, Playwright

from tests.conftest import need
from tests.support.grid import Grid, eventually_async, running_grid
from tests.support.kill_table_row import STEADY, comes_out_exact, is_gone
from tests.support.leases import CHROMIUM, borrow, give_back, lease_now, leases, request

ENVIRONMENT = {
    **STEADY,
    "POOL_CONFIG": f"{CHROMIUM}=1",
    "BORROW_RECONNECT_GRACE": "600",
    "HEARTBEAT_INTERVAL": "1",
    "DRAIN_TIMEOUT": "1",
}


@asynccontextmanager
async def connected(playwright: Playwright, lease: dict[str, Any]) -> AsyncIterator[Page]:
    """A page in the browser of the lease."""
    browser = await playwright.chromium.connect(lease["webSocketEndpoint"])
    try:
        yield await browser.new_page()
    finally:
        await browser.close()


async def goes_on(page: Page) -> None:
    """The page is as it was, and does what it is told."""
    assert await page.evaluate("window.mark") == "mine"
    await page.set_content("<button onclick='this.textContent=\"clicked\"'>click me</button>")
    await page.click("button")
    assert await page.text_content("button") == "clicked"


async def serves(grid: Grid, playwright: Playwright, lease: dict[str, Any]) -> None:
    """A lease that nobody uses is still its borrower's: a client connects with it and goes, and it can be extended."""
    async with connected(playwright, lease) as page:
        assert await page.evaluate("6 * 7") == 42
    path = f"/v1/leases/{lease['browserId']}"
    extended = await asyncio.to_thread(request, grid, "PATCH", path, {"ttlSeconds": 3600})
    assert extended.status == 200, extended


async def kill(grid: Grid, what: str, used: dict[str, Any]) -> None:
    """SIGKILL, or what else ends it; returns when it is gone and something else may be in its place."""
    status = await asyncio.to_thread(grid.status)
    if what == "master":
        await asyncio.to_thread(grid.kill_master)
        await asyncio.to_thread(grid.start_again)
        # Until a worker has come back to its new master, that has no way to its browser server: two faults at once.
        await eventually_async(
            lambda: {each["phase"] for each in grid.status()["workers"]} == {"running"}, "the worker has come back"
        )
    elif what == "upgrade":
        done = await asyncio.to_thread(grid.command, "upgrade", "--force", timeout_s=120)
        assert done.returncode == 0, done.stderr
    else:
        worker = next(each for each in status["workers"] if each["id"] == used["browserId"].partition("-")[0])
        pid = {"proxy": status["proxy"], "redis": status["redis"], "worker": worker}[what]["pid"]
        os.kill(pid, signal.SIGKILL)
        await is_gone(pid)
        if what == "proxy":
            await eventually_async(lambda: grid.status()["proxy"]["pid"] not in (pid, None), "another proxy serves")


async def test_leases_outlive_the_proxy_redis_the_master_their_worker_and_an_upgrade(playwright: Playwright) -> None:
    need("chromium")
    with running_grid(environment=ENVIRONMENT) as grid, comes_out_exact(grid, repaired=True):
        used, idle = [await asyncio.to_thread(borrow, grid, runName=name) for name in ("used", "idle")]
        async with connected(playwright, used) as page:
            await page.evaluate("window.mark = 'mine'")
            for what in ("proxy", "redis", "master", "worker", "upgrade"):
                await kill(grid, what, used)
                await goes_on(page)
                await serves(grid, playwright, idle)
            both = {used["browserId"], idle["browserId"]}
            await eventually_async(lambda: set(leases(grid)) == both, "Redis knows of both again")
            for lease, name in ((used, "used"), (idle, "idle")):
                now = await asyncio.to_thread(lease_now, grid, lease)
                assert (now["status"], now["runName"], now["labelKey"]) == ("active", name, CHROMIUM)
            await eventually_async(lambda: grid.active() == 2, "it counts both")
            assert await asyncio.to_thread(give_back, grid, used)
        assert await asyncio.to_thread(give_back, grid, idle)
        await eventually_async(lambda: leases(grid) == [], "none is left")
        assert await asyncio.to_thread(give_back, grid, idle) is False
