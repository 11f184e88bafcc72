"""Real Firefox, Playwright's own or a stock one, behind the same endpoint as Chromium."""

import os
import signal

import pytest
from playwright.async_api import Error, Playwright

from pwgrid.common.restricted_exec import abi
from tests.conftest import counters_are_exact, need
from tests.support.grid import WITHOUT_SPARES, eventually_async, running_grid


async def test_firefox_and_chromium_are_told_apart_by_the_client_and_by_the_url(playwright: Playwright) -> None:
    need("firefox")
    need("chromium")
    with running_grid("--chromium", "1", "--firefox", "1") as grid:
        firefox = await playwright.firefox.connect(grid.endpoint)
        chromium = await playwright.chromium.connect(grid.endpoint)
        named = await playwright.firefox.connect(grid.endpoint + "/?browser=firefox")
        agents = [
            await (await browser.new_page()).evaluate("navigator.userAgent") for browser in (firefox, chromium, named)
        ]
        assert ["Firefox" in agent for agent in agents] == [True, False, True]
        with pytest.raises(Exception, match="make them agree"):
            await playwright.firefox.connect(grid.endpoint + "/?browser=chromium")
        page = await firefox.new_page()
        await page.goto("data:text/html,<title>hello</title>")
        assert await page.title() == "hello"
        await page.goto("file:///usr/lib/os-release")
        if abi() > 0:  # the kernel can keep it from the rest
            with pytest.raises(Error):
                await page.goto(f"file://{grid.temporary}/grid.log")
        for browser in (firefox, chromium, named):
            await browser.close()
        counters_are_exact(grid)


async def test_nothing_is_left_of_a_firefox_whose_node_process_is_killed(playwright: Playwright) -> None:
    need("firefox")
    with running_grid("--chromium", "0", "--firefox", "1", environment=WITHOUT_SPARES) as grid:
        browser = await playwright.firefox.connect(grid.endpoint)
        await browser.new_page()
        (worker,) = grid.status()["workers"]
        tree = {pid for pid, line in grid.processes().items() if f"/w/{worker['id']}/" in line}
        assert tree
        os.kill(worker["nodePid"], signal.SIGKILL)
        await eventually_async(lambda: not tree & set(grid.processes()), "its Firefox is gone", 5)
        await eventually_async(
            lambda: (
                [each["status"] for each in grid.status()["workers"] if each["id"] != worker["id"]] == ["available"]
            ),
            "a replacement serves",
            60,
        )
        again = await playwright.firefox.connect(grid.endpoint)
        await again.close()


async def test_a_pool_may_be_scaled_up_from_nothing_and_down_again(playwright: Playwright) -> None:
    need("firefox")
    need("chromium")
    with running_grid("--chromium", "1", environment=WITHOUT_SPARES) as grid:
        done = grid.command("scale", "firefox=1")
        assert done.returncode == 0, done.stderr
        await eventually_async(
            lambda: (
                [each["status"] for each in grid.status()["workers"] if each["browserType"] == "firefox"]
                == ["available"]
            ),
            "it serves",
            60,
        )
        await (await playwright.firefox.connect(grid.endpoint)).close()
        assert grid.command("scale", "firefox=0").returncode == 0
        await eventually_async(
            lambda: "firefox" not in {each["browserType"] for each in grid.status()["workers"]}, "it is gone", 60
        )
        refused = grid.command("scale", "webkit=1")
        assert (refused.returncode, "webkit" in refused.stderr.lower()) == (1, True)
        counters_are_exact(grid)
