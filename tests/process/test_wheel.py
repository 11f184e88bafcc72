"""The wheel carries what the code needs beside itself, and its client needs nothing else."""

import importlib.util
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.browsers import fit_browser
from tests.support.grid import running_grid

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")

BORROWER = """
import asyncio
import importlib.util

from playwright.async_api import async_playwright
from playwright.sync_api import sync_playwright

import pwgrid
from pwgrid.client import GridRefusal, borrow

assert importlib.util.find_spec("fastapi") is None
with sync_playwright() as playwright, borrow("AppA:Chromium:UAT", run="smoke") as lease:
    browser = playwright.chromium.connect(lease.ws_endpoint)
    assert browser.new_page().evaluate("6 * 7") == 42
    assert lease.extend(120).expires_at > 0
    browser.close()


async def main():
    async with async_playwright() as playwright, borrow("appa:chromium:uat", run="smoke") as lease:
        browser = await playwright.chromium.connect(lease.ws_endpoint)
        assert await (await browser.new_page()).evaluate("6 * 7") == 42
        await browser.close()


asyncio.run(main())
try:
    with borrow("Nobody:Chromium:UAT"):
        pass
except GridRefusal as refusal:
    assert refusal.status == 404, refusal
    print(pwgrid.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", *OFFLINE, "--wheel-dir", str(directory), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("pwgrid-*.whl")
    return wheel


def test_the_wheel_carries_scripts_and_configuration(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    (entry_points,) = (name for name in names if name.endswith("/entry_points.txt"))
    assert "[console_scripts]\npwgrid = pwgrid.__main__:main\n" in zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "[pytest11]\npwgrid = pwgrid.pytest_plugin\n" in zipfile.ZipFile(wheel).read(entry_points).decode()
    for folder, suffix in (("lua", "lua"), ("config", "toml"), ("config", "conf"), ("docs", "md")):
        for path in (ROOT / folder).glob(f"*.{suffix}"):
            assert f"pwgrid/_resources/{folder}/{path.name}" in names
    assert {str(path.relative_to(ROOT / "grid")) for path in (ROOT / "grid" / "pwgrid").rglob("*.cjs")} <= names
    page = ROOT / "grid" / "pwgrid" / "proxy" / "dashboard" / "static"
    assert {f"pwgrid/proxy/dashboard/static/{path.name}" for path in page.iterdir()} <= names


def test_the_client_borrows_where_nothing_is_installed_but_the_wheel_and_playwright(
    wheel: Path, tmp_path: Path
) -> None:
    fit_browser("chromium")
    venv.create(tmp_path / "clean", with_pip=False)
    (packages,) = (tmp_path / "clean").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    needed = [re.split(r"[^\w-]", each)[0].replace("-", "_") for each in metadata.requires("playwright") or ()]
    for name in ("playwright", *needed):
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None
        origin = Path(spec.origin)
        origin = origin.parent if origin.name == "__init__.py" else origin
        (packages / origin.name).symlink_to(origin)
    with running_grid(environment={"POOL_CONFIG": "AppA:Chromium:UAT=1"}) as grid:
        done = subprocess.run(
            [str(tmp_path / "clean" / "bin" / "python"), "-P", "-c", BORROWER],
            env={**os.environ, "PWGRID_URL": grid.http, "PYTHONPATH": ""},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(packages / "pwgrid" / "__init__.py")
        assert grid.redis("HGETALL", "leases:outcomes") == {b"completed": b"2"}
