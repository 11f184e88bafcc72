"""Sessions with browsers of their own through a whole grid: how they are asked for, and what they get."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.async_api import Error, Playwright

from tests.conftest import need
from tests.support.client_elsewhere import relay_to_tcp
from tests.support.grid import Grid, eventually, eventually_async, running_grid
from tests.support.recipes import recipe

IN_ITS_OWN_NETWORK = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",)))
SESSIONS = 6


def browsers(grid: Grid) -> list[psutil.Process]:
    """All browsers of a grid."""
    workers = grid.status()["workers"]
    return [each for worker in workers for each in psutil.Process(worker["nodePid"]).children()]


def isolations(grid: Grid) -> list[str]:
    return [each["isolation"] for each in json.loads(grid.get("/v1/sessions")[2])["sessions"]]


async def test_a_client_asks_for_a_browser_of_its_own_and_nothing_is_left_of_it(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "1") as grid:
        assert len(browsers(grid)) == 1
        shared = await playwright.chromium.connect(grid.endpoint)
        line = recipe("isolation.md", "python", "isolation=browser").replace("ws://127.0.0.1:8080", grid.endpoint)
        own = await eval(line.partition("=")[2], {"playwright": playwright})
        assert await (await own.new_page()).evaluate("6 * 7") == 42
        assert await (await shared.new_page()).evaluate("6 * 7") == 42
        assert sorted(isolations(grid)) == ["browser", "context"]
        own_browsers = 'pwgrid_own_browsers{browser_type="chromium",pool="chromium"} 1.0'
        await eventually_async(lambda: own_browsers in grid.get("/metrics")[2].decode(), "the metrics have it")
        await eventually_async(lambda: len(browsers(grid)) == 3, "one more is warm")
        await own.close()
        await eventually_async(lambda: len(browsers(grid)) == 2, "that of the session is gone")
        await shared.close()


@pytest.mark.parametrize("way", ["header", "options"])
async def test_other_ways_to_ask_for_one(playwright: Playwright, grid: Grid, way: str) -> None:
    headers = {"header": {"x-pwgrid-isolation": "browser"}, "options": OPTIONS}[way]
    browser = await playwright.chromium.connect(grid.endpoint, headers=headers)
    page = await browser.new_page()
    assert isolations(grid)[0] == "browser"
    if way == "options":
        assert await page.evaluate("navigator.userAgent") == "of the client"
    await browser.close()


OPTIONS = {"x-playwright-launch-options": json.dumps({"headless": True, "args": ["--user-agent=of the client"]})}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"args": ["--renderer-cmd-prefix=xterm"]}, "--renderer-cmd-prefix"),
        ({"executablePath": "/bin/sh"}, "executablePath"),
        ({"env": {"A": "b"}}, "env"),
        ({"channel": "chrome-canary"}, "channel"),
    ],
)
async def test_what_a_client_may_not_ask_for_is_named(
    playwright: Playwright, grid: Grid, options: dict[str, Any], named: str
) -> None:
    headers = {"x-playwright-launch-options": json.dumps(options)}
    with pytest.raises(Error, match=f"400(.|\n)*{named}"):
        await playwright.chromium.connect(grid.endpoint, headers=headers)


async def test_a_browser_that_does_not_start_with_a_client_s_options_is_its_answer(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment={"ALLOWED_BROWSER_ARGS": "*"}) as grid:
        headers = {"x-playwright-launch-options": json.dumps({"args": ["--version"]})}
        with pytest.raises(Error, match="no browser started with the client's launch options"):
            await playwright.chromium.connect(grid.endpoint, headers=headers)
        assert len(browsers(grid)) <= 2


async def test_a_client_says_how_long_its_launch_may_take(playwright: Playwright, grid: Grid) -> None:
    headers = {"x-playwright-launch-options": json.dumps({"slowMo": 1, "timeout": 1})}
    with pytest.raises(Error, match=r"400(.|\n)*did not start in time"):
        await playwright.chromium.connect(grid.endpoint, headers=headers)
    headers = {"x-playwright-launch-options": json.dumps({"slowMo": 1, "timeout": 10**9})}
    browser = await playwright.chromium.connect(grid.endpoint, headers=headers)
    await browser.close()


async def test_none_is_made_warm_while_the_host_is_short_of_memory(tmp_path: Path) -> None:
    need("chromium")
    configuration = tmp_path / "grid.toml"
    configuration.write_text("")

    def reload(floor_mib: int, *, is_closed: bool) -> None:
        configuration.write_text(f"[memory]\nmin_host_available_mib = {floor_mib}\n")
        assert grid.command("reload").returncode == 0
        eventually(lambda: bool(grid.status()["host"]["guard"]) is is_closed, "the guard follows")

    with running_grid("--config", str(configuration), "--chromium", "1", environment={"ISOLATION": "browser"}) as grid:
        await eventually_async(lambda: len(browsers(grid)) == 2, "two are warm")
        reload(10_000_000, is_closed=True)

        def is_none_left() -> bool:
            for browser in browsers(grid):  # also one that began before the worker heard of the guard
                browser.kill()
            return not browsers(grid)

        await eventually_async(is_none_left, "none is warm")
        with psutil.Popen(["true"]) as now:  # its clock is not that of time.time(), which may be a second apart
            opened_at = now.create_time()
        reload(0, is_closed=False)
        await eventually_async(lambda: len(browsers(grid)) == 2, "two are warm again")
        assert all(each.create_time() >= opened_at for each in browsers(grid))


async def test_a_process_of_one_s_own_ends_with_its_session(playwright: Playwright, tmp_path: Path) -> None:
    need("chromium")
    (tmp_path / "grid.toml").write_text(
        '[[pools]]\nname = "alone"\nbrowser = "chromium"\nworkers = 1\nisolation = "process"\n'
    )
    with running_grid("--config", str(tmp_path / "grid.toml")) as grid:
        (before,) = [each["id"] for each in grid.status()["workers"] if each["status"] == "available"]
        browser = await playwright.chromium.connect(f"{grid.endpoint}/?isolation=process")
        assert isolations(grid) == ["process"]
        await browser.close()

        def available() -> list[str]:
            return [each["id"] for each in grid.status()["workers"] if each["status"] == "available"]

        await eventually_async(lambda: available() and before not in available(), "another worker serves")


@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
async def test_pages_reach_the_network_of_their_client_alone_and_no_port_is_left(tmp_path: Path) -> None:
    need("chromium")
    if subprocess.run([*IN_ITS_OWN_NETWORK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this host allows no network namespaces")
    shown = re.search(r'expose_network="(.*?)"', recipe("isolation.md", "python", "expose_network"))
    assert shown is not None
    environment = {"ISOLATION": "browser", "MAX_CONCURRENT_SESSIONS": str(SESSIONS)}
    with running_grid("--chromium", "1", environment=environment) as grid:
        (node,) = (psutil.Process(worker["nodePid"]) for worker in grid.status()["workers"])
        path = str(tmp_path / "relay")
        async with await asyncio.start_unix_server(partial(relay_to_tcp, grid.port), path):
            client = await asyncio.create_subprocess_exec(
                *(*IN_ITS_OWN_NETWORK, sys.executable, "-m", "tests.support.client_elsewhere"),
                *(path, str(SESSIONS), shown[1]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert client.stdout is not None
            said = json.loads(await client.stdout.readline())
            expected = [[f"site {number}", f"<title>site {number}</title>"] for number in range(SESSIONS)]
            assert said == expected
            ports = [each for each in node.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            assert len(ports) == SESSIONS
            os.killpg(client.pid, signal.SIGKILL)  # it vanishes without a word
            await client.wait()
            await asyncio.to_thread(eventually, lambda: grid.active() == 0, "its sessions are over")
        await eventually_async(
            lambda: not [each for each in node.net_connections("tcp") if each.status == psutil.CONN_LISTEN],
            "no port is left",
        )
