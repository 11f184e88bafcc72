"""Drains by an operator: over the command line, and with nothing but redis-cli."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Playwright

from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.raw import read_all, session
from tests.support.redis import RedisServer

WAITING = {**WITHOUT_SPARES, "HEARTBEAT_INTERVAL": "0.5"}


@pytest.fixture(scope="module")
def two() -> Any:
    """Two workers; every test gets them warm and without sessions."""
    with running_grid("--chromium", "2", environment=WAITING) as grid:
        yield grid


@contextlib.asynccontextmanager
async def one_session(grid: Grid, playwright: Playwright) -> AsyncIterator[tuple[Browser, str]]:
    """A live session and the id of its worker."""
    await eventually_async(lambda: available(grid) == 2, "both workers are warm", 60)
    browser = await playwright.chromium.connect(grid.endpoint)
    try:
        yield browser, busy_worker(grid)
    finally:
        await browser.close()


def available(grid: Grid) -> int:
    return sum(worker["status"] == "available" for worker in grid.status()["workers"])


def busy_worker(grid: Grid) -> str:
    (field,) = [
        field
        for field, count in _decoded(grid.redis("HGETALL", "cluster:active_connections")).items()
        if int(count) and grid.redis("HGET", f"worker:{field}", "status") == b"available"
    ]
    return field.partition(":")[2]


def _decoded(values: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in values.items()}


def is_draining(grid: Grid, worker: str) -> bool:
    return bool(grid.redis("HGET", f"worker:chromium:{worker}", "status") == b"draining")


async def ends_of(grid: Grid, worker: str) -> list[str]:
    """How the sessions of a worker ended that were not completed."""
    sessions = json.loads((await pwgrid(grid, "sessions", "--json", "--status", "failed")).stdout)
    return [f"{each['status']}: {each['reason']}" for each in sessions if each["workerId"] == worker]


async def pwgrid(grid: Grid, *arguments: str) -> Any:
    return await asyncio.to_thread(grid.command, *arguments)


async def test_a_drained_worker_keeps_its_session_and_gets_no_other(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (browser, worker):
        waits = asyncio.create_task(pwgrid(two, "drain", worker, "--wait"))
        await eventually_async(lambda: is_draining(two, worker), "it drains")
        for _ in range(4):
            other = await playwright.chromium.connect(two.endpoint)
            assert int(two.redis("HGET", "cluster:active_connections", f"chromium:{worker}")) == 1
            await other.close()
        page = await browser.new_page()
        assert await page.evaluate("6 * 7") == 42
        assert not waits.done()
        await browser.close()
        done = await waits
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert "1 session left" in lines[0]
        assert " s left" in lines[0]
        assert lines[-1] == f"{worker}: gone, no session was cut"
        assert worker not in {each["id"] for each in two.status()["workers"]}


async def test_a_drain_that_runs_out_of_time_exits_1(playwright: Playwright) -> None:
    with running_grid("--chromium", "1", environment={**WITHOUT_SPARES, "DRAIN_TIMEOUT": "1"}) as grid:
        browser = await playwright.chromium.connect(grid.endpoint)
        done = await pwgrid(grid, "drain", "--all", "--wait")
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1].endswith("1 session cut: its time ran out")
        assert not browser.is_connected()
        (session,) = json.loads((await pwgrid(grid, "sessions", "--json")).stdout)
        assert (session["status"], session["reason"]) == ("failed", "drain timeout: operator")
        assert session["startedAt"] < session["drainAt"] < session["endedAt"]


async def test_a_second_drain_means_now(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (browser, worker):
        gone = asyncio.Event()
        browser.on("disconnected", lambda _: gone.set())
        done = await pwgrid(two, "drain", worker)
        assert (done.returncode, done.stdout) == (0, f"draining {worker}\n")
        page = await browser.new_page()
        assert await page.evaluate("6 * 7") == 42
        assert (await pwgrid(two, "drain", worker)).returncode == 0
        async with asyncio.timeout(20):
            await gone.wait()
        await eventually_async(lambda: not two.redis("EXISTS", f"worker:chromium:{worker}"), "it is gone")
        assert await ends_of(two, worker) == ["failed: drained now"]


async def test_who_waits_once_more_for_a_drain_ends_no_session(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (browser, worker):
        assert (await pwgrid(two, "drain", worker)).returncode == 0
        waits = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pwgrid", "drain", worker, "--wait"),
            cwd=ROOT,
            env={**two.environment, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        assert waits.stdout is not None
        assert b"1 session left" in await asyncio.wait_for(waits.stdout.readline(), 30)  # it has asked
        page = await browser.new_page()
        assert await page.evaluate("6 * 7") == 42
        await browser.close()
        said, _ = await waits.communicate()
        assert said.decode().splitlines()[-1] == f"{worker}: gone, no session was cut"
        assert waits.returncode == 0


async def test_a_drain_now_does_not_wait(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (_, worker):
        done = await pwgrid(two, "drain", worker, "--now", "--wait")
        assert done.returncode == 0, done.stdout
        assert "1 session cut: it was told to end now" in done.stdout
        assert await ends_of(two, worker) == ["failed: drained now"]


async def test_redis_cli_alone_drains_at_the_next_heartbeat(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (browser, worker):
        done = await pwgrid(two, "redis-cli", "SET", f"worker:cmd:chromium:{worker}", "shutdown", "EX", "60")
        assert done.stdout.strip() == "OK", done.stderr
        await eventually_async(lambda: is_draining(two, worker), "it drains")
        assert (await pwgrid(two, "status")).stdout.count("asked over Redis") == 1
        assert browser.is_connected()
        await browser.close()
        await eventually_async(lambda: not two.redis("EXISTS", f"worker:chromium:{worker}"), "it is gone")


async def test_a_pool_is_drained_and_comes_back(two: Grid, playwright: Playwright) -> None:
    await eventually_async(lambda: available(two) == len(two.status()["workers"]) == 2, "two are there, both warm")
    before = {worker["id"] for worker in two.status()["workers"]}
    done = await pwgrid(two, "drain", "--pool", "chromium", "--wait")
    assert done.returncode == 0, done.stdout
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == before
    browser = await playwright.chromium.connect(two.endpoint)
    await browser.close()
    assert not before & {worker["id"] for worker in two.status()["workers"]}


async def test_who_is_not_there_cannot_be_drained(two: Grid) -> None:
    for arguments, sentence in (
        (("drain", "00000000"), "no worker matches 00000000"),
        (("drain",), "name one of"),
        (("drain", "--all", "--pool", "chromium"), "name one of"),
    ):
        done = await pwgrid(two, *arguments)
        assert done.returncode != 0
        assert sentence in done.stderr


async def test_scaling_starts_and_ends_workers(two: Grid) -> None:
    done = await pwgrid(two, "scale", "chromium=3")
    assert done.stdout.startswith("chromium 3")
    await eventually_async(lambda: available(two) == 3, "three serve", 60)
    assert (await pwgrid(two, "scale", "chromium=2")).returncode == 0
    await eventually_async(lambda: len(two.status()["workers"]) == 2, "two are left", 60)
    refused = await pwgrid(two, "scale", "opera=1")
    assert refused.returncode == 1
    assert "there is no pool 'opera'" in refused.stderr


async def test_sessions_are_shown_with_their_reasons(two: Grid, playwright: Playwright) -> None:
    async with one_session(two, playwright) as (_, worker):

        def running() -> list[str]:
            _, *rows = two.command("sessions", "--status", "running").stdout.splitlines()
            return rows

        (row,) = await eventually_async(running, "its start is on record")
        assert worker in row
    eventually(lambda: two.active() == 0, "it has ended")
    newest = (await pwgrid(two, "sessions", "--limit", "1")).stdout.splitlines()[1]
    assert newest.split()[2:4] == [worker, "completed"]
    as_json = (await pwgrid(two, "sessions", "--json", "--status", "completed")).stdout
    assert f'"workerId": "{worker}"' in as_json


def test_a_second_sigterm_ends_sessions_now_and_says_so(own_redis: RedisServer) -> None:
    """The fake browser server stands in for Playwright: the raw client can read its close frame."""
    with running_grid("--chromium", "1", environment={**WITHOUT_SPARES, "REDIS_URL": own_redis.url}, fake=True) as grid:
        with session(grid.port) as sock:

            def hurried() -> bool:
                grid.process.send_signal(signal.SIGTERM)  # one that comes too soon is the same Ctrl-C again
                return "why='drained now'" in grid.output()

            eventually(hurried, "the second one means now")
            assert b"the grid was stopping, without waiting for sessions" in read_all(sock)
        assert grid.process.wait(40) == 0
    (key,) = own_redis.command("KEYS", "session:*")
    assert own_redis.command("HMGET", key, "status", "reason") == ["failed", "drained now"]
