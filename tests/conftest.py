"""Fixtures of the tests with real browsers: a shared grid, its counters checked after each test, and the clients."""

import contextlib
import inspect
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from playwright.async_api import Playwright, async_playwright

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.installed.headed import find_headed, find_xvfb
from tests.support.browsers import fit_browser, settings_of_host
from tests.support.drivers import cached_driver, driver_under_test
from tests.support.grid import DEFAULTS, RUNNING, WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.redis import own_redis

__all__ = ["own_redis"]

# No test fails by chance, because the machine was busy or because of examples that nobody else has seen.
hypothesis_settings.register_profile(
    "any machine", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("any machine")

# On a busy machine a pool has spares, up to four Firefoxes beside one, of which hardly a test makes any use.
DEFAULTS.update(WITHOUT_SPARES)

# A socket's path has 107 bytes at most, of which a CI's temporary directory may take too many.
if len(tempfile.gettempdir()) > len("/var/tmp/12345678"):
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"

_NUMBERS = itertools.count()

# A shell that starts us in the background without job control has SIGINT ignored, and so would have all that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def need(browser_type: BrowserType) -> None:
    """Skips, with the reason, where this host has no such browser that starts."""
    try:
        fit_browser(browser_type)
    except BrowserMissing as missing:
        pytest.skip(f"{browser_type}: {missing.what}")


def need_headed(browser_type: BrowserType) -> None:
    """Skips, with the reason, where this host has no such browser that can have a display, or makes no displays."""
    need(browser_type)
    try:
        find_xvfb()
        find_headed(settings_of_host().short_form(browser_type), settings_of_host())
    except BrowserMissing as missing:
        pytest.skip(missing.what)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Which process of pytest-xdist runs which file."""
    from tests.support.xdist_lanes import scheduler

    return scheduler(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--driver 1.58`: what runs a browser server without a grid runs it with another driver of Playwright.
    `--forward-mib 1024`: so much goes each way through a forwarder that is killed again and again."""
    parser.addoption("--driver", metavar="MINOR", help="the Playwright, like 1.58, that browser servers run with")
    parser.addoption("--forward-mib", type=int, default=64, help="MiB each way through forwarders that are killed")


@pytest.fixture(scope="session", autouse=True)
def _driver(request: pytest.FixtureRequest) -> Iterator[None]:
    minor = request.config.getoption("--driver")
    with driver_under_test(cached_driver(minor)) if minor else contextlib.nullcontext():
        yield


@pytest.fixture
def browser_type(request: pytest.FixtureRequest) -> BrowserType:
    """The parameter of a test that runs with each browser; skips those that are missing."""
    wanted: BrowserType = request.param
    need(wanted)
    return wanted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a test that failed shows the grids that run; one that ended with the test has printed the same."""
    report = yield
    if report.failed:
        report.sections += [("What runs", grid.description()) for grid in RUNNING]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Says, as the last thing before pytest's own last line, what went untested for want of what."""
    yield
    skipped: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.split(":")[0] in (*BROWSER_TYPES, "ffmpeg", "promtool", "nginx", "haproxy"):
            skipped.setdefault(reason, []).append(report.nodeid)
    for reason, tests in skipped.items():
        plural = "test was" if len(tests) == 1 else "tests were"
        terminalreporter.write_line(f"NOT TESTED: {len(tests)} {plural} skipped for want of {reason}", yellow=True)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's, without the name of the test: with that of the user it leaves too little for a socket's path."""
    return tmp_path_factory.mktemp(f"t{next(_NUMBERS)}", numbered=False)


@pytest.fixture(scope="session")
def shared_grid() -> Iterator[Grid]:
    need("chromium")
    with running_grid("--chromium", "2") as grid:
        yield grid


@pytest.fixture
def grid(shared_grid: Grid) -> Iterator[Grid]:
    """The shared grid; after the test no slot is taken, no session is in between, and every worker is fresh."""
    yield shared_grid
    counters_are_exact(shared_grid)


def counters_are_exact(grid: Grid, *, repaired: bool = False) -> None:
    """Active 0, nothing live, no record in an in-between state, no counter repaired unless Redis was lost."""
    grid.get("/health")  # clients that waited for no answer may have been in the proxy's queue until now
    eventually(lambda: grid.active() == 0, "every slot is free")
    eventually(
        lambda: grid.redis("KEYS", "*s:live:*") == grid.redis("KEYS", "sessions:leased:*") == [], "nothing is live"
    )
    for key in grid.redis("KEYS", "session:*"):
        assert grid.redis("HGET", key, "status") in (b"completed", b"ended", b"failed", b"expired"), grid.redis(
            "HGETALL", key
        )
    assert repaired or int(grid.redis("GET", "cluster:counter_repairs") or 0) == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all tests with real browsers, because they share one Playwright."""
    for item in items:
        here = item.path.parent.name in ("container", "e2e", "faults", "hostile") and isinstance(item, pytest.Function)
        if here and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as running:
        yield running


@pytest.fixture
def node() -> tuple[str, Path]:
    """Node and the playwright-core package that the Python package bundles: the Node client of the same version."""
    from playwright._impl._driver import compute_driver_executable

    executable, cli = compute_driver_executable()
    assert shutil.which(executable), executable
    return executable, Path(cli).parent
