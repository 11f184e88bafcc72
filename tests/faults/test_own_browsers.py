"""The kill table for sessions with browsers of their own: real sessions that go on, real signals, exact counters."""

import asyncio
import contextlib
import os
import signal

import psutil
import pytest
from playwright.async_api import Playwright

from tests.support.grid import eventually_async
from tests.support.kill_table_row import all_serve, busiest, failures, is_gone, row, workers

OWN = {"ISOLATION": "browser", "WARM_BROWSERS": "1", "LAUNCH_TIMEOUT": "60"}
LOST = {**OWN, "WORKER_LOST_THRESHOLD": "5"}


def browsers(node: int) -> list[psutil.Process]:
    """Those of a browser server, in the order of their starts."""
    return sorted(psutil.Process(node).children(), key=lambda each: each.create_time())


async def test_sigkill_of_the_proxy_loses_none(playwright: Playwright) -> None:
    async with row(playwright, environment=OWN) as (grid, load):
        pid = grid.status()["proxy"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await load.goes_on()
        assert load.lost == {}
        # Those in the proxy's own hands at that instant may see a reset: there are two that come.
        assert len(load.refused) <= 2, load.refused


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_is_killed_or_frozen_loses_none(playwright: Playwright, signum: int) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        victim = busiest(grid)
        async with load.at_the_door:  # who waits for its browser there comes elsewhere, after a while
            os.kill(victim["pid"], signum)
            await is_gone(victim["pid"])
        await all_serve(grid)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])
        await load.ends()
        await eventually_async(lambda: victim["id"] not in workers(grid), "the old worker is gone")
        assert failures(grid) == {}
        assert not (grid.runtime / "w" / victim["id"]).exists()


async def test_a_new_master_takes_over_what_a_killed_one_left(playwright: Playwright) -> None:
    async with row(playwright, environment=OWN) as (grid, load):
        before = {worker["pid"] for worker in grid.status()["workers"]}
        await asyncio.to_thread(grid.kill_master)
        await load.goes_on()
        await asyncio.to_thread(grid.start_again)
        await load.goes_on()
        assert {worker["pid"] for worker in grid.status()["workers"]} == before
        assert (load.lost, load.refused) == ({}, [])


async def test_sigkill_of_the_embedded_redis_loses_none(playwright: Playwright) -> None:
    environment = {**OWN, "HEARTBEAT_INTERVAL": "1"}
    async with row(playwright, environment=environment, repaired=True) as (grid, load):
        os.kill(grid.status()["redis"]["pid"], signal.SIGKILL)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])
        await eventually_async(lambda: _active(grid) >= len(load.clicks), "the counters are true again")


def _active(grid) -> int:  # type: ignore[no-untyped-def]
    with contextlib.suppress(Exception):
        return int(grid.active())
    return 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_browser_that_is_killed_or_frozen_costs_its_own_session_alone(
    playwright: Playwright, signum: int
) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        before = {worker["id"]: worker["pid"] for worker in grid.status()["workers"]}
        async with load.at_the_door:
            victim = busiest(grid)
            in_use = browsers(victim["nodePid"])[1:]  # the oldest one may be warm
            os.kill(in_use[0].pid, signum)
        await is_gone(in_use[0].pid)
        await load.goes_on()
        assert len(load.lost) <= 1
        assert load.refused == []
        await load.ends()
        assert {worker["id"]: worker["pid"] for worker in grid.status()["workers"]} == before
        reason = "browser crashed" if signum == signal.SIGKILL else "browser hung"
        assert set(failures(grid)) <= {reason}
        assert failures(grid).total() == len(load.lost)


async def test_sigkill_of_a_browser_server_costs_its_own_sessions(playwright: Playwright) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        victim = busiest(grid)
        async with load.at_the_door:
            os.kill(victim["nodePid"], signal.SIGKILL)
            await is_gone(victim["nodePid"])
        await all_serve(grid)
        await load.goes_on()
        assert 1 <= len(load.lost) <= victim["active"]
        assert load.refused == []
        await load.ends()
        assert failures(grid).keys() == {"browser server lost"}
