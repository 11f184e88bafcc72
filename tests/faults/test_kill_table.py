"""The kill table of docs/faults.md, row by row: real sessions that go on, real signals, and exact counters after it.

Most tests strike one grid several times: what it loses by the first it would lose by all.
"""

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
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.kill_table_row import (
    all_serve,
    busiest,
    busiest_that_serves,
    comes_out_exact,
    failures,
    is_gone,
    no_counter_was_repaired,
    row,
    workers,
)
from tests.support.load import Load
from tests.support.raw import connect, goes_on, head, read_all, session

pytestmark = pytest.mark.timeout(600)  # one grid is struck several times

LOST = {"WORKER_LOST_THRESHOLD": "5"}
"""What stays frozen for longer counts as lost: it is 30 s by default, and what is frozen here is never woken."""


async def test_a_proxy_a_worker_or_an_embedded_redis_that_is_killed_or_frozen_loses_no_session_and_is_replaced(
    playwright: Playwright,
) -> None:
    async with row(playwright, environment={**LOST, "HEARTBEAT_INTERVAL": "1"}, repaired=True) as (grid, load):
        await the_proxy_is_killed(grid, load)
        await the_proxy_is_frozen(grid, load)
        killed = await a_worker_is_killed(grid, load)
        await load.begin(2, lambda: playwright.chromium.connect(grid.endpoint))  # the old one may have all others
        await load.goes_on()
        frozen = await a_worker_is_frozen(grid, load)
        assert failures(grid) == {}
        assert no_counter_was_repaired(grid)
        await redis_is_killed_and_the_next_one_frozen_for_a_while(grid, load)
        await load.ends()
        await eventually_async(lambda: not {killed, frozen} & workers(grid).keys(), "the old workers are gone")
        assert failures(grid) == {}
        assert not {killed, frozen} & {each.name for each in (grid.runtime / "w").iterdir()}


async def the_proxy_is_killed(grid: Grid, load: Load) -> None:
    pid = grid.status()["proxy"]["pid"]
    os.kill(pid, signal.SIGKILL)
    await load.goes_on()
    assert load.lost == {}
    # Only clients that were in the proxy's own hands at that instant may see a reset: there are two that come.
    assert len(load.refused) <= 2, load.refused
    load.refused.clear()
    assert grid.status()["proxy"]["pid"] != pid


async def the_proxy_is_frozen(grid: Grid, load: Load) -> None:
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
    load.refused.clear()


async def a_worker_is_killed(grid: Grid, load: Load) -> str:
    victim = busiest_that_serves(grid)
    os.kill(victim["pid"], signal.SIGKILL)
    await all_serve(grid)
    await load.goes_on()
    assert (load.lost, load.refused) == ({}, [])
    status = workers(grid)[victim["id"]]
    assert status["status"] == "draining"
    assert status["pid"] != victim["pid"]
    return str(victim["id"])


async def a_worker_is_frozen(grid: Grid, load: Load) -> str:
    victim = busiest_that_serves(grid)
    os.kill(victim["pid"], signal.SIGSTOP)
    await is_gone(victim["pid"])
    await all_serve(grid)
    await load.goes_on()
    assert (load.lost, load.refused) == ({}, [])
    return str(victim["id"])


async def redis_is_killed_and_the_next_one_frozen_for_a_while(grid: Grid, load: Load) -> None:
    killed = grid.status()["redis"]["pid"]
    os.kill(killed, signal.SIGKILL)
    await load.goes_on()
    assert (load.lost, load.refused) == ({}, [])

    def are_true() -> bool:
        with contextlib.suppress(RegistryUnavailable):  # nothing above waits for the new Redis
            return grid.active() >= len(load.clicks)
        return False

    await eventually_async(are_true, "the counters are true again")
    pid = grid.status()["redis"]["pid"]
    assert pid not in (None, killed)
    os.kill(pid, signal.SIGSTOP)
    try:
        await load.goes_on(beats=10, connects=5)
    finally:
        os.kill(pid, signal.SIGCONT)
    await load.goes_on()
    assert (load.lost, load.refused) == ({}, [])


STRIKES = (
    ("browser server", signal.SIGKILL, "browser server lost"),
    ("browser", signal.SIGKILL, "browser crashed"),
    ("browser server", signal.SIGSTOP, "hung"),
    ("browser", signal.SIGSTOP, "browser hung"),
)


async def test_a_browser_server_or_a_browser_that_is_killed_or_frozen_costs_only_its_own_sessions_and_is_replaced(
    playwright: Playwright,
) -> None:
    """So is a browser that can start no page."""
    async with row(playwright, environment={**LOST, "MAX_CONCURRENT_SESSIONS": "8"}) as (grid, load):
        sick = await one_that_can_start_no_page_loses_only_who_asks_for_one_and_serves_nobody_new(
            grid, load, playwright
        )
        await load.begin(2, lambda: playwright.chromium.connect(grid.endpoint))  # the old one may have all others
        for what, signum, reason in STRIKES:
            before, victim = dict(load.lost), busiest_that_serves(grid)
            (browser,) = psutil.Process(victim["nodePid"]).children()
            pid = victim["nodePid"] if what == "browser server" else browser.pid
            async with load.at_the_door:  # who is just served by it is lost with it, too
                os.kill(pid, signum)
                if signum == signal.SIGKILL:
                    await eventually_async(lambda id=victim["id"]: serves_no_more(grid, id), "its worker knows it")
            await is_gone(pid)
            await all_serve(grid)
            await load.goes_on()
            lost = {number: why for number, why in load.lost.items() if number not in before}
            assert 1 <= len(lost) <= victim["active"]
            assert load.refused == []
            if reason == "browser hung":  # the clients are told why
                assert all("no sign of life for WORKER_LOST_THRESHOLD=5 s" in why for why in lost.values()), lost
            least = len(lost)
            await eventually_async(
                lambda reason=reason, least=least: failures(grid)[reason] >= least, "all that were lost are on record"
            )
            await load.begin(least, lambda: playwright.chromium.connect(grid.endpoint))
            await load.goes_on()
        await load.ends()
        await eventually_async(lambda: sick not in workers(grid), "the sick worker is gone")
        assert failures(grid).keys() - {"browser sick"} == {reason for _, _, reason in STRIKES}


def serves_no_more(grid: Grid, worker_id: str) -> bool:
    return workers(grid).get(worker_id, {}).get("status") != "available"


async def one_that_can_start_no_page_loses_only_who_asks_for_one_and_serves_nobody_new(
    grid: Grid, load: Load, playwright: Playwright
) -> str:
    """Its zygotes, which fork the processes of pages, are killed. The selection prefers this worker."""
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
    if visitor.is_connected():
        await visitor.close()
    assert failures(grid).keys() <= {"browser sick"}
    return str(victim["id"])


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
