"""The kill table for sessions with browsers of their own: real sessions that go on, real signals, exact counters.

Each test strikes one grid several times: what it loses by the first it would lose by all.
"""

import asyncio
import os
import signal
from pathlib import Path

import psutil
from playwright.async_api import Playwright

from tests.support.browsers import fit_browser
from tests.support.grid import Grid, eventually_async, running_grid
from tests.support.kill_table_row import all_serve, busiest, busiest_that_serves, failures, is_gone, row, workers
from tests.support.load import Load

OWN = {"ISOLATION": "browser", "WARM_BROWSERS": "1", "MAX_CONCURRENT_SESSIONS": "3"}
SESSIONS = 2
"""Fewer than a worker has slots: while another one starts, whoever comes finds a slot in the one that is left."""

BOUND_MS = 120_000
"""Bounds a failure."""

LOST = {**OWN, "WORKER_LOST_THRESHOLD": "5"}


def browsers(node: int) -> list[psutil.Process]:
    """Those of a browser server, the oldest first."""
    return sorted(psutil.Process(node).children(), key=lambda each: each.create_time())


def pids(grid: Grid) -> dict[str, int]:
    return {worker["id"]: worker["pid"] for worker in grid.status()["workers"]}


async def test_a_killed_proxy_master_and_redis_lose_none(playwright: Playwright) -> None:
    environment = {**OWN, "HEARTBEAT_INTERVAL": "1", "WORKER_LOST_THRESHOLD": "120"}  # a busy machine takes its time
    async with row(playwright, environment=environment, repaired=True, sessions=SESSIONS) as (grid, load):
        before = pids(grid)
        os.kill(grid.status()["proxy"]["pid"], signal.SIGKILL)
        await load.goes_on()
        # Those in the proxy's own hands at that instant may see a reset: there are two that come.
        assert len(load.refused) <= 2, load.refused
        load.refused.clear()

        await asyncio.to_thread(grid.kill_master)
        await load.goes_on()
        await asyncio.to_thread(grid.start_again)
        await load.goes_on()
        assert pids(grid) == before

        redis = grid.status()["redis"]["pid"]
        os.kill(redis, signal.SIGKILL)
        await load.goes_on()
        await eventually_async(lambda: grid.status()["redis"]["pid"] not in (None, redis), "another Redis runs")
        await eventually_async(lambda: grid.active() >= len(load.clicks), "the counters are true again")
        assert (load.lost, load.refused) == ({}, [])


async def test_a_worker_loses_none_a_browser_costs_its_own_session_and_a_browser_server_its_own(
    playwright: Playwright,
) -> None:
    async with row(playwright, environment=LOST, sessions=SESSIONS) as (grid, load):
        await a_browser_is_killed_and_one_is_frozen(grid, load)
        await load.begin(SESSIONS, lambda: playwright.chromium.connect(grid.endpoint))
        victims = await a_worker_is_killed_and_one_is_frozen(grid, load)

        await load.begin(SESSIONS, lambda: playwright.chromium.connect(grid.endpoint))  # the others are in old workers
        lost = dict(load.lost)
        async with load.at_the_door:
            victim = busiest_that_serves(grid)
            os.kill(victim["nodePid"], signal.SIGKILL)
            await is_gone(victim["nodePid"])
        await all_serve(grid)
        await load.goes_on()
        assert load.lost.keys() > lost.keys()
        assert load.refused == []
        await load.ends()
        await eventually_async(lambda: not victims & workers(grid).keys(), "the old workers are gone")
        assert failures(grid).keys() == {"browser crashed", "browser hung", "browser server lost"}


async def a_browser_is_killed_and_one_is_frozen(grid: Grid, load: Load) -> None:
    before = pids(grid)
    for lost, signum in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        async with load.at_the_door:
            victim = busiest(grid)
            browser = browsers(victim["nodePid"])[0]  # those that are warm are younger
            os.kill(browser.pid, signum)
        await is_gone(browser.pid)
        await eventually_async(lambda lost=lost: len(load.lost) == lost, "its session has ended")
        await load.goes_on()
        assert load.refused == []
        assert pids(grid) == before
    assert failures(grid) == {"browser crashed": 1, "browser hung": 1}


async def a_worker_is_killed_and_one_is_frozen(grid: Grid, load: Load) -> set[str]:
    """The ids of both."""
    lost, failed, victims = dict(load.lost), failures(grid), set()
    for signum in (signal.SIGKILL, signal.SIGSTOP):
        victim = next(each for each in grid.status()["workers"] if each["status"] == "available")
        victims.add(str(victim["id"]))
        async with load.at_the_door:  # who waits for its browser there comes elsewhere, after a while
            os.kill(victim["pid"], signum)
            await is_gone(victim["pid"])
        await all_serve(grid)
        await load.goes_on()
        assert (load.lost, load.refused) == (lost, [])
    assert failures(grid) == failed
    return victims


async def test_a_worker_that_freezes_while_it_makes_a_browser_loses_the_client_to_another_one(
    playwright: Playwright, tmp_path: Path
) -> None:
    gate, executable = tmp_path / "gate", tmp_path / "chromium"
    chromium = fit_browser("chromium").executable
    executable.write_text(f'#!/bin/sh\nwhile [ -e {gate} ]; do sleep 0.05; done\nexec {chromium} "$@"\n')
    executable.chmod(0o755)
    # Neither of these is what ends the wait.
    late = {"WORKER_LOST_THRESHOLD": "600", "LAUNCH_TIMEOUT": "600"}
    environment = {"CHROMIUM_EXECUTABLE": str(executable), "CONFINE": "off", **late}
    with running_grid("--chromium", "2", environment=environment) as grid:
        before = workers(grid)
        assert [len(browsers(each["nodePid"])) for each in before.values()] == [1, 1]
        gate.touch()
        endpoint = f"{grid.endpoint}/?isolation=browser"
        coming = asyncio.ensure_future(playwright.chromium.connect(endpoint, timeout=BOUND_MS))

        def launching() -> list[str]:
            return [name for name, each in before.items() if len(browsers(each["nodePid"])) > 1]

        await eventually_async(lambda: len(launching()) == 1, "a worker makes a browser for it")
        (frozen,) = launching()
        os.kill(before[frozen]["pid"], signal.SIGSTOP)
        try:
            gate.unlink()
            browser = await coming
            assert await (await browser.new_page()).evaluate("6 * 7") == 42
            other = next(each for name, each in before.items() if name != frozen)
            assert len(browsers(other["nodePid"])) > 1
            assert psutil.Process(before[frozen]["pid"]).status() == psutil.STATUS_STOPPED
        finally:
            os.kill(before[frozen]["pid"], signal.SIGCONT)
        await eventually_async(lambda: len(browsers(before[frozen]["nodePid"])) <= 2, "it ends what nobody uses")
        assert workers(grid).keys() == before.keys()
        await browser.close()
        await eventually_async(lambda: grid.active() == 0, "no slot is taken")
