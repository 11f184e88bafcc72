"""Clients that vanish, give up or wait: no slot leaks, and who cannot be served is told why."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from playwright.async_api import Playwright

from tests.conftest import counters_are_exact, need
from tests.support.grid import Grid, eventually_async, running_grid
from tests.support.raw import head, session

CLIENT = """
    import asyncio, sys
    from playwright.async_api import async_playwright
    async def main():
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect(sys.argv[1])
            page = await browser.new_page()
            print("up", flush=True)
            await asyncio.Event().wait()
    asyncio.run(main())
"""


async def test_the_slot_of_a_killed_client_is_free_within_two_seconds(grid: Grid) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CLIENT), grid.endpoint], stdout=subprocess.PIPE, start_new_session=True
    )
    assert client.stdout is not None
    with client.stdout:
        assert await asyncio.to_thread(client.stdout.readline) == b"up\n"
    assert grid.active() == 1
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    await eventually_async(lambda: grid.active() == 0, "the killed client's slot is free", 2)


@pytest.mark.parametrize("delay_s", [0.0001, 0.0005, 0.002, 0.010])
async def test_clients_that_give_up_leak_no_slot(grid: Grid, playwright: Playwright, delay_s: float) -> None:
    async def give_up() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", grid.port)
        writer.write(head())
        await asyncio.sleep(delay_s)
        writer.transport.abort()

    for _ in range(3):
        await asyncio.gather(*(give_up() for _ in range(25)))
    await eventually_async(lambda: grid.active() == 0, "every slot is free again")
    counters_are_exact(grid)
    browser = await playwright.chromium.connect(grid.endpoint)
    await browser.close()


async def test_clients_that_end_their_half_first_leak_no_slot(grid: Grid) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", grid.port)) as sock:
            sock.sendall(head())
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):  # until it is the grid's turn to end
                pass
    await eventually_async(lambda: grid.active() == 0, "every slot is free again")


async def test_a_client_waits_in_line_for_a_slot_and_gets_it(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment={"MAX_CONCURRENT_SESSIONS": "1"}) as grid:
        first = await playwright.chromium.connect(grid.endpoint)
        second = asyncio.create_task(playwright.chromium.connect(grid.endpoint))

        def one_waits() -> bool:
            return b'"waiting":1' in grid.get("/v1/status")[2]

        await eventually_async(one_waits, "the second client waits")
        await first.close()
        await (await second).close()


async def test_who_waits_too_long_is_told_so(playwright: Playwright) -> None:
    """The fake browser server has the slot."""
    environment = {"MAX_CONCURRENT_SESSIONS": "1", "WORKER_SELECT_TIMEOUT": "0.3"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        with session(grid.port), pytest.raises(Exception, match="no chromium slot came free within 0"):
            await playwright.chromium.connect(grid.endpoint)
        await eventually_async(lambda: grid.active() == 0, "its slot is free")
        session(grid.port).close()
