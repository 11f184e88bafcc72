"""The kill table of docs/faults.md, row by row: real sessions that go on, real signals, and exact counters after it."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal

import psutil
import pytest
from playwright.async_api import Browser, Playwright
from playwright.async_api import Error as PlaywrightError

from pwgrid.common.errors import RegistryUnavailable
from tests.support.grid import WITHOUT_SPARES, eventually, eventually_async, running_grid
from tests.support.kill_table_row import all_serve, busiest, comes_out_exact, failures, is_gone, row, workers
from tests.support.raw import connect, goes_on, head, read_all, session

LOST = {"WORKER_LOST_THRESHOLD": "5"}
"""What stays frozen for longer counts as lost: it is 30 s by default, and what is frozen here is never woken."""


async def test_sigkill_of_the_proxy_loses_no_session_and_refuses_nobody(playwright: Playwright) -> None:
    async with row(playwright) as (grid, load):
        pid = grid.status()["proxy"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await load.goes_on()
        assert load.lost == {}
        # Only clients that were in the proxy's own hands at that instant may see a reset: there are two that come.
        assert len(load.refused) <= 2, load.refused
        assert grid.status()["proxy"]["pid"] != pid


async def test_a_frozen_proxy_is_replaced_and_loses_no_session(playwright: Playwright) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        pid = grid.status()["proxy"]["pid"]
        with connect(grid.port) as accepted:
            accepted.sendall(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = http.client.HTTPResponse(accepted)
            answer.begin()
            assert (answer.status, json.loads(answer.read())) == (200, {"status": "ready"})
            os.kill(pid, signal.SIGSTOP)
            accepted.sendall(head())
            # Who comes now waits on the listening socket, which the successor has, too.
            with await asyncio.to_thread(session, grid.port):
                await is_gone(pid)
            assert read_all(accepted) == b""  # it had that connection, and nobody else
        await load.goes_on()
        assert load.lost == {}
        assert len(load.refused) <= 2, load.refused  # those that it had just accepted, of the two that come


async def test_sigkill_of_a_worker_lets_its_sessions_go_on_and_a_replacement_serves(playwright: Playwright) -> None:
    async with row(playwright) as (grid, load):
        victim = busiest(grid)
        assert victim["active"] >= 1
        os.kill(victim["pid"], signal.SIGKILL)
        await all_serve(grid)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])
        status = next(worker for worker in grid.status()["workers"] if worker["id"] == victim["id"])
        assert status["status"] == "draining"
        assert status["pid"] != victim["pid"]
        await load.ends()
        await eventually_async(
            lambda: victim["id"] not in {worker["id"] for worker in grid.status()["workers"]}, "the old worker is gone"
        )
        assert failures(grid) == {}
        assert not (grid.runtime / "w" / victim["id"]).exists()


async def test_a_frozen_worker_is_killed_alone_and_its_sessions_go_on(playwright: Playwright) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        victim = busiest(grid)
        os.kill(victim["pid"], signal.SIGSTOP)
        await is_gone(victim["pid"])
        await all_serve(grid)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])
        await load.ends()
        assert failures(grid) == {}


async def test_a_frozen_browser_server_costs_only_its_own_sessions_and_is_replaced(playwright: Playwright) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        victim = busiest(grid)
        os.kill(victim["nodePid"], signal.SIGSTOP)
        await is_gone(victim["nodePid"])
        await all_serve(grid)
        await load.goes_on()
        assert 1 <= len(load.lost) <= victim["active"]
        assert load.refused == []
        await load.ends()
        await eventually_async(lambda: failures(grid).total() >= len(load.lost), "all that were lost are on record")
        assert failures(grid).keys() == {"hung"}


async def test_sigkill_of_the_embedded_redis_loses_nothing(playwright: Playwright) -> None:
    async with row(playwright, environment={"HEARTBEAT_INTERVAL": "1"}, repaired=True) as (grid, load):
        os.kill(grid.status()["redis"]["pid"], signal.SIGKILL)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])

        def are_true() -> bool:
            with contextlib.suppress(RegistryUnavailable):  # nothing above waits for the new Redis
                return grid.active() >= 5
            return False

        await eventually_async(are_true, "the counters are true again")


async def test_an_embedded_redis_that_is_frozen_for_a_while_is_done_without(playwright: Playwright) -> None:
    async with row(playwright, environment={"HEARTBEAT_INTERVAL": "1"}, repaired=True) as (grid, load):
        pid = grid.status()["redis"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await load.goes_on(beats=25, connects=5)
        finally:
            os.kill(pid, signal.SIGCONT)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])


@pytest.mark.parametrize("what", ["browser server", "browser"])
async def test_sigkill_of_a_browser_server_or_a_browser_costs_only_its_own_sessions(
    playwright: Playwright, what: str
) -> None:
    async with row(playwright) as (grid, load):
        victim = busiest(grid)
        (browser,) = psutil.Process(victim["nodePid"]).children()
        os.kill(victim["nodePid"] if what == "browser server" else browser.pid, signal.SIGKILL)
        await all_serve(grid)
        await load.goes_on()
        assert 1 <= len(load.lost) <= victim["active"]
        assert load.refused == []
        await load.ends()
        await eventually_async(lambda: failures(grid).total() >= len(load.lost), "all that were lost are on record")
        reasons = failures(grid)
        assert reasons.keys() == {"browser server lost" if what == "browser server" else "browser crashed"}


async def test_a_frozen_browser_costs_only_its_own_sessions_and_their_clients_are_told_why(
    playwright: Playwright,
) -> None:
    async with row(playwright, environment=LOST) as (grid, load):
        victim = busiest(grid)
        (browser,) = psutil.Process(victim["nodePid"]).children()
        browser.suspend()
        await is_gone(browser.pid)
        await all_serve(grid)
        await load.goes_on()
        assert 1 <= len(load.lost) <= victim["active"]
        assert all("no sign of life for WORKER_LOST_THRESHOLD=5 s" in why for why in load.lost.values()), load.lost
        assert load.refused == []
        await load.ends()
        await eventually_async(lambda: failures(grid).total() >= len(load.lost), "all that were lost are on record")
        assert failures(grid).keys() == {"browser hung"}


async def test_a_browser_that_can_start_no_page_loses_only_who_asks_for_one_and_serves_nobody_new(
    playwright: Playwright,
) -> None:
    """Its zygotes, which fork the processes of pages, are killed. The selection prefers this worker."""
    async with row(playwright, environment={**LOST, "MAX_CONCURRENT_SESSIONS": "8"}) as (grid, load):
        victim = busiest(grid)
        for process in psutil.Process(victim["nodePid"]).children(recursive=True):
            if "--type=zygote" in process.cmdline():
                process.kill()
        visitor = await playwright.chromium.connect(grid.endpoint)
        assert re.search("Target crashed|its browser opens no pages any more; connect again", await opens_none(visitor))
        for _ in range(3):
            browser = await playwright.chromium.connect(grid.endpoint)
            assert await (await browser.new_page()).evaluate("6 * 7") == 42
            await browser.close()
        reason = await eventually_async(lambda: workers(grid)[victim["id"]]["reason"], "the sick worker drains")
        assert reason.partition(":")[0] == "canary failed"
        await all_serve(grid)
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])
        await load.ends()
        if visitor.is_connected():
            await visitor.close()
        await eventually_async(lambda: victim["id"] not in workers(grid), "the sick worker is gone")
        assert failures(grid).keys() <= {"browser sick"}


async def opens_none(browser: Browser) -> str:
    """Why it opens no page; a process for one more may be there already."""
    while True:
        try:
            await browser.new_page()
        except PlaywrightError as error:
            return str(error)


def test_a_redis_that_refuses_writes_is_as_good_as_away() -> None:
    """Out of memory, Redis answers every script with an error. The fake browser server stands in for Playwright."""
    environment = {**WITHOUT_SPARES, "HEARTBEAT_INTERVAL": "1", "REDIS_TIMEOUT": "0.5"}
    with (
        running_grid("--chromium", "2", environment=environment, fake=True) as grid,
        comes_out_exact(grid, repaired=True),
    ):
        before = {worker["id"] for worker in grid.status()["workers"]}
        with session(grid.port) as old:
            grid.redis("CONFIG", "SET", "maxmemory", "1")
            for _ in range(3):
                session(grid.port).close()
            eventually(lambda: "registry_write_kept" in grid.output(), "a write was refused")
            grid.redis("CONFIG", "SET", "maxmemory", "0")
            assert goes_on(old)
        # What was admitted without Redis is unknown to its counters until a heartbeat repairs them.
        eventually(lambda: grid.active() == 0, "the counters are true again")
        assert {worker["id"] for worker in grid.status()["workers"]} == before
