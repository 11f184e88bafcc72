"""Browsers with a display, for clients that ask for one in a pool without: real Chromium and Firefox on real Xvfb."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Error, Playwright

from pwgrid.common.confined_exec import abi
from pwgrid.installed.channels import find_channel
from pwgrid.installed.headed import find_xvfb
from pwgrid.runtime.display_sockets import SOCKETS
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.displays import Display
from tests.conftest import counters_are_exact, need, need_headed
from tests.support.grid import Grid, eventually, eventually_async, running_grid
from tests.support.recipes import recipe

HEADED = {"x-playwright-launch-options": json.dumps({"headless": False})}
WINDOW = "[navigator.userAgent, window.outerWidth, window.outerHeight - window.innerHeight]"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Grid]:
    need_headed("chromium")
    with running_grid("--chromium", "1", environment={"BLOCK_FILE_URLS": "off"}) as grid:
        yield grid


@pytest.fixture
def grid(chromium: Grid) -> Iterator[Grid]:
    """One for all tests that need no other settings. Afterwards it has no session and no display, and its one worker
    serves."""
    yield chromium
    counters_are_exact(chromium)
    eventually(lambda: not displays(chromium) and not x_servers(chromium), "nothing is left")
    eventually(lambda: [each["status"] for each in chromium.status()["workers"]] == ["available"], "one worker serves")


def x_servers(grid: Grid) -> list[int]:
    """Their pids."""
    return [pid for pid, command in grid.processes().items() if "Xvfb" in command.partition(" ")[0]]


def displays(grid: Grid) -> list[Path]:
    return sorted(grid.runtime.glob("w/*/displays/*"))


def x_socket(display: Path) -> Path:
    return SOCKETS / f"X{display.name}"


async def test_each_client_that_asks_for_a_window_has_one_on_a_display_of_its_own(
    playwright: Playwright, grid: Grid
) -> None:
    shared = await playwright.chromium.connect(grid.endpoint)
    line = recipe("isolation.md", "python", "headless").replace("ws://127.0.0.1:8080", grid.endpoint)
    one = await eval(line.partition("=")[2], {"playwright": playwright})
    other = await playwright.chromium.connect(grid.endpoint, headers=HEADED)
    for browser in (one, other):
        page = await browser.new_page()
        user_agent, width, frame = await page.evaluate(WINDOW)
        assert "Headless" not in user_agent
        assert width > 0
        assert frame > 0, "a window has a frame with an address bar"
    assert "Headless" in await (await shared.new_page()).evaluate("navigator.userAgent")
    first, second = displays(grid)
    assert len(x_servers(grid)) == 2

    # What is written for one is not read by the other, nor may anybody connect without the cookie.
    pages = [browser.contexts[0].pages[0] for browser in (one, other)]
    for page in pages:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.goto(f"http://127.0.0.1:{grid.port}/healthz")
    await pages[0].evaluate("navigator.clipboard.writeText('of one')")
    assert await pages[0].evaluate("navigator.clipboard.readText()") == "of one"
    assert await pages[1].evaluate("navigator.clipboard.readText()") == ""
    for display in (first, second):
        assert x_socket(display).stat().st_mode & 0o777 == 0o600
        assert not answers_without_cookie(x_socket(display))

    await one.close()
    await eventually_async(lambda: len(displays(grid)) == len(x_servers(grid)) == 1, "its display is gone")
    assert [each for each in (first, second) if x_socket(each).exists()] == displays(grid)
    await other.new_page()
    await other.close()
    await eventually_async(lambda: not displays(grid) and not x_servers(grid), "nothing is left")
    await shared.close()
    assert not any(x_socket(each).exists() for each in (first, second))


def answers_without_cookie(path: Path) -> bool:
    """Whether the X server at this socket takes a client that says no cookie."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"l\0" + (11).to_bytes(2, "little") + bytes(8))
        return client.recv(1) == b"\1"


@pytest.mark.skipif(abi() == 0, reason="this kernel has no Landlock")
async def test_the_kernel_lets_a_browser_reach_its_own_display_alone(playwright: Playwright, grid: Grid) -> None:
    browser = await playwright.chromium.connect(grid.endpoint, headers=HEADED)
    (own,) = displays(grid)
    neighbour = await playwright.chromium.connect(grid.endpoint, headers=HEADED)
    (other,) = [each for each in displays(grid) if each != own]
    page = await browser.new_page()
    with pytest.raises(Error, match="Download is starting"):  # it can read that
        await page.goto(f"file://{own}/auth")
    with pytest.raises(Error, match=r"ERR_ACCESS_DENIED|ERR_FILE_NOT_FOUND"):
        await page.goto(f"file://{other}/auth")
    await browser.close()
    await neighbour.close()


async def test_a_display_outlives_a_worker_goes_with_its_browser_and_with_a_grid_that_is_killed_whole_at_the_next_start(
    playwright: Playwright, grid: Grid
) -> None:
    said = len(grid.output())
    for killed in ("display", "worker", "node"):
        browser = await playwright.chromium.connect(grid.endpoint, headers=HEADED)
        page = await browser.new_page()
        (display,) = displays(grid)
        (worker,) = grid.status()["workers"]
        (x_server,) = x_servers(grid)
        os.kill({"worker": worker["pid"], "node": worker["nodePid"], "display": x_server}[killed], signal.SIGKILL)
        if killed == "worker":
            await eventually_async(lambda: "browser_server_taken_over" in grid.output()[said:], "a successor has it")
            assert await page.evaluate("6 * 7") == 42
            assert x_servers(grid) == [x_server]
            await browser.close()
        await eventually_async(
            lambda display=display: not display.exists() and not x_servers(grid), "nothing of it is left"
        )
        assert not x_socket(display).exists()
        left = {"display": [], "worker": [worker["id"]], "node": [worker["id"]]}[killed]
        await eventually_async(
            lambda left=left: (
                [each["status"] for each in grid.status()["workers"]] == ["available"]
                and grid.status()["workers"][0]["id"] not in left
            ),
            "one worker serves",
        )

    await playwright.chromium.connect(grid.endpoint, headers=HEADED)
    (display,) = displays(grid)
    while living := grid.processes():
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    grid.process.wait()
    assert x_socket(display).exists()
    grid.start_again()
    assert not x_socket(display).exists()
    assert not displays(grid)


async def test_what_is_missing_is_said_with_the_command_that_adds_it(playwright: Playwright, tmp_path: Path) -> None:
    """The fake browser server stands in for Playwright: no browser is asked."""
    need("chromium")
    with running_grid("--chromium", "1", environment={"PATH": str(tmp_path)}, fake=True) as grid:
        with pytest.raises(Error, match=r"400(.|\n)*no Xvfb(.|\n)*pwgrid setup --headed"):
            await playwright.chromium.connect(grid.endpoint, headers=HEADED)
        assert not displays(grid)
        assert not x_servers(grid)


async def test_firefox_with_a_window(playwright: Playwright) -> None:
    need_headed("firefox")
    environment = {"ISOLATION": "browser", "WARM_BROWSERS": "0"}  # none starts but the client's
    with running_grid("--chromium", "0", "--firefox", "1", environment=environment) as grid:
        browser = await playwright.firefox.connect(grid.endpoint, headers=HEADED)
        page = await browser.new_page()
        _, width, frame = await page.evaluate(WINDOW)
        assert width > 0
        assert frame > 0
        await browser.close()
        await eventually_async(lambda: not displays(grid) and not x_servers(grid), "nothing is left")


async def test_a_pool_with_windows_has_them_on_the_display_of_its_grid(playwright: Playwright, tmp_path: Path) -> None:
    need_headed("chromium")
    display = await Display.start(tmp_path / "displays", find_xvfb(), Settings())
    try:
        with running_grid("--chromium", "1", environment={"HEADLESS": "false", **display.environment}) as grid:
            shared = await playwright.chromium.connect(grid.endpoint, headers=HEADED)
            own = await playwright.chromium.connect(f"{grid.endpoint}/?isolation=browser", headers=HEADED)
            for browser in (shared, own):
                user_agent, _, frame = await (await browser.new_page()).evaluate(WINDOW)
                assert "Headless" not in user_agent
                assert frame > 0
                await browser.close()
            assert not displays(grid)
    finally:
        display.end()
    assert not x_socket(display.directory).exists()


async def test_the_channel_chromium_is_a_full_one_without_a_window(playwright: Playwright, grid: Grid) -> None:
    need_headed("chromium")
    headers = {"x-playwright-launch-options": json.dumps({"channel": "chromium"})}
    browser = await playwright.chromium.connect(grid.endpoint, headers=headers)
    executable = find_channel("chromium", Settings().pools_wanted()["chromium"], Settings()).executable
    assert await (await browser.new_page()).evaluate("6 * 7") == 42
    assert [each for each in grid.processes().values() if each.startswith(f"{executable} ") and "--type" not in each]
    assert not displays(grid)
    await browser.close()
