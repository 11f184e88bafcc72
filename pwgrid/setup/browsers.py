"""Gets the browsers that a grid needs onto this host, and says each step. No role calls it."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright._impl._driver import compute_driver_executable

from pwgrid.common.errors import BrowserLaunchError, BrowserMissing, GridError
from pwgrid.common.types import BrowserType
from pwgrid.settings.model import Settings
from pwgrid.setup.packages import Host, Steps, install_package
from pwgrid.setup.redis import ensure_redis
from pwgrid.worker.browser.find import FoundBrowser, SearchPaths, find_browser
from pwgrid.worker.browser.server import BrowserServer, LaunchSpec

_VERSION_TIMEOUT_S: Final = 20.0
_CONNECT_TIMEOUT: Final = "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT"
_CONNECT_TIMEOUT_MS: Final = 10_000
"""Playwright's own 30 s, five times over, are a long wait behind a firewall that swallows packets."""

_DOWNLOAD_VARIABLES: Final = "HTTPS_PROXY and PLAYWRIGHT_DOWNLOAD_HOST"
_LACKS_LIBRARIES: Final = re.compile(r"missing dependencies|shared librar|shared object", re.IGNORECASE)

_CHROMIUM: Final = ("chromium",)
_HEADLESS_SHELL: Final = ("chromium-headless-shell", *_CHROMIUM)
_FIREFOX: Final = ("firefox-esr",)
_LIBATOMIC: Final = ("libatomic1",)
"""The one library that Node needs and the smallest Debian and Ubuntu have not."""


def setup(
    types: Iterable[BrowserType],
    settings: Settings,
    say: Steps,
    host: Host | None = None,
    places: SearchPaths | None = None,
) -> list[FoundBrowser]:
    """Finds or gets each browser type, checks that it runs, and makes sure of a Redis; returns what was found.

    Says every step in plain lines. What cannot be had is raised at the end, all of it at once, so that nobody has to
    try once for each: BrowserMissing, BrowserLaunchError or another GridError.
    """
    places = places or SearchPaths()
    host = host or Host(places.environ, places.root)
    faults: list[GridError] = []
    driver_fault = _driver_fault(say, host)
    if driver_fault is not None:
        faults.append(GridError(driver_fault))
    one_by_one = _Setup(settings, say, host, places, driver_fault)
    found: list[FoundBrowser] = []
    for browser_type in types:
        try:
            found.append(one_by_one.find_or_get(browser_type))
        except GridError as fault:
            faults.append(fault)
    try:
        ensure_redis(settings, say, host)
    except GridError as fault:
        faults.append(fault)
    to_do = host.left_to_do()
    if len(faults) == 1 and to_do is None:
        raise faults[0]
    if faults:
        then = [f"run this as root, then try again: {to_do}"] if to_do else []
        raise GridError("\n  ".join(["this host lacks what a grid needs:", *map(str, faults), *then]))
    return found


def _driver_fault(say: Steps, host: Host) -> str | None:
    """Makes sure that the Node of Playwright's package runs here. None when it does, else why not."""
    node = compute_driver_executable()[0]
    fault = _run_fault(node, host)
    if fault is not None and _LACKS_LIBRARIES.search(fault):
        say(f"playwright: its Node does not run yet: {fault}")
        failed = install_package("playwright", _LIBATOMIC, say, host)
        fault = _run_fault(node, host)
        if fault is not None and failed is not None:
            fault = f"{fault} ({failed})"
    return None if fault is None else f"playwright: its Node does not run: {fault}"


@dataclass(frozen=True, slots=True)
class _Setup:
    """What every step for a browser needs."""

    settings: Settings
    say: Steps
    host: Host
    places: SearchPaths
    driver_fault: str | None

    def find_or_get(self, browser_type: BrowserType) -> FoundBrowser:
        """The browser that the grid will use. Raises BrowserMissing or BrowserLaunchError."""
        try:
            browser = find_browser(browser_type, self.settings, self.places)
        except BrowserMissing as missing:
            if self.settings.executable(browser_type):
                raise
            self.say(f"{browser_type}: none on this host yet")
            return self._get(browser_type, missing)
        fault = None if browser_type == "webkit" else _run_fault(browser.executable, self.host, self.say, browser)
        if fault is None:
            return browser
        self.say(f"{browser}: does not run: {fault}")
        if browser.source != "playwright":
            raise BrowserLaunchError(fault, str(browser))
        return self._get(browser_type, BrowserLaunchError(fault, str(browser)))

    def _get(self, browser_type: BrowserType, reason: GridError) -> FoundBrowser:
        """Tries each way in turn until one yields a browser that opens a page."""
        faults = [_alone(reason)]
        for way in (self._from_playwright, self._from_system):
            fault = way(browser_type)
            if fault is None:
                try:
                    browser = find_browser(browser_type, self.settings, self.places)
                    self._try_launch(browser)
                except GridError as error:
                    fault = _alone(error)
                else:
                    return browser
            self.say(f"{browser_type}: {fault}")
            faults.append(fault)
        or_else = f"set {browser_type.upper()}_EXECUTABLE to one that you got yourself"
        raise BrowserMissing(f"{browser_type} could not be installed", "; ".join([*faults, f"or {or_else}"]))

    def _from_playwright(self, browser_type: BrowserType) -> str | None:
        """Playwright's own download. None when it worked, else why not."""
        if self.driver_fault is not None:
            return "Playwright cannot install it without its Node"
        self.say(f"{browser_type}: asking Playwright to install its own")
        node, cli = compute_driver_executable()
        only = ["--only-shell"] if browser_type == "chromium" and self.settings.headless else []
        patience = self.host.environ.get(_CONNECT_TIMEOUT) or str(_CONNECT_TIMEOUT_MS)
        fault = self.host.run([node, cli, "install", *only, browser_type], self.say, {_CONNECT_TIMEOUT: patience})
        return None if fault is None else f"Playwright could not install it ({fault}; {_DOWNLOAD_VARIABLES} are heeded)"

    def _from_system(self, browser_type: BrowserType) -> str | None:
        """The system's own package. None when it worked, else why not."""
        if browser_type == "webkit":
            return "no system has a package of the WebKit that Playwright needs"
        if self.host.has_snap_packages:
            return f"Ubuntu's {browser_type} package is a snap, which cannot be driven"
        chromium = _HEADLESS_SHELL if self.settings.headless else _CHROMIUM
        packages = chromium if browser_type == "chromium" else _FIREFOX
        return install_package(browser_type, packages, self.say, self.host)

    def _try_launch(self, browser: FoundBrowser) -> None:
        """Opens a page; where Playwright's own browser lacks libraries, gets these first. Raises BrowserLaunchError."""
        try:
            _launch(browser, self.settings, self.say)
        except BrowserLaunchError as error:
            if browser.source != "playwright" or not _LACKS_LIBRARIES.search(error.evidence):
                raise
            self.say(f"{browser.browser_type}: installed, but this host lacks libraries that it needs")
            fault = self._libraries(browser.browser_type)
            if fault is not None:
                raise BrowserLaunchError(f"it lacks libraries: {fault}", str(browser)) from error
            _launch(browser, self.settings, self.say)

    def _libraries(self, browser_type: BrowserType) -> str | None:
        """What Playwright says that its browser needs, by the package manager. None when it worked, else why not."""
        command = [*compute_driver_executable(), "install-deps", browser_type]
        prefix = self.host.as_root()
        if prefix is None:
            self.host.commands_by_hand.append(" ".join(command))
            return "installing them takes root"
        return self.host.run([*prefix, *command], self.say)


def _alone(error: GridError) -> str:
    """What is wrong, without the advice to run `pwgrid setup`, which is what runs."""
    return error.what if isinstance(error, BrowserMissing) else str(error)


def _run_fault(program: str, host: Host, say: Steps | None = None, name: object = None) -> str | None:
    """Runs a program with --version, which needs all its libraries but no page. None when it worked, else why not."""
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as home:
        try:
            done = subprocess.run(
                [program, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_VERSION_TIMEOUT_S,
                env={**host.environ, "HOME": home, "TMPDIR": home},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"--version took longer than {_VERSION_TIMEOUT_S:g} s"
        except OSError as error:
            return str(error)
    if done.returncode != 0:
        return (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()[-1]
    if say is not None:
        say(f"{name}: {(done.stdout.strip() or 'it runs').splitlines()[-1]}")
    return None


def _launch(browser: FoundBrowser, settings: Settings, say: Steps) -> None:
    """Launches a browser server as a worker would, with its warm-up. Raises BrowserLaunchError."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        temporary = Path(directory, "tmp")
        temporary.mkdir()
        spec = LaunchSpec.of(settings, browser, Path(directory, "browser.sock"), temporary)
        version = asyncio.run(_launch_once(spec, settings.launch_timeout))
    say(f"{browser}: version {version} opened a page after {time.monotonic() - started:.1f} s")


async def _launch_once(spec: LaunchSpec, timeout_s: float) -> str:
    ours, theirs = socket.socketpair()
    server = await BrowserServer.start(
        spec,
        ours,
        theirs,
        on_closed=lambda _closed, _on_record: None,
        on_gone=lambda _reason: None,
        timeout_s=timeout_s,
    )
    await server.stop(10)
    return server.ready.browser_version
