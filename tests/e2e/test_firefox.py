"""Real Firefox, Playwright's own or a stock one, behind the same endpoint as Chromium."""

import json
import os
import signal
from typing import Any

import psutil
import pytest
from playwright.async_api import Error, Playwright

from pwgrid.common.confined_exec import abi
from tests.conftest import counters_are_exact, need
from tests.support.grid import Grid, eventually_async, running_grid


async def test_a_pool_of_firefox_is_scaled_up_from_nothing_serves_beside_chromium_and_goes(
    playwright: Playwright,
) -> None:
    need("firefox")
    need("chromium")
    with running_grid("--chromium", "1") as grid:
        done = grid.command("scale", "firefox=1")
        assert done.returncode == 0, done.stderr
        await eventually_async(lambda: len(serving(grid)) == 1, "it serves")
        await firefox_and_chromium_are_told_apart_by_the_client_and_by_the_url(grid, playwright)
        await nothing_is_left_of_a_firefox_whose_node_process_is_killed(grid, playwright)
        assert grid.command("scale", "firefox=0").returncode == 0
        await eventually_async(lambda: not workers(grid), "it is gone")
        refused = grid.command("scale", "webkit=1")
        assert (refused.returncode, "webkit" in refused.stderr.lower()) == (1, True)
        counters_are_exact(grid)


def workers(grid: Grid) -> list[dict[str, Any]]:
    """Those of Firefox."""
    return [each for each in grid.status()["workers"] if each["browserType"] == "firefox"]


def serving(grid: Grid) -> list[dict[str, Any]]:
    return [each for each in workers(grid) if each["status"] == "available"]


async def firefox_and_chromium_are_told_apart_by_the_client_and_by_the_url(grid: Grid, playwright: Playwright) -> None:
    firefox = await playwright.firefox.connect(grid.endpoint)
    chromium = await playwright.chromium.connect(grid.endpoint)
    named = await playwright.firefox.connect(grid.endpoint + "/?browser=firefox")
    browsers = firefox, chromium, named
    agents = [await (await browser.new_page()).evaluate("navigator.userAgent") for browser in browsers]
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
    for browser in browsers:
        await browser.close()
    counters_are_exact(grid)


async def nothing_is_left_of_a_firefox_whose_node_process_is_killed(grid: Grid, playwright: Playwright) -> None:
    browser = await playwright.firefox.connect(grid.endpoint)
    await browser.new_page()
    (worker,) = workers(grid)
    tree = {pid for pid, line in grid.processes().items() if f"/w/{worker['id']}/" in line}
    assert tree
    os.kill(worker["nodePid"], signal.SIGKILL)
    await eventually_async(lambda: not tree & set(grid.processes()), "its Firefox is gone", 5)
    await eventually_async(
        lambda: [each["id"] for each in serving(grid)] not in ([], [worker["id"]]), "a replacement serves"
    )
    again = await playwright.firefox.connect(grid.endpoint)
    await again.close()


async def test_each_session_of_a_pool_may_have_a_firefox_of_its_own(playwright: Playwright) -> None:
    need("firefox")
    environment = {"ISOLATION": "browser", "WARM_BROWSERS": "1"}
    with running_grid("--chromium", "0", "--firefox", "1", environment=environment) as grid:
        (worker,) = grid.status()["workers"]
        node = psutil.Process(worker["nodePid"])

        def firefoxes() -> list[psutil.Process]:
            return [each for each in node.children() if each.status() != psutil.STATUS_ZOMBIE]

        preferences = {"firefoxUserPrefs": {"general.useragent.override": "of the client"}}
        options = {"x-playwright-launch-options": json.dumps(preferences)}
        one = await playwright.firefox.connect(grid.endpoint)
        other = await playwright.firefox.connect(grid.endpoint, headers=options)
        agents = []
        for browser in (one, other):
            page = await browser.new_page()
            await page.goto("data:text/html,<title>hello</title>")
            assert await page.title() == "hello"
            agents.append(await page.evaluate("navigator.userAgent"))
        assert "Firefox" in agents[0]
        assert agents[1] == "of the client"
        assert len(firefoxes()) >= 2
        await one.close()
        await other.close()
        await eventually_async(lambda: len(firefoxes()) == 1, "those of the sessions are gone, one is warm")
        own = grid.runtime / "w" / worker["id"] / "own"
        await eventually_async(lambda: len(list(own.iterdir())) == 1, "their files are gone")
        counters_are_exact(grid)
