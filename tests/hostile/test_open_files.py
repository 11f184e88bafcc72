"""Clients that only hold connections: they cost the grid no session, neither with 64 descriptors nor by thousands."""

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator

import psutil
import pytest
from playwright.async_api import Playwright

from tests.conftest import counters_are_exact
from tests.support.census import at_rest, once_equal, told, watched
from tests.support.grid import NEVER, Grid, eventually, eventually_async, running_grid
from tests.support.raw import connect, head, session

QUIET = {"MAX_LIFETIME_SESSIONS": NEVER, "CANARY_INTERVAL": "600"}
HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: local"


@pytest.fixture(autouse=True)
def _enough_for_us() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lines(grid: Grid, event: str) -> list[str]:
    return [line for line in grid.output().splitlines() if f" {event} " in line]


def some_are_refused(clients: list[socket.socket]) -> bool:
    for client in clients:
        with contextlib.suppress(BlockingIOError):
            answer = client.recv(4096)
            if answer:
                assert answer.startswith(b"HTTP/1.1 503 ")
                return b"clients wait for a slot already" in answer
    return False


async def serves(grid: Grid, playwright: Playwright) -> None:
    """A new client gets a browser."""
    browser = await playwright.chromium.connect(grid.endpoint)
    assert await (await browser.new_page()).evaluate("6 * 7") == 42
    await browser.close()


def with_few_descriptors(grid: Grid, limit: int) -> None:
    """The master may open no more than `limit` from now on, nor may a new proxy of it. Node and the browser keep what
    they had: Chromium itself dies where it has too few.
    """
    status = grid.ask("status")
    psutil.Process(grid.process.pid).rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
    old = status["proxy"]["pid"]
    os.kill(old, signal.SIGKILL)
    eventually(lambda: (new := grid.ask("status"))["ready"] and new["proxy"]["pid"] != old, "another proxy serves")
    assert psutil.Process(grid.ask("status")["proxy"]["pid"]).rlimit(psutil.RLIMIT_NOFILE) == (limit, limit)


async def test_with_64_descriptors_idle_connections_cost_no_session(playwright: Playwright) -> None:
    with running_grid("--chromium", "1", environment=QUIET) as grid:
        with_few_descriptors(grid, 64)
        before = at_rest(grid)
        browser = await playwright.chromium.connect(grid.endpoint)
        with contextlib.ExitStack() as held:
            for number in range(400):
                idle = held.enter_context(connect(grid.port))
                if number % 2:
                    with contextlib.suppress(ConnectionError):  # it was closed already
                        idle.sendall(HALF_A_HEAD)
                if number % 50 == 49:
                    await serves(grid, playwright)
                    assert grid.get("/health")[0] == 200
            assert await (await browser.new_page()).evaluate("6 * 7") == 42
        await browser.close()
        assert told(before, once_equal(grid, before)) == ""
        counters_are_exact(grid)
        assert 1 <= len(lines(grid, "idle_connections_closed")) <= 10
        assert "Traceback" not in grid.output()


async def test_with_64_descriptors_clients_that_wait_keep_nobody_from_being_answered(playwright: Playwright) -> None:
    environment = {**QUIET, "MAX_CONCURRENT_SESSIONS": "1", "WORKER_SELECT_TIMEOUT": "60"}
    with running_grid("--chromium", "1", environment=environment) as grid:
        with_few_descriptors(grid, 64)
        with session(grid.port), contextlib.ExitStack() as held:
            waiting = [held.enter_context(connect(grid.port)) for _ in range(25)]
            for each in waiting:
                each.sendall(head())
                each.setblocking(False)
            await eventually_async(lambda: some_are_refused(waiting), "who is too many is told so")
            assert grid.get("/health")[0] == 200
            assert grid.get("/v1/status")[0] == 200
        await serves(grid, playwright)


def test_a_grid_with_few_descriptors_says_so() -> None:
    with running_grid("--chromium", "1", fake=True, under=("prlimit", "--nofile=64:64")) as grid:
        (said,) = lines(grid, "few_open_files")
        assert " limit=64 " in said


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    with running_grid("--chromium", "1", fake=True, under=("prlimit", "--nofile=100:4000")) as grid:
        for role, pid in watched(grid).items():
            assert psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) == (4000, 4000), role
        assert lines(grid, "few_open_files") == []


async def test_thousands_of_half_open_connections_cost_no_session(playwright: Playwright) -> None:
    with running_grid("--chromium", "2", environment=QUIET) as grid:
        before = at_rest(grid)
        browser = await playwright.chromium.connect(grid.endpoint)
        page = await browser.new_page()
        with contextlib.ExitStack() as held:
            for number in range(3000):
                idle = held.enter_context(connect(grid.port))
                if number % 2:
                    idle.sendall(HALF_A_HEAD)
                if number % 500 == 499:
                    await serves(grid, playwright)
                    assert await page.evaluate("6 * 7") == 42
            assert grid.get("/health")[0] == 200
        await browser.close()
        assert told(before, once_equal(grid, before)) == ""
