"""The kill table for sessions of a second Playwright, whose pool has started on demand beside the one of pwgrid's own.

One grid is struck several times: what it loses by the first it would lose by all. When its clients have gone the pool
ends, and nothing of it is left.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Playwright

from tests.support.drivers import DRIVERS, MIDDLE, cached_driver
from tests.support.grid import Grid, eventually, eventually_async, wait_for_end
from tests.support.kill_table_row import failures, is_gone, row
from tests.support.load import Load, under_load_of
from tests.support.raw import head, upgrade

POOL = f"chromium-{MIDDLE}"
ENVIRONMENT = {
    "DRIVERS_DIR": str(DRIVERS),
    "ON_DEMAND_IDLE": "5",
    "HEARTBEAT_INTERVAL": "1",
    "WORKER_SELECT_TIMEOUT": "30",  # the second version has one worker: its clients wait for the next one's launch
}


@contextlib.asynccontextmanager
async def both(playwright: Playwright) -> AsyncIterator[tuple[Grid, Load, Load]]:
    """A row of the kill table, with the load of pwgrid's own Playwright and that of another one."""
    driver = cached_driver(MIDDLE)
    async with (
        row(playwright, environment=ENVIRONMENT, repaired=True, first=runs_once, sessions=2) as (grid, load),
        under_load_of(driver, grid.endpoint, sessions=2) as other,
    ):
        assert {each["playwrightVersion"] for each in workers(grid)} == {driver.version}
        yield grid, load, other


def runs_once(grid: Grid) -> None:
    """The pool starts, and ends: Node's cache of compiled code has that of the second version from then on."""
    agent = f"Playwright/{MIDDLE}.0 (x64; debian 12) node/24.0"
    upgrade(("127.0.0.1", grid.port), head(User_Agent=agent)).close()
    for worker in workers(grid):
        wait_for_end(worker["pid"])
    eventually(lambda: POOL not in {each["pool"] for each in grid.status()["workers"]}, f"{POOL} has ended")


def workers(grid: Grid) -> list[dict[str, Any]]:
    """Those of the second version that serve."""
    found = grid.status()["workers"]
    return [each for each in found if each["pool"] == POOL and each["status"] == "available"]


def busiest(grid: Grid) -> dict[str, Any]:
    """Of the second version."""
    return max(workers(grid), key=lambda each: each["active"])


async def goes_on(*loads: Load) -> None:
    await asyncio.gather(*(load.goes_on() for load in loads))


async def all_serve(grid: Grid, *, without: str = "") -> None:
    """Returns once each pool has the workers that it wants, and the second version one besides that."""

    def complete() -> bool:
        is_whole = all(pool["available"] == pool["wanted"] for pool in grid.status()["pools"])
        return is_whole and any(each["id"] != without for each in workers(grid))

    await eventually_async(complete, "each pool is complete", 60.0)


async def test_a_second_version_loses_no_more_than_pwgrids_own(playwright: Playwright) -> None:
    async with both(playwright) as (grid, load, other):
        proxy = grid.status()["proxy"]["pid"]
        os.kill(proxy, signal.SIGKILL)
        await is_gone(proxy)
        await goes_on(load, other)
        # Only clients that were in the proxy's own hands at that instant: of each version one comes, and one knocks.
        assert len(load.refused) <= 2, load.refused
        assert len(other.refused) <= 1, other.refused
        load.refused.clear()
        other.refused.clear()

        victim = busiest(grid)
        os.kill(victim["pid"], signal.SIGKILL)
        await all_serve(grid, without=victim["id"])
        await goes_on(load, other)

        await asyncio.to_thread(grid.kill_master)
        await goes_on(load, other)
        await asyncio.to_thread(grid.start_again)
        await all_serve(grid)
        await goes_on(load, other)

        redis = grid.status()["redis"]["pid"]
        os.kill(redis, signal.SIGKILL)
        await eventually_async(lambda: grid.status()["redis"]["pid"] not in (None, redis), "another Redis runs")
        await goes_on(load, other)
        await eventually_async(lambda: grid.active() >= len(load.clicks) + len(other.clicks), "the counters are true")
        assert (load.lost, other.lost, load.refused, other.refused) == ({}, {}, [], [])

        victim = busiest(grid)
        os.kill(victim["nodePid"], signal.SIGKILL)
        await all_serve(grid, without=victim["id"])
        await goes_on(load, other)
        assert load.lost == {}
        assert len(other.lost) <= victim["active"]
        await other.ends()
        await load.ends()
        await eventually_async(lambda: failures(grid).total() >= len(other.lost), "all that were lost are on record")
        assert failures(grid).keys() <= {"browser server lost"}
