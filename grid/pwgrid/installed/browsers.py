"""Finds the executable for a browser type on this host, and remembers which ones did not start for `pwgrid setup`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import BrowserMissing
from pwgrid.common.paths import home
from pwgrid.common.types import BrowserType
from pwgrid.installed.driver import Driver, driver_of, own_driver
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings
from pwgrid.settings.start_directory import absolute

Source = Literal["setting", "playwright", "system"]

STOCK_FIREFOX_CHANNEL: Final = "moz-firefox"
"""With this channel Playwright speaks WebDriver BiDi, which a Firefox that Playwright has not patched understands."""


@dataclass(frozen=True, slots=True)
class FoundBrowser:
    """A browser that can be launched, by this driver. `channel` is Playwright's launch option, mostly empty; if
    `executable` is empty, Playwright finds the channel's browser itself. `notes` are for the user."""

    browser_type: BrowserType
    executable: str
    channel: str
    source: Source
    notes: tuple[str, ...] = ()
    driver: Driver = field(default_factory=own_driver, repr=False)

    def __str__(self) -> str:
        what = self.executable or f"channel {self.channel}"
        other = [] if self.driver.minor == own_driver().minor else [f"Playwright {self.driver.version}"]
        return f"{self.browser_type}: {what} ({', '.join([self.source, *other, *self.notes])})"


@dataclass(frozen=True, slots=True)
class SearchPaths:
    """Where to look, and for which driver: by default on this host, and for pwgrid's own."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    playwright_core: Path | None = None
    trials_file: Path | None = None
    driver: Driver = field(default_factory=own_driver)

    @property
    def core(self) -> Path:
        """The directory of playwright-core, which says what browsers the driver has of its own."""
        return self.playwright_core or self.driver.core

    def for_pool(self, pool: PoolSettings, settings: Settings) -> SearchPaths:
        """The same for the pool's driver. Raises DriverMissing."""
        if pool.playwright in ("", self.driver.minor):
            return self
        return replace(self, driver=driver_of(pool.playwright, settings, pool.name))

    @property
    def installed(self) -> Path:
        """Where Playwright installs its browsers, by the driver's own rules."""
        chosen = self.environ.get("PLAYWRIGHT_BROWSERS_PATH", "")
        if chosen == "0":
            return self.core / ".local-browsers"
        if chosen:
            npm_s = self.environ.get("INIT_CWD")
            return absolute(chosen, Path(npm_s) if npm_s else None)
        return self._cache / "ms-playwright"

    @property
    def trials(self) -> tuple[Path, ...]:
        """Files with the results of `pwgrid setup`'s launches: for all users of this installation, for this user."""
        if self.trials_file is not None:
            return (self.trials_file,)
        return (Path(sys.prefix, "share", "pwgrid", "browsers.json"), self._cache / "pwgrid" / "browsers.json")

    @property
    def _cache(self) -> Path:
        if chosen := self.environ.get("XDG_CACHE_HOME"):
            return Path(chosen)
        return home(self.environ) / ".cache"


# Relative to the directory of an installed browser; the last of several is that of older drivers.
OWN_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "chromium-headless-shell": (
        "chrome-headless-shell-linux64/chrome-headless-shell",
        "chrome-headless-shell-linux-arm64/chrome-headless-shell",
        "chrome-linux/headless_shell",
    ),
    "chromium": ("chrome-linux64/chrome", "chrome-linux-arm64/chrome", "chrome-linux/chrome"),
    "firefox": ("firefox/firefox",),
    "webkit": ("pw_run.sh",),
}

# Not Debian's wrapper scripts: Chromium's prints noise, and the headless shell's has another pid than the browser.
_SYSTEM_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "chromium-headless-shell": (
        "usr/lib/chromium/chromium-headless-shell",
        "usr/lib/chromium/headless_shell",
        "usr/lib64/chromium-browser/headless_shell",
        "usr/lib/chromium-browser/headless_shell",
    ),
    "chromium": (
        "usr/lib/chromium/chromium",
        "usr/lib/chromium-browser/chromium-browser",
        "usr/lib64/chromium-browser/chromium-browser",
        "opt/google/chrome/chrome",
    ),
    "firefox": (
        "usr/lib/firefox-esr/firefox-esr",
        "usr/lib/firefox/firefox",
        "usr/lib64/firefox/firefox",
        "opt/firefox/firefox",
    ),
}

_NAMES_ON_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "chromium-headless-shell": ("chrome-headless-shell", "headless_shell"),
    "chromium": ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"),
    "firefox": ("firefox-esr", "firefox"),
}

CHANNEL_PATHS: Final[Mapping[str, Mapping[str, str]]] = {
    "chromium": {
        "chrome": "opt/google/chrome/chrome",
        "chrome-beta": "opt/google/chrome-beta/chrome",
        "chrome-dev": "opt/google/chrome-unstable/chrome",
        "chrome-canary": "opt/google/chrome-canary/chrome",
        "msedge": "opt/microsoft/msedge/msedge",
        "msedge-beta": "opt/microsoft/msedge-beta/msedge",
        "msedge-dev": "opt/microsoft/msedge-dev/msedge",
    },
    "firefox": {
        "moz-firefox": "snap/bin/firefox",
        "moz-firefox-beta": "opt/firefox-beta/firefox",
        "moz-firefox-nightly": "opt/firefox-nightly/firefox",
    },
}
"""The only place where Playwright looks for the browser of a channel on Linux. Its other channels are browsers of its
own, which another version of its package replaces."""

_HOW_TO_GET: Final[Mapping[BrowserType, str]] = {
    "chromium": "run `pwgrid setup --chromium 1`, or install the system's chromium, or set CHROMIUM_EXECUTABLE",
    "firefox": "run `pwgrid setup --firefox 1`, or install the system's firefox, or set FIREFOX_EXECUTABLE",
    "webkit": "no system carries the patched WebKit that Playwright needs: run `playwright install --with-deps webkit` "
    "(needs the internet and a supported Debian or Ubuntu), or ask for no webkit workers",
}


def find_browser(browser_type: BrowserType, settings: Settings, places: SearchPaths | None = None) -> FoundBrowser:
    """Returns the executable from the settings, else the best candidate; one that did not start for `pwgrid setup` only
    if there is no other. Raises BrowserMissing, which says how to get one."""
    places = places or SearchPaths()
    passed_over: list[str] = []
    found = list(candidates(browser_type, settings, places, passed_over))
    if not found:
        because = f" ({'; '.join(passed_over)})" if passed_over else ""
        raise BrowserMissing(f"there is no {browser_type} on this host{because}", _HOW_TO_GET[browser_type])
    if len(found) == 1:
        return found[0]
    trials = ((each, trial_of(each.executable, settings, places)) for each in found)
    return next((each for each, trial in trials if trial is None or not trial.fault), found[0])


def find_for_pool(pool: PoolSettings, settings: Settings, places: SearchPaths | None = None) -> FoundBrowser:
    """Returns what the workers of a pool launch, with the pool's driver. Playwright itself finds those browsers of a
    channel that are its own. Raises BrowserMissing."""
    places = (places or SearchPaths()).for_pool(pool, settings)
    if pool.channel:
        path = CHANNEL_PATHS.get(pool.browser_type, {}).get(pool.channel)
        executable = "" if path is None else str(places.root / path)
        if executable and not os.access(executable, os.X_OK):
            raise BrowserMissing(
                f"the channel of pool {pool.name} is {pool.channel}, and there is no such browser at /{path}",
                "install it there, as its maker's package does, or name an executable instead",
            )
        return FoundBrowser(pool.browser_type, executable, pool.channel, "setting", driver=places.driver)
    if pool.executable and not pool.is_short_form:
        return _chosen(pool.browser_type, pool.executable, f"the executable of pool {pool.name}", places.driver)
    return find_browser(pool.browser_type, settings.of_pool(pool), places)


def installed_channels(browser_type: BrowserType, places: SearchPaths) -> Iterator[Path]:
    """Yields the executables of this type's channels that are on this host."""
    for path in CHANNEL_PATHS.get(browser_type, {}).values():
        if os.access(places.root / path, os.X_OK):
            yield places.root / path


def candidates(
    browser_type: BrowserType, settings: Settings, places: SearchPaths, passed_over: list[str]
) -> Iterator[FoundBrowser]:
    """Yields what can be launched, the best first: only the executable from the settings if there is one, else
    Playwright's own and the system's, in the order that the settings prefer. Adds to `passed_over` why others cannot.

    Raises BrowserMissing for a wrong path in the settings.
    """
    chosen = settings.executable(browser_type)
    if chosen:
        yield _chosen(browser_type, chosen, f"{browser_type.upper()}_EXECUTABLE", places.driver)
        return
    sources: tuple[Source, ...] = ("playwright", "system")
    for source in reversed(sources) if settings.prefer == "system" else sources:
        yield from candidates_from(source, browser_type, settings, places, passed_over)


def candidates_from(
    source: Source, browser_type: BrowserType, settings: Settings, places: SearchPaths, passed_over: list[str]
) -> Iterator[FoundBrowser]:
    """Yields the candidates of one source, the best first, each file once."""
    seen = set()
    for kind in _kinds(browser_type, settings.headless):
        is_own = source == "playwright"
        for path in _own(kind, places) if is_own else _system(kind, places, passed_over):
            file = os.path.realpath(path)
            if file not in seen:
                seen.add(file)
                browser = (
                    FoundBrowser(browser_type, str(path), "", source) if is_own else _from_system(browser_type, path)
                )
                yield replace(browser, driver=places.driver)


def made_for(browser_type: BrowserType, places: SearchPaths) -> str:
    """Returns the version of this browser that the driver is made for, like 159.0.8154.6, or "" if it is unknown."""
    return next((each.get("browserVersion", "") for each in installables(places) if each["name"] == browser_type), "")


def _kinds(browser_type: BrowserType, headless: bool) -> tuple[str, ...]:
    """Returns the kinds to look for, the best first: a headless shell needs half the memory of a full Chromium."""
    return ("chromium-headless-shell", "chromium") if browser_type == "chromium" and headless else (browser_type,)


def _chosen(browser_type: BrowserType, chosen: str, setting: str, driver: Driver) -> FoundBrowser:
    path = Path(chosen)
    try:
        why_not = "" if path.is_file() else "where there is no file"
    except PermissionError:
        why_not = "where this user may not look"
    if not why_not and not os.access(path, os.X_OK):
        why_not = "which is not executable"
    if why_not:
        raise BrowserMissing(f"{setting} is {chosen}, {why_not}: correct it, or unset it to look for one")
    # Playwright's patched Firefox has its own protocol; it is in a directory like firefox-1572/firefox.
    own = re.search(r"/firefox-\d+/firefox/", str(path.resolve()))
    channel = STOCK_FIREFOX_CHANNEL if browser_type == "firefox" and not own else ""
    return FoundBrowser(browser_type, chosen, channel, "setting", driver=driver)


def installables(places: SearchPaths) -> list[dict[str, Any]]:
    """Returns what the driver can install, each with name and revision, browsers also with `browserVersion`."""
    try:
        found: list[dict[str, Any]] = orjson.loads((places.core / "browsers.json").read_bytes())["browsers"]
    except FileNotFoundError:
        return []
    return found


def install_directories(name: str, places: SearchPaths) -> Iterator[Path]:
    """Yields where the driver installs what has this name, whether it is there or not."""
    for each in installables(places):
        if each["name"] != name:
            continue
        prefix = name.replace("-", "_")
        yield places.installed / f"{prefix}-{each['revision']}"
        for revision in set(each.get("revisionOverrides", {}).values()):
            yield from places.installed.glob(f"{prefix}_*_special-{revision}")


def ffmpeg_paths(places: SearchPaths) -> list[Path]:
    """Where the driver looks for the ffmpeg that records its videos, the best path first."""
    return [directory / "ffmpeg-linux" for directory in install_directories("ffmpeg", places)]


def _own(kind: str, places: SearchPaths) -> Iterator[Path]:
    """Yields the driver's own browser, if it is there."""
    for directory in install_directories(kind, places):
        if not os.path.exists(directory / "INSTALLATION_COMPLETE"):
            continue  # a download that was interrupted, or one where we may not look
        for path in OWN_PATHS[kind]:
            if os.access(directory / path, os.X_OK):
                yield directory / path
                return


def _system(kind: str, places: SearchPaths, passed_over: list[str]) -> Iterator[Path]:
    """Yields usable candidates, the best first. Adds to `passed_over` why others are not."""
    for path in _SYSTEM_PATHS.get(kind, ()):
        candidate = places.root / path
        if os.access(candidate, os.X_OK):
            yield candidate
    for name in _NAMES_ON_PATH.get(kind, ()):
        found = shutil.which(name, path=places.environ.get("PATH", ""))
        if found is None:
            continue
        candidate = Path(found).resolve()
        if candidate.name == "snap" or (_is_script(candidate) and b"snap" in candidate.read_bytes()):
            passed_over.append(f"{found} is a snap, whose confinement does not let it be driven")
            continue
        yield candidate


def _from_system(browser_type: BrowserType, candidate: Path) -> FoundBrowser:
    notes = ["a wrapper script, not the browser itself"] if _is_script(candidate) else []
    channel = ""
    if browser_type == "firefox":
        channel = STOCK_FIREFOX_CHANNEL
        notes.append("a stock Firefox, driven over WebDriver BiDi: page.pdf() may hang")
    return FoundBrowser(browser_type, str(candidate), channel, "system", tuple(notes))


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


# How the launches of `pwgrid setup` went


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one launch. `fault` says in one sentence why no page could be opened; empty when one was."""

    fault: str
    version: str = ""
    """The version that the browser reported; empty when it failed before that."""
    seconds: float = 0.0


def trial_of(executable: str, settings: Settings, places: SearchPaths) -> Trial | None:
    """Returns the latest trial of this executable with this driver, or None if there is none. It counts only while the
    executable (path, size, time of change) and the settings for launching are the same."""
    conditions = _conditions(executable, settings)
    for file in places.trials:
        entry = _trials_in(file).get(_pair(executable, places), {})
        if entry.get("conditions") == conditions:
            return Trial(**entry["trial"])
    return None


def remember_trial(executable: str, settings: Settings, places: SearchPaths, trial: Trial) -> None:
    """Writes into the first file that can be written, readable for all users: a service may run as another one. Raises
    OSError when none can."""
    entry = {"conditions": _conditions(executable, settings), "trial": asdict(trial)}
    refused: OSError | None = None
    for file in places.trials:
        kept = {pair: each for pair, each in _trials_in(file).items() if os.path.exists(pair.partition(_WITH)[0])}
        entries = kept | {_pair(executable, places): entry}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Not orjson: a path may hold bytes that are no text.
            write_whole(file, json.dumps(entries, indent=1).encode(), mode=0o644)
        except OSError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused


def _conditions(executable: str, settings: Settings) -> list[object]:
    try:
        file = os.stat(executable)
    except OSError:
        return []
    return [
        file.st_size,
        file.st_mtime_ns,
        settings.headless,
        settings.chromium_sandbox,
        [*settings.chromium_args],
        os.geteuid() == 0,
    ]


_WITH: Final = " with Playwright "


def _pair(executable: str, places: SearchPaths) -> str:
    return f"{os.path.realpath(executable)}{_WITH}{places.driver.version}"


def _trials_in(file: Path) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_bytes())
        if isinstance(found, dict):
            return found
    return {}
