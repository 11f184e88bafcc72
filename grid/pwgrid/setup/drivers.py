"""Gets Playwright's drivers of other versions from PyPI, and removes them; says each step."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from pwgrid.common.errors import GridError, system_error
from pwgrid.common.playwright_version import MINOR, minor_of, order_of
from pwgrid.installed.driver import Driver, drivers_directories, installed_drivers, leaving_mark, own_driver
from pwgrid.settings.model import Settings
from pwgrid.setup.packages import INSTALL_TIMEOUT_S, Host, output_of
from pwgrid.worker.browser.launch import CHECK_DRIVER

OLDEST: Final = "1.58"
"""The oldest version that the browser server is made for."""

_IN_WHEEL: Final = "playwright/driver/"
_UNFINISHED: Final = ".new-"
_REMOVED: Final = ".old-"
_MOST_MISSING: Final = 3
_CHECK_S: Final = 70.0
"""A little more than the check gives itself (check_driver.cjs): a busy host may take most of it."""


def get_drivers(minors: list[str], settings: Settings, host: Host) -> list[GridError]:
    """Makes sure that the drivers of these minor versions are there. Returns what is wrong."""
    faults: list[GridError] = []
    for minor in sorted(dict.fromkeys(minors), key=order_of):
        try:
            _get(minor, settings, host)
        except GridError as fault:
            faults.append(GridError(f"Playwright {minor}: {fault}"))
    return faults


def check_minor(text: str) -> str:
    """The minor version that this text means: 1.58 and 1.58.2 are the same. Raises GridError."""
    minor = minor_of(text)
    if not re.fullmatch(MINOR, minor):
        raise GridError(f"{text!r:.40} is no version of Playwright: say one like 1.58", 2)
    if order_of(minor) < order_of(OLDEST):
        raise GridError(
            f"Playwright {minor} is older than {OLDEST}, the oldest that the grid serves: take a later one", 2
        )
    return minor


def _get(minor: str, settings: Settings, host: Host) -> None:
    """Raises GridError."""
    own = own_driver()
    if minor == own.minor:
        return host.say(f"Playwright {minor}: pwgrid's own driver, {own.version}")
    directories = drivers_directories(settings)
    _keep_after_all(minor, directories)
    known = [each for each in installed_drivers(*directories) if each.minor == minor]
    if known:
        fault = fault_of(known[0])
        if fault is not None:
            raise GridError(f"{fault}; `pwgrid setup --remove {minor}` removes it")
        return host.say(f"Playwright {minor}: driver {known[0].version} is in {known[0].node.parent}")
    place = directories[0]
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        _clear(place)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=place) as directory:
            _install(minor, Path(directory), place, host)
    except OSError as error:
        raise GridError(f"its driver cannot be put into {place}: {system_error(error)}") from error


def _install(minor: str, directory: Path, place: Path, host: Host) -> None:
    wheel = _download(minor, directory, host)
    unpacked = directory / "driver"
    _unpack(wheel, unpacked)
    wheel.unlink()
    driver = Driver(_version_in(unpacked), unpacked / "node", unpacked / "package/cli.js")
    fault = fault_of(driver)
    if fault is not None:
        raise GridError(fault)
    into = place / driver.version
    with contextlib.suppress(OSError):  # another set-up at the same time was faster: it is as good
        unpacked.rename(into)
    host.say(f"Playwright {minor}: driver {driver.version} is in {into}")


def _download(minor: str, directory: Path, host: Host) -> Path:
    """The wheel of the newest release of this minor version. pip checks it against the hash that its index has."""
    host.say(f"Playwright {minor}: getting its driver from PyPI")
    download = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(directory)]
    quiet = ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
    fault = host.run(
        [sys.executable, "-m", "pip", *download, *quiet, f"playwright=={minor}.*"],
        {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
    )
    if fault is not None:
        raise GridError(f"pip could not get it ({fault})")
    (wheel,) = directory.glob("*.whl")
    return wheel


def _unpack(wheel: Path, into: Path) -> None:
    """The driver with its licences. All may read it: a service may run as another user."""
    with zipfile.ZipFile(wheel) as archive:
        for each in archive.infolist():
            path = PurePosixPath(each.filename)
            if each.is_dir() or not path.is_relative_to(_IN_WHEEL) or ".." in path.parts:
                continue
            target = into / path.relative_to(_IN_WHEEL)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(each) as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out)
            target.chmod(0o755 if target.name == "node" or target.suffix == ".sh" else 0o644)
    for directory, _, _ in os.walk(into):
        os.chmod(directory, 0o755)


def _version_in(unpacked: Path) -> str:
    try:
        version: str = json.loads((unpacked / "package/package.json").read_bytes())["version"]
    except (OSError, ValueError, KeyError) as error:
        raise GridError(f"its wheel has no driver that can be read ({error})") from None
    return version


def fault_of(driver: Driver) -> str | None:
    """None when this driver's Node runs, and its code has all that the browser server needs of it; else why not."""
    version, fault = output_of([driver.node, "--version"])
    if fault is not None:
        return f"its Node does not run: {fault}"
    with tempfile.TemporaryDirectory(
        prefix="pwgrid-check-"
    ) as directory:  # a driver leaves files where a check ends early
        environ = {**os.environ, "TMPDIR": directory}
        printed, fault = output_of([driver.node, CHECK_DRIVER, driver.core], environ, timeout_s=_CHECK_S)
    if fault is not None:
        return f"its driver {driver.version} cannot be loaded by Node {version.strip()}: {fault}"
    missing = json.loads(printed)
    if not missing:
        return None
    more = f" and {len(missing) - _MOST_MISSING} more" if len(missing) > _MOST_MISSING else ""
    return (
        f"pwgrid does not know its driver {driver.version} well enough to keep sessions apart in it: it has no "
        f"{', '.join(missing[:_MOST_MISSING])}{more}; take another version, or a later pwgrid"
    )


def _keep_after_all(minor: str, directories: Iterable[Path]) -> None:
    """Ends what `offer_no_more` began: pools get these drivers again. Raises GridError."""
    for mark in (leaving_mark(directory, minor) for directory in directories):
        try:
            mark.unlink(missing_ok=True)
        except OSError as error:
            raise GridError(f"it is about to be removed, and {mark} cannot be: {system_error(error)}") from error


def offer_no_more(minor: str, settings: Settings) -> None:
    """Marks the drivers of this version, so that no pool gets them any more: a running grid sees it within seconds, has
    its pools on demand take no new clients, and lets their sessions end. Raises GridError when there are none."""
    marks = list(dict.fromkeys(leaving_mark(path.parent, minor) for path in _installed(minor, settings)))
    for mark in marks:
        try:
            mark.touch()
        except OSError as error:
            for made in marks[: marks.index(mark)]:
                made.unlink(missing_ok=True)
            raise GridError(f"the driver in {mark.parent} cannot be removed: {system_error(error)}") from error


def is_offered_no_more(minor: str, settings: Settings) -> bool:
    """Whether `offer_no_more` still holds. It ends when somebody installs the version again."""
    return all(leaving_mark(path.parent, minor).exists() for path in _places_of(minor, settings))


def users_of(minor: str, settings: Settings) -> list[int]:
    """The processes that run a driver of this version; of those whose programs this user may not see, none."""
    return sorted({pid for path in _places_of(minor, settings) for pid in _processes_of(path)})


def remove_driver(minor: str, settings: Settings, host: Host) -> None:
    """Raises GridError while a process runs it, and when there is none."""
    found = _installed(minor, settings)
    if users := users_of(minor, settings):
        pids = ", ".join(map(str, users))
        raise GridError(
            f"Playwright {minor} is in use (process {pids}): `pwgrid setup --remove {minor} --when-idle` waits for that"
        )
    for path in found:
        try:
            old = Path(tempfile.mkdtemp(prefix=_REMOVED, dir=path.parent))
            path.rename(old / path.name)  # first: nobody starts half of it
            shutil.rmtree(old)
        except OSError as error:
            raise GridError(f"the driver in {path} cannot be removed: {system_error(error)}") from error
        leaving_mark(path.parent, minor).unlink(missing_ok=True)
        host.say(f"Playwright {minor}: removed {path}")


def _installed(minor: str, settings: Settings) -> list[Path]:
    """Where this version is installed. Raises GridError if it is nowhere, or pwgrid's own."""
    if minor == own_driver().minor:
        raise GridError(f"Playwright {minor} is pwgrid's own, and is removed with it", 2)
    found = list(_places_of(minor, settings))
    if not found:
        raise GridError(f"no driver of Playwright {minor} is installed here")
    return found


def _places_of(minor: str, settings: Settings) -> Iterator[Path]:
    for directory in drivers_directories(settings):
        if directory.is_dir():
            yield from (each for each in sorted(directory.iterdir()) if minor_of(each.name) == minor)


def _processes_of(path: Path) -> Iterator[int]:
    """Those of this user, of root's view all, that run a program of this directory."""
    for process in psutil.process_iter(["exe"]):
        if process.info["exe"] and Path(process.info["exe"]).is_relative_to(path.resolve()):
            yield process.pid


def _clear(place: Path) -> None:
    """Removes what an earlier set-up was killed over."""
    for each in place.iterdir():
        is_old = time.time() - each.stat().st_mtime > INSTALL_TIMEOUT_S
        if is_old and each.name.startswith((_UNFINISHED, _REMOVED)):
            shutil.rmtree(each)
