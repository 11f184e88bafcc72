"""Drivers and Python clients of other versions of Playwright, from PyPI by pip: once for all runs of the tests of this
user."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pwgrid.installed.browsers import SearchPaths
from pwgrid.installed.driver import Driver, DriverMissing, driver_of, own_driver
from pwgrid.settings.model import Settings
from pwgrid.setup.drivers import get_drivers
from pwgrid.setup.ffmpeg import ensure_ffmpeg
from pwgrid.setup.packages import Host, Steps

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pwgrid-tests"
DRIVERS = CACHE / "drivers"
SETTINGS = Settings(drivers_dir=str(DRIVERS))

OLDEST, MIDDLE, NEWEST = "1.58", "1.62", own_driver().minor
"""Minor versions of Playwright: what the browser server is tried with."""


def cached_driver(minor: str) -> Driver:
    """The driver of this version, which `pwgrid setup` gets where it is not there yet. Skips where it cannot."""
    with _alone(), contextlib.suppress(DriverMissing):
        return driver_of(minor, SETTINGS)
    with _alone():
        said: list[str] = []
        if faults := get_drivers([minor], SETTINGS, Host(Steps(said.append))):
            pytest.skip(f"no driver of Playwright {minor}: {faults[0]}")
    return driver_of(minor, SETTINGS)


class _UnderTest:
    """What the browser servers of the tests run with where a test names no driver."""

    driver = own_driver()


@contextmanager
def driver_under_test(driver: Driver) -> Iterator[None]:
    """For the length of the block the browser servers of the tests run with this driver."""
    before, _UnderTest.driver = _UnderTest.driver, driver
    try:
        yield
    finally:
        _UnderTest.driver = before


def under_test() -> Driver:
    """What the browser servers of the tests run with now."""
    return _UnderTest.driver


@cache
def messages_of(driver: Driver) -> frozenset[tuple[str, str]]:
    """All that its protocol has, as (type, message), as its own table of them says."""
    lib = driver.core / "lib"
    bundle = lib / "coreBundle.js"
    (file,) = [bundle] if bundle.exists() else lib.rglob("protocolMetainfo.js")
    found = re.findall(r'\["(\w+)\.(\w+)", \{', file.read_text())
    return frozenset(found)


def need_ffmpeg() -> None:
    """Skips, with the reason, where the driver under test can record no video."""
    if fault := _no_ffmpeg(_UnderTest.driver):
        pytest.skip(f"ffmpeg: {fault}")


@cache
def _no_ffmpeg(driver: Driver) -> str | None:
    """Puts the ffmpeg of this host where the driver looks for one, as `pwgrid setup` does. Why not, if that fails."""
    with _alone():
        return ensure_ffmpeg(Host(Steps(lambda _: None)), replace(SearchPaths(), driver=driver), get=False)


def python_client(minor: str) -> Path:
    """What goes into PYTHONPATH for Playwright's Python client of this version. Skips where it cannot be had."""
    driver = cached_driver(minor)
    with _alone():
        directory = CACHE / "python" / f"{minor}-cp{sys.version_info[0]}{sys.version_info[1]}"
        if not directory.exists():
            unfinished = directory.with_name(f".new-{directory.name}")
            shutil.rmtree(unfinished, ignore_errors=True)
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--only-binary",
                ":all:",
            ]
            done = subprocess.run(
                [*pip, "--target", str(unfinished), f"playwright=={minor}.*"],
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"no Python client of Playwright {minor}: {done.stderr.strip()[-300:]}")
            shutil.rmtree(unfinished / "playwright/driver")
            (unfinished / "playwright/driver").symlink_to(driver.node.parent)
            unfinished.rename(directory)
    return directory


@contextmanager
def _alone() -> Iterator[None]:
    """One process of pytest-xdist at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
