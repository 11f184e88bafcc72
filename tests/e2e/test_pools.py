"""Pools with real browsers: each has its own browser, settings and label keys, and comes and goes with a reload."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Playwright

from tests.conftest import counters_are_exact, need
from tests.support.browsers import fit_browser
from tests.support.grid import NEVER, ROOT, Grid, eventually, eventually_async, running_grid
from tests.support.leases import borrow, lease_now
from tests.support.raw import connect, goes_on, head, read_all, session

APPA = """
[[pools]]
name = "appa"
browser = "chromium"
slots = 2
args = ["--user-agent=OfPoolA"]
env = { TZ = "Asia/Tokyo" }
labels = ["AppA:Chromium:Staging", "AppA:Chromium:UAT:EU"]
"""
APPB = """
[[pools]]
name = "appb"
slots = 1
proxy = "http://127.0.0.1:9"
labels = ["AppB:Chromium:UAT"]
"""
FOXES = """
[[pools]]
name = "foxes"
labels = ["AppB:Firefox:UAT"]
"""
APPC = """
[[pools]]
name = "appc"
browser = "chromium"
"""

CHROME = """
[[pools]]
name = "branded"
browser = "chromium"
channel = "chrome"
"""

PLAIN = """
[[pools]]
name = "plain"
browser = "chromium"
"""

# What is below /opt stays there: this very Python may be.
WITH_CHROME = """
mount --make-rprivate /
mount -t tmpfs none "$1"
for each in /opt/*; do
  name=${each##*/}
  [ -d "$each" ] && [ "$name" != google ] || continue
  mkdir "$1/$name"
  mount --rbind "$each" "$1/$name"
done
mkdir -p "$1/google/chrome"
printf '#!/bin/sh\\nexec "%s" "--launched-as=$0" "$@"\\n' "$2" > "$1/google/chrome/chrome"
chmod 755 "$1/google/chrome/chrome"
mount --rbind "$1" /opt
shift 2
exec "$@"
"""


@pytest.fixture
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        yield Path(directory) / "grid.toml"


def pool_of(grid: Grid, name: str) -> dict[str, Any] | None:
    return next((pool for pool in grid.ask("status")["pools"] if pool["name"] == name), None)


def workers_of(grid: Grid, pool: str, *, status: str = "available") -> list[str]:
    return [each["id"] for each in grid.ask("status")["workers"] if (each["pool"], each["status"]) == (pool, status)]


async def seen(browser: Browser) -> tuple[str, str]:
    page = await browser.new_page()
    found: list[str] = await page.evaluate("[navigator.userAgent, Intl.DateTimeFormat().resolvedOptions().timeZone]")
    return found[0], found[1]


async def by_label_key(grid: Grid, playwright: Playwright) -> None:
    """A free slot of each pool, asked for by a label key: one of the pool's, a longer, or a shorter one."""
    for label_key in ("AppA:Chromium:Staging", "appa:chromium:uat", "AppA:Chromium:UAT:EU:Linux"):
        browser = await playwright.chromium.connect(f"{grid.endpoint}/?labels={label_key}&name=by%20key")
        assert (await seen(browser))[0] == "OfPoolA"
        await browser.close()
    lease = await asyncio.to_thread(borrow, grid, "AppB:Firefox", runName="borrowed")
    assert (lease["browserType"], lease["labelKey"]) == ("firefox", "AppB:Firefox:UAT")
    firefox = await playwright.firefox.connect(lease["webSocketEndpoint"])
    assert "Firefox" in (await seen(firefox))[0]
    with pytest.raises(Exception, match="the lease is for firefox, but the client is chromium"):
        await playwright.chromium.connect(lease["webSocketEndpoint"])
    await firefox.close()
    await eventually_async(lambda: lease_now(grid, lease)["status"] == "returned", "it is returned with its client")
    assert lease_now(grid, lease)["pool"] == "foxes"
    with pytest.raises(Exception, match="no pool serves the label key AppC:Chromium:UAT: there are AppA:Chromium:Stag"):
        await playwright.chromium.connect(f"{grid.endpoint}/?labels=AppC:Chromium:UAT")


async def test_three_pools_with_four_label_keys_and_a_reload_under_a_live_session(
    playwright: Playwright, file: Path
) -> None:
    need("chromium")
    need("firefox")
    file.write_text(APPA + APPB + FOXES)
    environment = {"MAX_LIFETIME_SESSIONS": NEVER, "DRAIN_TIMEOUT": "0.5"}
    with running_grid("--config", str(file), environment=environment) as grid:
        assert [each["name"] for each in grid.ready["pools"] if each["wanted"] == 1] == ["appa", "appb", "foxes"]
        appa = await playwright.chromium.connect(grid.endpoint)  # the first pool of its type
        appb = await playwright.chromium.connect(f"{grid.endpoint}/?pool=appb")
        foxes = await playwright.firefox.connect(grid.endpoint)
        agent, zone = await seen(appa)
        assert (agent, zone) == ("OfPoolA", "Asia/Tokyo")
        agent, zone = await seen(appb)
        assert ("OfPoolA" not in agent, zone != "Asia/Tokyo") == (True, True)
        assert "Firefox" in (await seen(foxes))[0]
        with pytest.raises(Exception, match="ERR_PROXY_CONNECTION_FAILED"):
            await (await appb.new_page()).goto("http://example.invalid/")

        labels = {}
        for key in grid.redis("KEYS", "worker:*:*"):
            pool, text, slots = grid.redis("HMGET", key, "pool", "labels", "slots")
            labels[pool.decode()] = (text.decode(), int(slots))
        assert labels == {
            "appa": ("AppA:Chromium:Staging,AppA:Chromium:UAT:EU", 2),
            "appb": ("AppB:Chromium:UAT", 1),
            "foxes": ("AppB:Firefox:UAT", 5),
        }
        sessions = [grid.redis("HGET", key, "pool").decode() for key in grid.redis("KEYS", "session:*")]
        assert sorted(sessions) == ["appa", "appb", "foxes"]
        text = grid.command("status").stdout
        assert "AppA:Chromium:Staging, AppA:Chromium:UAT:EU" in text
        assert 'pwgrid_workers_wanted{browser_type="firefox",pool="foxes"} 1.0' in grid.get("/metrics")[2].decode()
        assert grid.command("scale", "appb=2").stdout == "appa 1, appb 2, foxes 1\n"

        await by_label_key(grid, playwright)

        # appb goes under its live session, appc comes, appa changes: its one worker is replaced first, then drains
        (old,) = workers_of(grid, "appa")
        # Not what the master knows alone: its figures are some seconds old.
        (held,) = [each for each in grid.status()["workers"] if each["pool"] == "appb" and each["active"]]
        key = "AppB:Chromium:UAT"
        file.write_text(APPA.replace("slots = 2", "slots = 3") + FOXES + APPC + f'labels = ["{key}"]\n')
        assert grid.command("reload").stdout == (
            "changed: pools; pools added: appc; pools removed: appb; recycling 1 worker, one after the other\n"
        )
        with pytest.raises(Exception, match="there is no pool 'appb'; pools are: appa, foxes, appc"):
            await playwright.chromium.connect(f"{grid.endpoint}/?pool=appb")
        await eventually_async(lambda: workers_of(grid, "appc"), "the new pool serves")
        appc = await playwright.chromium.connect(f"{grid.endpoint}/?pool=appc")
        await eventually_async(lambda: old not in workers_of(grid, "appa"), "the changed pool is recycled")
        (new,) = workers_of(grid, "appa")
        assert grid.redis("HGET", f"worker:chromium:{new}", "slots") == b"3"
        told = [line for line in grid.output().splitlines() if old in line or new in line]
        serves = next(n for n, line in enumerate(told) if "worker_available" in line and new in line)
        drains = next(n for n, line in enumerate(told) if "worker_drain_asked" in line and old in line)
        assert serves < drains  # there was never one less
        removed = pool_of(grid, "appb")
        assert removed is not None
        assert (removed["removed"], removed["wanted"]) == (True, 0)
        (draining,) = [each for each in grid.status()["workers"] if each["pool"] == "appb"]
        assert (draining["id"], draining["status"], draining["active"]) == (held["id"], "draining", 1)
        assert draining["drainLeftS"] > 3000  # not DRAIN_TIMEOUT
        capacity = json.loads(grid.get("/v1/capacity")[2])
        assert capacity["labels"][key] == capacity["pools"]["appc"]  # the key has moved
        for browser in (appa, appb, foxes, appc):
            assert len(await seen(browser)) == 2  # all that were live still are
            await browser.close()
        await eventually_async(lambda: pool_of(grid, "appb") is None, "the removed pool has gone with its last worker")
        assert {each["cut"] for each in grid.ask("status")["drained"]} == {0}

        done = grid.command("drain", "--pool", "appc", "--wait")
        assert done.returncode == 0, done.stderr
        await eventually_async(lambda: len(workers_of(grid, "appc")) == 1, "its replacement serves")
        counters_are_exact(grid)


def test_another_master_goes_on_with_the_workers_of_a_pool_that_is_configured_no_more(file: Path) -> None:
    file.write_text(APPA + APPC)
    with running_grid("--config", str(file), environment={"MAX_LIFETIME_SESSIONS": NEVER}, fake=True) as grid:
        (kept,), (gone,) = workers_of(grid, "appa"), workers_of(grid, "appc")
        grid.kill_master()
        file.write_text(APPA)
        grid.start_again()
        assert workers_of(grid, "appa") == [kept]
        eventually(lambda: pool_of(grid, "appc") is None, "the pool is gone with its worker")
        assert gone not in {each["id"] for each in grid.ask("status")["workers"]}
        assert grid.ask("status")["drained"][-1]["id"] == gone


def test_an_upgrade_replaces_the_workers_of_every_pool_and_a_session_goes_on(file: Path) -> None:
    file.write_text(APPA + APPC)
    with (
        running_grid("--config", str(file), environment={"MAX_LIFETIME_SESSIONS": NEVER}, fake=True) as grid,
        session(grid.port, "/?pool=appa") as live,
    ):
        before = {pool: workers_of(grid, pool) for pool in ("appa", "appc")}
        done = grid.command("upgrade", "--force", timeout_s=120)
        assert "the master, the proxy and 2 workers run the new code" in done.stdout, done
        for pool, old in before.items():
            (new,) = workers_of(grid, pool)
            assert new not in old
        assert goes_on(live)
        with session(grid.port, "/?labels=AppA:Chromium:UAT:EU"):
            (new,) = workers_of(grid, "appa")
            counter = ("HGET", "cluster:active_connections", f"chromium:{new}")
            assert grid.redis(*counter) == b"1"  # the new worker has it


def test_who_waits_for_a_pool_that_goes_is_told_at_once(file: Path) -> None:
    file.write_text(APPA.replace("slots = 2", "slots = 1") + APPC)
    environment = {"WORKER_SELECT_TIMEOUT": "600", "MAX_LIFETIME_SESSIONS": NEVER, "RECYCLE_DRAIN_TIMEOUT": "600"}
    with (
        running_grid("--config", str(file), environment=environment, fake=True) as grid,
        session(grid.port, "/?pool=appa") as live,
        connect(grid.port) as waiting,
    ):
        waiting.sendall(head(target="/?pool=appa"))
        eventually(lambda: grid.ask("status")["waitingByRun"], "one waits")
        assert [(each["pool"], each["waiting"]) for each in grid.ask("status")["waitingByRun"]] == [("appa", 1)]
        file.write_text(APPC)
        assert grid.command("reload").returncode == 0
        assert b"there is no pool appa any more" in read_all(waiting)
        assert goes_on(live)


def as_chrome(directory: Path) -> tuple[str, ...]:
    """A command before another one, for which this host's Chromium is an installed Chrome, with one argument more that
    names it. Skips, with the reason, where there can be no such namespace."""
    need("chromium")
    directory.mkdir()
    of_its_own = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    executable = fit_browser("chromium").executable
    under = (*of_its_own, "sh", "-euc", WITH_CHROME, "sh", str(directory), executable)
    try:
        subprocess.run([*under, "true"], check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no mount namespace can be had here: {error.stderr.strip()}")
    return under


async def test_an_installed_chrome_is_launched_for_its_pool_and_for_a_client_of_another_one(
    playwright: Playwright, file: Path
) -> None:
    """Playwright looks for it at /opt/google/chrome/chrome, which only this grid's namespace has."""
    under = as_chrome(file.with_name("opt"))
    file.write_text(CHROME + PLAIN)
    with running_grid("--config", str(file), under=under) as grid:

        def chromes() -> list[str]:
            commands = grid.processes().values()
            return [
                each for each in commands if "--launched-as=/opt/google/chrome/chrome" in each and "--type" not in each
            ]

        before = chromes()
        headers = {"x-playwright-launch-options": '{"channel": "chrome", "args": ["--user-agent=of the client"]}'}
        browser = await playwright.chromium.connect(f"{grid.endpoint}/?pool=plain", headers=headers)
        assert await (await browser.new_page()).evaluate("navigator.userAgent") == "of the client"
        assert len(chromes()) == len(before) + 1
        await browser.close()
        await eventually_async(lambda: len(chromes()) == len(before), "it ends with its session")
        browser = await playwright.chromium.connect(f"{grid.endpoint}/?pool=branded")
        page = await browser.new_page()
        await page.set_content("<title>served</title>")
        assert await page.title() == "served"
        await browser.close()
        assert any("--launched-as=/opt/google/chrome/chrome" in command for command in grid.processes().values())
        await asyncio.to_thread(counters_are_exact, grid)


@pytest.mark.skipif(Path("/opt/microsoft/msedge-dev/msedge").exists(), reason="that Edge is installed here")
def test_a_channel_that_is_not_installed_is_told_before_and_at_the_start(file: Path) -> None:
    file.write_text(CHROME.replace('"chrome"', '"msedge-dev"'))
    sentence = (
        "the channel of pool branded is msedge-dev, and there is no such browser at /opt/microsoft/msedge-dev/msedge"
    )

    def told(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pwgrid", *command, "--config", str(file)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, text = told("config", "check")
    assert (code, f"warning: on this host {sentence}: install it there" in text) == (0, True), text
    code, text = told("serve")
    assert (code, f"{sentence}: install it there" in text) == (1, True), text
    code, text = told("doctor")
    assert (code, sentence in text) == (1, True), text
