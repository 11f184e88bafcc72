"""Real clients of several Playwright versions at one address at once, each with the driver of its version."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import need
from tests.support.drivers import DRIVERS, MIDDLE, NEWEST, OLDEST, cached_driver, python_client
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid

pytestmark = pytest.mark.timeout(600)  # installers may be among what runs here

PATIENCE_S = 120.0

PROBE = """
import sys
from playwright.sync_api import sync_playwright

def probe(p, url):
    browser = p.chromium.connect(url)
    context = browser.new_context(accept_downloads=True)
    context.tracing.start(snapshots=True)
    page = context.new_page()
    page.set_content("<title>A</title><a download=a.txt href='data:text/plain,hello'>get</a>")
    assert page.title() == "A"
    with page.expect_download() as got:
        page.click("a")
    got.value.save_as(sys.argv[2] + ".txt")
    assert open(sys.argv[2] + ".txt").read() == "hello"
    assert context.new_cdp_session(page).send("Browser.getVersion")["product"]
    context.tracing.stop(path=sys.argv[2] + ".zip")
    return browser

with sync_playwright() as p:
    shared, own = probe(p, sys.argv[1]), probe(p, sys.argv[1] + "/?isolation=browser")
    print("here", flush=True)
    sys.stdin.readline()
    for browser in (shared, own):
        assert browser.new_page().evaluate("6 * 7") == 42
        browser.close()
"""

NODE_PROBE = """
const { chromium } = require(process.argv[1]);
(async () => {
  const browser = await chromium.connect(process.argv[2]);
  const page = await browser.newPage();
  console.log('here');
  await new Promise(resolve => process.stdin.once('data', resolve));
  if (await page.evaluate('6 * 7') !== 42)
    process.exitCode = 1;
  await browser.close();
  process.stdin.destroy();
})();
"""


class Client:
    """A real client that works, says so, and goes on when it is told."""

    def __init__(self, command: list[str], **environment: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def works(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "here\n":
            raise AssertionError(self.said())

    def said(self) -> str:
        return self.process.communicate(timeout=PATIENCE_S)[1]

    def finish(self) -> None:
        errors = self.process.communicate("go on\n", timeout=PATIENCE_S)[1]
        assert self.process.returncode == 0, errors


@contextlib.contextmanager
def clients(*started: Client) -> Iterator[tuple[Client, ...]]:
    try:
        yield started
    finally:
        for each in started:
            if each.process.poll() is None:
                each.process.kill()
            each.process.communicate()


def python(grid: Grid, minor: str, place: Path) -> Client:
    environment = {} if minor == NEWEST else {"PYTHONPATH": str(python_client(minor))}
    return Client([sys.executable, "-c", PROBE, grid.endpoint, str(place / minor)], **environment)


def node(grid: Grid, minor: str, query: str = "") -> Client:
    driver = cached_driver(minor)
    return Client([str(driver.node), "-e", NODE_PROBE, str(driver.core), grid.endpoint + query])


def pools(grid: Grid) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in grid.ask("status")["pools"]}


def canaries(grid: Grid, pool: str, minor: str) -> float:
    """How many pages the grid has opened itself in browsers of this pool that run with this version."""
    families = text_string_to_metric_families(grid.get("/metrics")[2].decode())
    (count,) = (
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "pwgrid_canary_first_page_seconds_count"
        and (sample.labels["pool"], sample.labels["playwright"]) == (pool, minor)
    )
    return count


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "grid.toml"


@pytest.fixture(scope="module")
def grid(config: Path) -> Iterator[Grid]:
    need("chromium")
    for minor in (OLDEST, MIDDLE):
        cached_driver(minor)
    name_pool(config, OLDEST)
    environment = {**WITHOUT_SPARES, "DRIVERS_DIR": str(DRIVERS), "WORKER_SELECT_TIMEOUT": "60", "CANARY_INTERVAL": "1"}
    with running_grid("--chromium", "1", "--config", str(config), environment=environment) as grid:
        yield grid


def name_pool(config: Path, minor: str) -> None:
    """The configuration has a pool of this version."""
    table = {"name": "team", "browser": "chromium", "playwright": minor, "workers": 1}
    config.write_text("[[pools]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()))


def test_clients_of_three_versions_work_at_one_address_at_once(grid: Grid, tmp_path: Path) -> None:
    """One version has the default pool, one a pool of the configuration, one is only installed."""
    versions = (OLDEST, MIDDLE, NEWEST)
    started = [*(python(grid, minor, tmp_path) for minor in versions), node(grid, OLDEST), node(grid, MIDDLE)]
    with clients(*started):
        for client in started:
            client.works()
        found = {worker["pool"]: worker["playwrightVersion"] for worker in grid.ask("status")["workers"]}
        assert {pool: version.rpartition(".")[0] for pool, version in found.items()} == {
            "chromium": NEWEST,
            "team": OLDEST,
            f"chromium-{MIDDLE}": MIDDLE,
        }
        for client in started:
            client.finish()


def test_a_client_prints_that_its_pool_has_another_version(grid: Grid) -> None:
    with clients(node(grid, MIDDLE, "/?pool=chromium")) as (client,):
        said = client.said()
    assert f"this client is Playwright {MIDDLE}, and pool chromium is for Playwright {NEWEST}" in said


def test_a_pool_gets_another_version_while_clients_of_both_work_and_both_finish(grid: Grid, config: Path) -> None:
    with clients(node(grid, OLDEST, "/?pool=team")) as (old,):
        old.works()
        name_pool(config, MIDDLE)
        assert grid.command("reload").returncode == 0
        with clients(node(grid, MIDDLE, "/?pool=team"), node(grid, OLDEST)) as (new, again):
            new.works()
            again.works()  # in a pool that starts for it: no pool names its version any more
            assert pools(grid)[f"chromium-{OLDEST}"]["available"] == 1
            for minor in (OLDEST, MIDDLE):  # each browser is tried, and counts for the version that it runs with
                before = canaries(grid, "team", minor)
                eventually(lambda: canaries(grid, "team", minor) > before, f"a page of the grid's own, {minor}")  # noqa: B023
            for client in (new, again, old):
                client.finish()
    eventually(lambda: pools(grid)["team"]["draining"] == 0, "the worker of the old version has ended")
