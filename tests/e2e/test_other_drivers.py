"""Real clients of the oldest Playwright, of one in the middle and of the newest, at one address: each with a pool of
its version, and with all that the grid gives."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from pwgrid.common.playwright_version import minor_of
from pwgrid.installed.browsers import SearchPaths
from pwgrid.installed.driver import Driver
from pwgrid.setup.ffmpeg import ensure_ffmpeg
from pwgrid.setup.packages import Host, Steps
from tests.conftest import counters_are_exact, need
from tests.support.drivers import DRIVERS, MIDDLE, NEWEST, OLDEST, cached_driver, python_client
from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, running_grid

pytestmark = pytest.mark.timeout(600)  # installers may be among what runs here

MINORS = (OLDEST, MIDDLE, NEWEST)
POOL = """
[[pools]]
name = "v{number}"
browser = "chromium"
playwright = "{minor}"
slots = 3
"""


class Versions:
    """A grid with a pool for each version, and where clients of a version connect."""

    def __init__(self, grid: Grid, drivers: dict[str, Driver], has_video: bool, directory: Path) -> None:
        self.grid, self.drivers, self.has_video, self.directory = grid, drivers, has_video, directory

    def endpoint(self, minor: str) -> str:
        return f"{self.grid.endpoint}/?pool=v{number_of(minor)}"

    def probe(self, minor: str, *command: str, **environment: str) -> "subprocess.Popen[str]":
        endpoint = self.endpoint(minor)
        directory = tempfile.mkdtemp(dir=self.directory)
        arguments = [endpoint, f"{endpoint}&isolation=browser", directory, "video" if self.has_video else ""]
        return subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "TMPDIR": directory, **environment},
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
        )


def number_of(minor: str) -> str:
    return minor.replace(".", "")


@pytest.fixture(scope="module")
def versions() -> Iterator[Versions]:
    need("chromium")
    drivers = {minor: cached_driver(minor) for minor in MINORS}
    python_client(OLDEST)
    directory = Path(tempfile.mkdtemp(prefix="pgv-", dir="/tmp"))
    config = directory / "grid.toml"
    config.write_text("".join(POOL.format(number=number_of(minor), minor=minor) for minor in MINORS))
    environment = {
        **WITHOUT_SPARES,
        "PWGRID_CONFIG": str(config),
        "DRIVERS_DIR": str(DRIVERS),
        "PLAYWRIGHT_BROWSERS_PATH": str(directory / "browsers"),
    }
    host = Host(Steps(lambda _: None), {**os.environ, **environment})
    places = [replace(SearchPaths(host.environ), driver=each) for each in drivers.values()]
    has_video = not any(ensure_ffmpeg(host, each, get=False) for each in places)
    try:
        with running_grid(environment=environment) as grid:
            yield Versions(grid, drivers, has_video, directory)
            counters_are_exact(grid)
    finally:
        shutil.rmtree(directory)


def test_clients_of_three_versions_have_at_once_all_that_a_grid_gives(versions: Versions) -> None:
    client = str(ROOT / "tests/support/probe_client.cjs")
    running = {}
    for minor, driver in versions.drivers.items():
        running[f"{minor} node"] = versions.probe(minor, str(driver.node), client, str(driver.core))
    script = [sys.executable, str(ROOT / "tests/support/probe_client.py")]
    running[f"{OLDEST} python"] = versions.probe(OLDEST, *script, PYTHONPATH=str(python_client(OLDEST)))
    running[f"{NEWEST} python"] = versions.probe(NEWEST, *script)
    try:
        said = {name: process.communicate(timeout=300)[0] for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(running, 0)
    for name, text in said.items():
        found = json.loads(text)
        assert found.pop("fileUrl"), f"{name}: a page has read a file of the host"
        if "node" in name:
            assert "is refused by the grid" in found.pop("serverFile"), name
        expected = {"contexts": 2, "title": "probe", "download": "hello", "cdp": 42, "trace": True, "own": "own"}
        assert found == expected | ({"video": True} if versions.has_video else {}), name
    served = {worker["pool"]: worker["playwrightVersion"] for worker in workers(versions.grid)}
    assert served == {f"v{number_of(minor)}": driver.version for minor, driver in versions.drivers.items()}
    # Compiled code is no matter of another Node: each has a place of its own in the directory that they share.
    nodes = {subprocess.check_output([each.node, "--version"], text=True).strip() for each in versions.drivers.values()}
    cached = {path.name.split("-")[0] for path in (versions.grid.runtime / "node").iterdir()}
    assert cached == nodes


async def test_cdp_clients_have_browsers_of_each_driver(versions: Versions) -> None:
    async with async_playwright() as playwright:
        for minor in MINORS:
            url = f"{versions.grid.endpoint}/cdp?pool=v{number_of(minor)}"
            browser = await playwright.chromium.connect_over_cdp(url)
            page = await browser.contexts[0].new_page()
            assert await page.evaluate("6 * 7") == 42
            await browser.close()


TRIES = """
import sys
from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.connect(sys.argv[1], timeout=60_000)
    page = browser.new_page()
    for line in sys.stdin:
        page.set_content(f"<title>{line.strip()}</title>")
        print(page.title(), flush=True)
    browser.close()
"""


def tries(endpoint: str, packages: Path | None = None) -> "subprocess.Popen[str]":
    """A client that makes a page anew for each line that it gets."""
    environment = {**os.environ, **({"PYTHONPATH": str(packages)} if packages else {})}
    return subprocess.Popen(
        [sys.executable, "-c", TRIES, endpoint],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def says(client: "subprocess.Popen[str]", word: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{word}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


def test_an_upgrade_to_another_driver_ends_no_session_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is 1.58 before, and the newest after; a pool names 1.58 all the time."""
    need("chromium")
    old_packages = python_client(OLDEST)
    ours = sys.executable
    subprocess.run([ours, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=120)
    packages = tmp_path / "packages"
    packages.symlink_to(old_packages)
    (place,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (place / "first.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n{ROOT / 'grid'}\n")
    config = tmp_path / "grid.toml"
    pool = '[[pools]]\nname = "{}"\nbrowser = "chromium"\n{}'
    config.write_text(pool.format("own", "") + pool.format("old", f'playwright = "{OLDEST}"\n'))
    environment = {**WITHOUT_SPARES, "PWGRID_CONFIG": str(config), "DRIVERS_DIR": str(DRIVERS)}
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    with running_grid(environment=environment) as grid:
        monkeypatch.setattr(sys, "executable", ours)
        before = tries(f"{grid.endpoint}/?pool=own", old_packages)
        assert says(before, "before") == "before"
        assert {worker["playwrightVersion"] for worker in workers(grid)} == {cached_driver(OLDEST).version}
        packages.unlink()
        packages.mkdir()
        upgraded = grid.command("upgrade", timeout_s=200)
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        new, old = tries(f"{grid.endpoint}/?pool=own"), tries(f"{grid.endpoint}/?pool=old", old_packages)
        clients = {"before": before, "new": new, "old": old}
        try:
            for word in ("hello", "again"):
                assert {name: says(client, word) for name, client in clients.items()} == dict.fromkeys(clients, word)
            for client in clients.values():
                client.communicate(timeout=60)
            assert {name: client.returncode for name, client in clients.items()} == dict.fromkeys(clients, 0)
        finally:
            for client in clients.values():
                client.kill()
        there = {(worker["pool"], minor_of(worker["playwrightVersion"])) for worker in workers(grid)}
        assert there >= {("own", NEWEST), ("old", OLDEST)}
        counters_are_exact(grid)


def workers(grid: Grid) -> list[dict[str, str]]:
    keys = grid.redis("KEYS", "worker:chromium:*")
    records = [grid.redis("HGETALL", key) for key in keys]
    return [{name.decode(): value.decode() for name, value in record.items()} for record in records]
