"""Two grids with real browsers that name the same Redis: clients of one drive browsers of the other."""

import contextlib
import re
from collections.abc import Iterator

import pytest
from playwright.async_api import Playwright, expect

from tests.conftest import counters_are_exact, need
from tests.e2e.test_dashboard import IS_COLOURED
from tests.support.grid import WITHOUT_SPARES, eventually, eventually_async, running_grid
from tests.support.hosts import TIMES, Host, know_each_other
from tests.support.redis import RedisServer

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def own_hosts() -> Iterator[tuple[Host, Host]]:
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


@pytest.fixture
def hosts(own_hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Both, with nothing taken: a slot comes free a moment after its client has gone, and until then the next client of
    the first host gets the second one's."""
    eventually(lambda: own_hosts[0].grid.active() == 0, "nothing is taken")
    return own_hosts


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


async def test_the_page_of_one_host_shows_and_steers_all_and_a_session_of_another_is_looked_at_there(
    playwright: Playwright, hosts: tuple[Host, Host]
) -> None:
    first, second = hosts
    looks = await playwright.chromium.connect(first.grid.endpoint)
    other = await playwright.chromium.connect(first.grid.endpoint)
    shown = await other.new_page()
    await shown.set_content("<body style='margin:0;background:rgb(200, 0, 0)'>")
    page, said = await looks.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(first.grid.http)
    for name, label in ((first.name, f"{first.name} (this one)"), (second.name, second.name)):
        row = page.locator("#hosts tbody tr").filter(has_text=name)
        await expect(row.locator("th")).to_have_text(label)
        await expect(row.locator("td").nth(2)).to_have_text("1 of 1 slot")
        (worker,) = (first if name == first.name else second).workers()
        await expect(page.get_by_label(f"worker {worker}", exact=True)).to_contain_text(f"on {name}")
    pool = page.get_by_label("pool chromium", exact=True)
    await expect(pool.locator(".words")).to_contain_text(
        f"2 of 2 slots taken ({first.name}: 1 of 1, {second.name}: 1 of 1)"
    )
    await pool.get_by_label("Host of chromium").select_option(second.name)
    await pool.get_by_role("button", name="Scale").click()
    await expect(page.locator("#notice")).to_have_text(f"chromium wants 1 worker on {second.name} now.")
    session = page.locator("#sessions tbody tr").filter(has_text=f"on {second.name}").filter(has_text="running")
    await session.get_by_role("button", name="View").click()
    for colour in ("rgb(200, 0, 0)", "rgb(0, 0, 220)"):
        await shown.evaluate("colour => { document.body.style.background = colour }", colour)
        await page.wait_for_function(IS_COLOURED, arg=colour)
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Close").click()
    await session.get_by_role("button", name="End").click()
    await expect(page.locator("#notice")).to_have_text(re.compile("^Session .* is being ended"))
    await eventually_async(lambda: not other.is_connected(), "its client hears that it is over")
    assert said == []
    await looks.close()
