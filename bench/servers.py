"""Starts both sides of a comparison: grids (as the tests start them) and servers without a grid. Measures nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from playwright._impl._driver import compute_driver_executable

from bench.client import Target
from pwgrid.common.errors import BrowserMissing
from pwgrid.installed.browsers import find_browser
from pwgrid.installed.headed import find_headed, find_xvfb
from pwgrid.settings.model import Settings
from tests.support.drivers import OLDEST, python_client
from tests.support.grid import NEVER, Grid, eventually, free_port, running_grid

_SCRIPT = Path(__file__).with_name("direct_server.cjs")

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Driver:
    """Playwright's bundled driver."""

    node: str
    core: Path
    version: str


@cache
def driver() -> Driver:
    """The driver that the installed playwright package carries."""
    node, cli = compute_driver_executable()
    core = Path(cli).parent
    return Driver(node, core, json.loads((core / "package.json").read_text())["version"])


@cache
def chromium() -> str:
    """The executable that the grid takes by default."""
    return find_browser("chromium", Settings()).executable


@cache
def makes_windows() -> bool:
    """Whether this host has what a browser with a window takes."""
    settings = Settings()
    try:
        find_xvfb()
        find_headed(settings.short_form("chromium"), settings)
    except BrowserMissing:
        return False
    return True


@cache
def other_client() -> str:
    """What goes into PYTHONPATH for a Playwright client of another version, whose driver is in DRIVERS; empty, and
    the reason is said, where there is none."""
    try:
        return str(python_client(OLDEST))
    except pytest.skip.Exception as skipped:
        print(f"no client of another version: {skipped}", flush=True)
        return ""


@contextlib.contextmanager
def grid_of(workers: int = 1, *, fake: bool = False, environment: dict[str, str] | None = None) -> Iterator[Grid]:
    """A grid with `workers` chromium workers that are not recycled by their number of sessions."""
    given = {"MAX_LIFETIME_SESSIONS": NEVER, **(environment or {})}
    with running_grid("--chromium", str(workers), environment=given, fake=fake) as grid:
        eventually(lambda: _available(grid) == workers, "all workers are available", START_S)
        yield grid


def _available(grid: Grid) -> int:
    return sum(worker["status"] == "available" for worker in grid.ask("status")["workers"])


@dataclass(frozen=True, slots=True)
class FakePair:
    """A grid with one fake browser server, which also serves on a TCP port of its own: that is the direct path."""

    grid: Grid
    via_grid: Target
    direct: Target
    pids: dict[str, int]
    """proxy, worker, redis, browser server"""


@contextlib.contextmanager
def fake_pair(slots: int = 1000) -> Iterator[FakePair]:
    """Both paths end in the same process, so that all that differs is the grid."""
    port = free_port()
    environment = {"MAX_CONCURRENT_SESSIONS": str(slots), "FAKE_TCP_PORT": str(port)}
    with grid_of(fake=True, environment=environment) as grid:
        yield FakePair(grid, ("127.0.0.1", grid.port, "/"), ("127.0.0.1", port, "/"), pids_of(grid))


def pids_of(grid: Grid) -> dict[str, int]:
    """The processes of a grid with one worker, by role."""
    status = grid.status()
    (worker,) = status["workers"]
    return {
        "proxy": status["proxy"]["pid"],
        "worker": worker["pid"],
        "redis": status["redis"]["pid"],
        "browser server": worker["nodePid"],
    }


class DirectServer:
    """Playwright's launchServer() without a grid, with the same executable as the grid's workers, until the end of
    the block."""

    def __init__(self, executable: str | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="pwb-", dir="/tmp", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [driver().node, str(_SCRIPT), str(driver().core), executable or chromium()],
            env={**os.environ, "TMPDIR": self._temporary.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the direct server did not start")
        said: dict[str, Any] = json.loads(line)
        self.endpoint: str = said["endpoint"]
        self.browser_pid: int = said["browserPid"]

    @property
    def target(self) -> Target:
        """Where raw clients connect."""
        parts = urlsplit(self.endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port, parts.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it with its browser, and removes what they left."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._temporary.cleanup()


def settled(grid: Grid) -> None:
    """Returns when no session is live by Redis' counters: the tail of a round is over."""
    eventually(lambda: grid.active() == 0, "all slots are free")
