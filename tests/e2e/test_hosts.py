"""Two grids with real browsers that name the same Redis: clients of one drive browsers of the other."""

import contextlib
from collections.abc import Iterator

import pytest
from playwright.async_api import Playwright

from tests.conftest import counters_are_exact, need
from tests.support.grid import WITHOUT_SPARES, eventually_async, running_grid
from tests.support.hosts import TIMES, Host, know_each_other
from tests.support.redis import RedisServer

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Each has one slot."""
    need("chromium")
    server = RedisServer()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)

        def host(address: str) -> Host:
            environment = {**WITHOUT_SPARES, **TIMES, "REDIS_URL": server.url, "MAX_CONCURRENT_SESSIONS": "1"}
            environment |= {"PWGRID_HOST": address, "ADVERTISED_HOST": address, "ISOLATION": "context"}
            return Host(stack.enter_context(running_grid("--chromium", "1", environment=environment)), address)

        both = host("127.0.0.1"), host("127.0.0.2")
        know_each_other(*both)
        yield both
        counters_are_exact(both[0].grid)


async def test_a_client_of_one_host_drives_a_browser_of_another(
    playwright: Playwright, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    own = await playwright.chromium.connect(first.grid.endpoint)
    other = await playwright.chromium.connect(first.grid.endpoint)
    await eventually_async(lambda: len(first.live()) == 2, "both are on record")
    there = [each for each in first.live() if each["host"] == second.name]
    assert [each["workerId"] for each in there] == [*second.workers()]
    for browser in (own, other):
        page = await browser.new_page()
        assert await page.evaluate("text => text.length", "x" * MEBIBYTE) == MEBIBYTE
        assert len(await page.evaluate("'y'.repeat(1 << 20)")) == MEBIBYTE
    await own.close()
    await other.close()
    await eventually_async(lambda: first.grid.active() == 0, "both slots are free")
    record = first.get(f"/v1/sessions/{there[0]['id']}")
    assert (record["status"], record["bytesOut"] > MEBIBYTE) == ("completed", True)


async def test_a_client_with_its_own_browser_and_one_of_cdp_are_forwarded(
    playwright: Playwright, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    own = await playwright.chromium.connect(first.grid.endpoint)
    for connect in (
        lambda: playwright.chromium.connect(f"{first.grid.endpoint}/?isolation=browser"),
        lambda: playwright.chromium.connect_over_cdp(first.grid.http),
    ):
        browser = await connect()
        await eventually_async(lambda: len(first.live()) == 2, "it is on record, too")
        assert [each["host"] for each in first.live() if each["isolation"] == "browser"] == [second.name]
        page = await browser.new_page()
        assert await page.evaluate("6 * 7") == 42
        await browser.close()
        await eventually_async(lambda: first.grid.active() == 1, "its slot is free")
    await own.close()
