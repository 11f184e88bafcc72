"""`pwgrid setup`: finds or installs what a grid needs of this host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from pwgrid.cli.options import Configured
from pwgrid.cli.progress import Display, LiveDisplay, display
from pwgrid.common.errors import GridError
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import RunningGrid
from pwgrid.settings.model import Settings
from pwgrid.setup.packages import Host, Steps

_LOOK_EVERY_S: Final = 0.5


@click.command(cls=Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
@click.option("--headed", is_flag=True, help="Install Xvfb and full browsers as well, which windows need.")
@click.option(
    "--playwright", metavar="VERSION", multiple=True, help="Install the driver of this Playwright, like 1.58, as well."
)
@click.option(
    "--remove", metavar="VERSION", multiple=True, help="Remove the driver of this Playwright, and do nothing else."
)
@click.option(
    "--when-idle",
    is_flag=True,
    help="With --remove: no new client gets it, and it goes when the last session has ended.",
)
def setup(
    config_file: Path | None,
    video: bool,
    headed: bool,
    playwright: tuple[str, ...],
    remove: tuple[str, ...],
    when_idle: bool,
    **flags: Any,
) -> None:
    """Finds or installs the browser of each pool that wants a worker, and launches it once.

    Prints each step. Other drivers that are here are launched, too, with each kind of browser. Without root, the steps
    that need it are put into one command for you to run.
    """
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load
    from pwgrid.setup.browsers import setup as setup_browsers
    from pwgrid.setup.drivers import check_minor, get_drivers, remove_driver

    settings = load(config_file, without_application_redis(), flags).settings  # `pwgrid run` uses none of those
    if when_idle and not remove:
        raise GridError("--when-idle is for --remove VERSION", 2)
    wanted, unwanted = ([*map(check_minor, each)] for each in (playwright, remove))
    with display() as shown:
        host = Host(steps(shown))
        for minor in unwanted:
            _check_not_configured(minor, settings)
            if when_idle:
                _offer_no_more(minor, settings, host)
            remove_driver(minor, settings, host)
        if not unwanted or wanted:
            if faults := get_drivers(wanted, settings, host):
                raise GridError("\n  ".join(map(str, faults)))
            setup_browsers(settings.pools_with_workers(), settings, host, video=video, headed=headed)


def _grids_with(settings: Settings) -> Iterator[tuple[RunningGrid, list[dict[str, Any]]]]:
    """The running grids that take their drivers from the same place, each with the pools of its configuration."""
    from pwgrid.cli.ask_grid import ask
    from pwgrid.runtime.find_grids import find_running

    grids = {grid.directory: grid for grid in [*find_running(), *find_running(elsewhere=True)]}
    for grid in grids.values():
        try:
            said = ask(grid, "settings")["settings"]
        except GridError:  # it has just ended, or is frozen: its processes tell
            continue
        # One of an older version has no such setting, and no drivers beside its own.
        if "drivers_dir" in said and said["drivers_dir"]["value"] == settings.drivers_dir:
            yield grid, said["pools"]["value"]


def _check_not_configured(minor: str, settings: Settings) -> None:
    """Raises GridError if a running grid has a pool of this version in its configuration: it could not start again."""
    for grid, pools in _grids_with(settings):
        users = [pool["name"] for pool in pools if pool.get("playwright") == minor]
        if users:
            where = f"pool {', '.join(users)} of the grid at {grid.endpoint} (master pid {grid.pid})"
            raise GridError(
                f"Playwright {minor} is in use by {where}: take it out of that pool, or stop that grid, first"
            )


def _offer_no_more(minor: str, settings: Settings, host: Host) -> None:
    """Has no new client get this version, and returns when nobody uses it any more. Raises GridError if there is none,
    or if somebody installs it again meanwhile."""
    from pwgrid.setup.drivers import is_offered_no_more, offer_no_more

    offer_no_more(minor, settings)
    told = ""
    while True:
        users = _users(minor, settings)
        if not is_offered_no_more(minor, settings):
            raise GridError(f"Playwright {minor} was installed again meanwhile, and stays")
        if not users:
            return
        if users != told:
            told = users
            host.say(f"Playwright {minor}: no new client gets it; waits for {users}")
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251 - no event tells of processes of several grids


def _users(minor: str, settings: Settings) -> str:
    """Who uses this version, for people; empty for nobody. A pool that starts on demand ends with its last worker once
    its master has seen that the driver leaves, and counts until then."""
    from pwgrid.cli.ask_grid import status
    from pwgrid.setup.drivers import users_of

    found = []
    for grid, _ in _grids_with(settings):
        with contextlib.suppress(GridError):  # it has just ended, or is frozen: its processes tell
            there = status(grid)
            for pool in there["pools"]:
                if pool["playwright"] == minor:
                    live = sum(worker["active"] or 0 for worker in there["workers"] if worker["pool"] == pool["name"])
                    found.append(f"pool {pool['name']} ({counted(live, 'session')}) of the grid at {grid.endpoint}")
    if not found and (pids := users_of(minor, settings)):
        found.append(f"process {', '.join(map(str, pids))}")
    return " and ".join(found)


class LiveSteps(Steps):
    """The steps of set-up as lines that stay; the output of an installer is one live line until it ends."""

    def __init__(self, shown: LiveDisplay) -> None:
        super().__init__(shown.line)
        self._display = shown

    def output(self, line: str) -> None:
        self._display.show("installer", line.strip())

    def ended(self) -> None:
        self._display.end("installer")


def steps(shown: Display) -> Steps:
    """The steps of set-up on this display."""
    return LiveSteps(shown) if isinstance(shown, LiveDisplay) else Steps(shown.line)
