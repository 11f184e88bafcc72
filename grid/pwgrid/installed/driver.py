"""Playwright's drivers: of each version that this host has, the Node that runs a browser server, and the code that it
runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import orjson
from playwright._impl._driver import compute_driver_executable

from pwgrid.common.errors import BrowserMissing
from pwgrid.common.paths import home
from pwgrid.common.playwright_version import minor_of, order_of
from pwgrid.settings.model import Settings

OF_SYSTEM: Final = Path("/var/lib/pwgrid/drivers")

_NODE: Final = "node"
_CLI: Final = "package/cli.js"
_LEAVING: Final = ".leaving-"


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver; `version` is that of its code, like 1.58.0, `cli` its command line."""

    version: str
    node: Path
    cli: Path

    def command(self, *arguments: str) -> list[str]:
        """Playwright's own command line."""
        return [str(self.node), str(self.cli), *arguments]

    @property
    def core(self) -> Path:
        """The directory of playwright-core."""
        return self.cli.parent

    @property
    def minor(self) -> str:
        """The version as far as its clients must have the same: 1.58."""
        return minor_of(self.version)


def own_driver() -> Driver:
    """The one in the Python package, which pwgrid depends on."""
    node, cli = compute_driver_executable()
    return Driver(_version_in(Path(cli).parent), Path(node), Path(cli))


@cache
def _version_in(core: Path) -> str:
    """The version of this code, as it was when it was first asked for: it may be replaced while a grid runs."""
    version: str = orjson.loads((core / "package.json").read_bytes())["version"]
    return version


def drivers_directories(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where drivers of other versions are looked for: DRIVERS_DIR, or else the user's own place and that of the whole
    system. `pwgrid setup` puts them into the first one."""
    if settings.drivers_dir:
        return (Path(settings.drivers_dir),)
    if os.geteuid() == 0:
        return (OF_SYSTEM,)
    own = environ.get("XDG_STATE_HOME") or home(environ) / ".local/state"
    return (Path(own) / "pwgrid/drivers", OF_SYSTEM)


def installed_drivers(*directories: Path) -> tuple[Driver, ...]:
    """pwgrid's own driver and those in these directories, of each minor version the newest, the oldest version first.
    Of its own minor version pwgrid takes its own. Raises OSError when no descriptor is free."""
    found: dict[str, Driver] = {}
    for driver in sorted(_drivers_in(directories), key=lambda each: order_of(each.version)):
        found[driver.minor] = driver
    own = own_driver()
    found[own.minor] = own
    return tuple(sorted(found.values(), key=lambda each: order_of(each.version)))


def leaving_mark(directory: Path, minor: str) -> Path:
    """The file that says that the drivers of this minor version in this directory are about to be removed, so that no
    pool gets them any more. Those who run one still read its files."""
    return directory / f"{_LEAVING}{minor}"


def _drivers_in(directories: tuple[Path, ...]) -> Iterator[Driver]:
    """A directory for each, with its version as name; what is being unpacked has another one, and what is about to be
    removed has a mark."""
    for directory in reversed(directories):  # where two have the same version, the first one counts
        try:
            names = os.listdir(directory)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # else it would seem that all drivers have been removed
                raise
            continue  # there are none, or this user may not look
        leaving = {name.removeprefix(_LEAVING) for name in names if name.startswith(_LEAVING)}
        for name in names:
            if minor_of(name) in leaving:
                continue
            driver = Driver(name, directory / name / _NODE, directory / name / _CLI)
            if name[:1].isdecimal() and os.access(driver.node, os.X_OK) and os.access(driver.cli, os.R_OK):
                yield driver


class DriverMissing(BrowserMissing):
    """The driver of a pool's version is not installed."""


def driver_of(minor: str, settings: Settings, pool: str = "") -> Driver:
    """The installed driver of this minor version; pwgrid's own for an empty one. Raises DriverMissing, which names the
    `pool` that wants it."""
    own = own_driver()
    if minor in ("", own.minor):
        return own
    drivers = installed_drivers(*drivers_directories(settings))
    for each in drivers:
        if each.minor == minor:
            return each
    who = f"pool {pool} wants Playwright {minor}" if pool else f"Playwright {minor} is wanted"
    there_are = ", ".join(each.minor for each in drivers)
    raise DriverMissing(
        f"{who}, which is not installed here (there is {there_are})", f"run `pwgrid setup --playwright {minor}`"
    )
