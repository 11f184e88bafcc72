"""Finds or installs the browsers that a grid needs, and says each step."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from pwgrid.common.errors import BrowserMissing, GridError
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.installed.browsers import (
    FoundBrowser,
    SearchPaths,
    Source,
    Trial,
    candidates_from,
    find_for_pool,
    made_for,
    remember_trial,
)
from pwgrid.installed.driver import Driver, drivers_directories, installed_drivers
from pwgrid.settings.model import NAMES_A_REDIS, Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.setup.drivers import get_drivers
from pwgrid.setup.ffmpeg import ensure_ffmpeg, ffmpegs
from pwgrid.setup.headed import ensure_headed
from pwgrid.setup.packages import Host, output_of
from pwgrid.setup.redis import ensure_redis
from pwgrid.worker.browser.launch import LaunchSpec
from pwgrid.worker.browser.server import BrowserServer

_CONNECT_TIMEOUT: Final = "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT"
_CONNECT_TIMEOUT_MS: Final = 10_000
"""Playwright itself waits five times 30 s, which is long behind a firewall that drops packets."""

_DOWNLOAD_VARIABLES: Final = "HTTPS_PROXY and PLAYWRIGHT_DOWNLOAD_HOST"
_LACKS_LIBRARIES: Final = re.compile(r"missing dependencies|shared librar|shared object", re.IGNORECASE)

_CHROMIUM: Final = ("chromium",)
_HEADLESS_SHELL: Final = ("chromium-headless-shell", *_CHROMIUM)
_FIREFOX: Final = ("firefox-esr",)
_LIBATOMIC: Final = ("libatomic1",)
"""The one library that Node needs and that minimal Debian and Ubuntu lack."""


def setup(
    pools: Iterable[PoolSettings],
    settings: Settings,
    host: Host,
    places: SearchPaths | None = None,
    *,
    video: bool = False,
    headed: bool = False,
) -> list[FoundBrowser]:
    """Finds or installs the driver and the browser of each pool, and a redis-server, and opens a page in each browser
    with each driver that is installed; with `headed` also what browsers with a display take.

    Returns the browsers of the pools. Without `video` a missing ffmpeg is no fault. Raises BrowserMissing,
    BrowserLaunchError or another GridError at the end, with all faults in one, so that the user need not run it once
    for each.
    """
    places = places or SearchPaths()
    faults: list[GridError] = []
    driver_fault = _driver_fault(places.driver, host)
    if driver_fault is not None:
        faults.append(GridError(driver_fault))
    wanted = _distinct(pools)
    named = [pool.playwright for pool in wanted if pool.playwright not in ("", places.driver.minor)]
    faults += get_drivers(named, settings, host)
    found = list[FoundBrowser]()
    for pool in wanted:
        try:
            of_pool = places.for_pool(pool, settings)
            found.append(_Setup(settings.of_pool(pool), pool, host, of_pool, driver_fault).find_or_get())
        except GridError as fault:
            faults.append(fault)
    _try_pairs(wanted, settings, host, places)
    if headed:
        faults += ensure_headed(
            *(wanted, settings, host, places),
            lambda pool, own: _Setup(own, pool, host, places.for_pool(pool, own), driver_fault).find_or_get(),
        )
    faults += _redis_faults(settings, host)
    for of_others, each in ffmpegs(places, other_drivers(settings, places)) if wanted else ():
        what = f"video with {of_others}" if of_others else "video"
        no_video = ensure_ffmpeg(host, each, get=video, what=what)
        if no_video is not None and video:
            faults.append(GridError(f"{what}: {no_video}"))
        elif no_video is not None:
            host.say(f"{what}: {no_video}; `pwgrid setup --video` gets one")
    to_do = host.left_to_do()
    if len(faults) == 1 and to_do is None:
        raise faults[0]
    if faults:
        then = [f"run this as root, then try again: {to_do}"] if to_do else []
        raise GridError("\n  ".join(["this host lacks what a grid needs:", *map(str, faults), *then]))
    return found


def _try_pairs(pools: Iterable[PoolSettings], settings: Settings, host: Host, places: SearchPaths) -> None:
    """Opens a page in each of `other_pairs`; says which of them work. A pair that does not is no fault: no pool names
    it."""
    for pair, driver in other_pairs(pools, settings, places):
        try:
            _Setup(settings.of_pool(pair), pair, host, replace(places, driver=driver), None).find_or_get()
        except GridError as fault:
            what = f"{pair.browser_type} with Playwright {driver.version}"
            host.say(f"{what}: skipped, a pool with this pair would not start: {fault}")


def other_pairs(
    pools: Iterable[PoolSettings], settings: Settings, places: SearchPaths
) -> Iterator[tuple[PoolSettings, Driver]]:
    """Each other driver with each kind of browser that a pool has, unless a pool has just this pair: what a pool that
    starts on demand would have."""
    named = {(pool.browser_type, pool.playwright) for pool in pools}
    first = {pool.browser_type: pool for pool in reversed(list(pools))}
    for driver in other_drivers(settings, places):
        for pool in first.values():
            if (pool.browser_type, driver.minor) not in named:
                yield replace(pool, playwright=driver.minor), driver


def other_drivers(settings: Settings, places: SearchPaths) -> list[Driver]:
    """The installed drivers besides the one of `places`."""
    drivers = installed_drivers(*drivers_directories(settings, places.environ))
    return [each for each in drivers if each.minor != places.driver.minor]


def _redis_faults(settings: Settings, host: Host) -> list[GridError]:
    try:
        ensure_redis(settings, host)
    except GridError as fault:
        named = next(filter(host.environ.get, NAMES_A_REDIS), None)
        if named is None:
            return [fault]
        host.say(f"redis: {named} names one for `pwgrid serve`, but `pwgrid run` needs one of its own: {fault}")
    return []


def _distinct(pools: Iterable[PoolSettings]) -> list[PoolSettings]:
    """The first pool of each browser and way of launching it."""
    first: dict[tuple[object, ...], PoolSettings] = {}
    for pool in pools:
        first.setdefault((pool.browser_type, pool.executable, pool.headless, *pool.launch), pool)
    return list(first.values())


def _driver_fault(driver: Driver, host: Host) -> str | None:
    """Makes sure that the Node of Playwright's package runs here. None when it does, else why not."""
    fault = _run_fault(driver, host)
    if fault is not None and _LACKS_LIBRARIES.search(fault):
        host.say(f"playwright: its Node does not run yet: {fault}")
        failed = host.install("playwright", _LIBATOMIC)
        fault = _run_fault(driver, host)
        if fault is not None and failed is not None:
            fault = f"{fault} ({failed})"
    return None if fault is None else f"playwright: its Node does not run: {fault}"


Step = tuple[Literal["try", "get"], Source]

_STEPS: Final[Mapping[str, tuple[Step, ...]]] = {
    "auto": (("try", "playwright"), ("try", "system"), ("get", "playwright"), ("get", "system")),
    "playwright": (("try", "playwright"), ("get", "playwright"), ("try", "system"), ("get", "system")),
    "system": (("try", "system"), ("get", "system"), ("try", "playwright"), ("get", "playwright")),
}
"""By the setting `prefer`: in which order installed browsers are tried and others are installed."""


@dataclass(slots=True)
class _Setup:
    """The set-up of the browser of one pool."""

    settings: Settings
    pool: PoolSettings
    host: Host
    places: SearchPaths
    driver_fault: str | None
    _unfit: set[str] = field(default_factory=set)
    """Executables that did not start in this run."""

    def find_or_get(self) -> FoundBrowser:
        """The first browser that opens a page, of those that are installed and those that can be.

        Raises BrowserMissing with what is wrong with each, or BrowserLaunchError for the one that the settings name.
        """
        browser_type = self.pool.browser_type
        if self.pool.channel or self.settings.executable(browser_type):
            chosen = find_for_pool(self.pool, self.settings, self.places)
            self._try_launch(chosen)
            return chosen
        faults: list[str] = []
        for do, source in _STEPS[self.settings.prefer]:
            if do == "get":
                get = self._from_playwright if source == "playwright" else self._from_system
                fault = get()
                if fault is not None:
                    self.host.say(f"{browser_type}: {fault}")
                    faults.append(fault)
                    continue
            browser = self._first_that_starts(source, faults)
            if browser is not None:
                return browser
        or_else = f"or set {browser_type.upper()}_EXECUTABLE to one that you got yourself"
        raise BrowserMissing(f"{browser_type} could not be installed", "; ".join([*dict.fromkeys(faults), or_else]))

    def _first_that_starts(self, source: Source, faults: list[str]) -> FoundBrowser | None:
        """The first browser of this source that opens a page. Adds to `faults` why others do not start."""
        for browser in candidates_from(source, self.pool.browser_type, self.settings, self.places, faults):
            if _identity(browser) in self._unfit:
                continue
            try:
                self._try_launch(browser)
            except BrowserLaunchError as error:
                self._unfit.add(_identity(browser))
                faults.append(f"{browser.executable} does not start: {error.reason}")
            else:
                return browser
        return None

    def _from_playwright(self) -> str | None:
        """Has Playwright download its own browser. None when it worked, else why not."""
        if self.driver_fault is not None:
            return "Playwright cannot install it without its Node"
        browser_type = self.pool.browser_type
        self.host.say(f"{browser_type}: asking Playwright to install its own")
        only = ["--only-shell"] if browser_type == "chromium" and self.settings.headless else []
        patience = self.host.environ.get(_CONNECT_TIMEOUT) or str(_CONNECT_TIMEOUT_MS)
        command = self.places.driver.command("install", *only, browser_type)
        fault = self.host.run(command, {_CONNECT_TIMEOUT: patience})
        return None if fault is None else f"Playwright could not install it ({fault}; {_DOWNLOAD_VARIABLES} are heeded)"

    def _from_system(self) -> str | None:
        """Installs or updates the system's package. None when it worked, else why not."""
        browser_type = self.pool.browser_type
        if browser_type == "webkit":
            return "no system has a package of the WebKit that Playwright needs"
        if self.host.has_snap_packages:
            return f"Ubuntu's {browser_type} package is a snap, which cannot be driven"
        chromium = _HEADLESS_SHELL if self.settings.headless else _CHROMIUM
        packages = chromium if browser_type == "chromium" else _FIREFOX
        return self.host.install(browser_type, packages)

    def _try_launch(self, browser: FoundBrowser) -> None:
        """Opens a page; if Playwright's own browser lacks libraries, installs them and tries again.

        Raises BrowserLaunchError.
        """
        try:
            self._launch(browser)
        except BrowserLaunchError as error:
            if browser.source != "playwright" or not _LACKS_LIBRARIES.search(error.evidence):
                raise
            self.host.say(f"{browser.browser_type}: installed, but this host lacks libraries that it needs")
            fault = self._libraries()
            if fault is not None:
                raise BrowserLaunchError(f"it lacks libraries: {fault}", str(browser)) from error
            self._launch(browser)

    def _launch(self, browser: FoundBrowser) -> None:
        """Opens a page, says how that went, and saves the result for the grid. Raises BrowserLaunchError."""
        try:
            trial = launch_once(browser, self.settings, self.pool)
        except BrowserLaunchError as error:
            self.host.say(f"{browser}: does not start: {error.reason}")
            self._write_down(browser, Trial(error.reason))
            raise
        self.host.say(f"{browser}: version {trial.version} opened a page after {trial.seconds:.1f} s")
        self._write_down(browser, trial)
        distance = distance_of(trial.version, made_for(browser.browser_type, self.places), browser.driver)
        if browser.source != "playwright" and distance:
            self.host.say(f"{browser.browser_type}: {distance}; `pwgrid setup --prefer playwright` downloads that one")

    def _write_down(self, browser: FoundBrowser, trial: Trial) -> None:
        if not browser.executable:  # Playwright finds a channel's by itself, and there is no other to choose
            return
        try:
            remember_trial(browser.executable, self.settings, self.places, trial)
        except OSError as error:
            self.host.say(f"{browser.browser_type}: how it started cannot be written down for the grid: {error}")

    def _libraries(self) -> str | None:
        """Installs the libraries that Playwright says its browser needs. None when it worked, else why not."""
        command = self.places.driver.command("install-deps", self.pool.browser_type)
        prefix = self.host.as_root()
        if prefix is None:
            self.host.commands_by_hand.append(" ".join(command))
            return "installing them takes root"
        return self.host.run([*prefix, *command])


def _identity(browser: FoundBrowser) -> str:
    """An id of this file; after an update of its package it is another one."""
    file = os.stat(browser.executable)
    return f"{browser.executable} {file.st_size} {file.st_mtime_ns}"


def distance_of(version: str, wanted: str, driver: Driver) -> str:
    """A sentence on how many major versions a browser is from the one that the driver is made for (`wanted`); empty for
    none, or where one of the two is not known."""
    here, there = version.partition(".")[0], wanted.partition(".")[0]
    if not (here.isdecimal() and there.isdecimal()) or here == there:
        return ""
    distance = abs(int(here) - int(there))
    side = "behind" if int(here) < int(there) else "ahead of"
    which = f"which Playwright {driver.version} is made for"
    return f"{here} is {distance} major version{'s'[: distance > 1]} {side} {there}, {which}"


def _run_fault(driver: Driver, host: Host) -> str | None:
    """Runs a driver with --version, which needs all its Node's libraries. None when it worked, else why not."""
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as home:
        return output_of(driver.command("--version"), {**host.environ, "HOME": home, "TMPDIR": home})[1]


def launch_once(browser: FoundBrowser, settings: Settings, pool: PoolSettings) -> Trial:
    """Launches a browser server as a worker of the pool would, which opens a page to warm up.

    Raises BrowserLaunchError.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pwgrid-setup-") as directory:
        spec = LaunchSpec(settings, pool, browser, Path(directory))
        version = asyncio.run(_launch_once(spec))
    return Trial("", version, time.monotonic() - started)


async def _launch_once(spec: LaunchSpec) -> str:
    ours, theirs = socket.socketpair()
    server = await BrowserServer.start(
        spec,
        ours,
        theirs,
        on_closed=lambda _closed, _on_record: None,
        on_gone=lambda _reason: None,
    )
    await server.stop(10)
    return server.ready.browser_version
