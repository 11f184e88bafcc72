"""`pwgrid setup`: finds or installs what a grid needs of this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pwgrid.cli.options import Configured
from pwgrid.cli.progress import Display, LiveDisplay, display
from pwgrid.common.errors import GridError
from pwgrid.settings.model import Settings
from pwgrid.setup.packages import Host, Steps


@click.command(cls=Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
@click.option("--headed", is_flag=True, help="Install Xvfb and full browsers as well, which windows need.")
@click.option(
    "--playwright", metavar="VERSION", multiple=True, help="Install the driver of this Playwright, like 1.58, as well."
)
@click.option(
    "--remove", metavar="VERSION", multiple=True, help="Remove the driver of this Playwright, and do nothing else."
)
def setup(
    config_file: Path | None,
    video: bool,
    headed: bool,
    playwright: tuple[str, ...],
    remove: tuple[str, ...],
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
    wanted, unwanted = ([*map(check_minor, each)] for each in (playwright, remove))
    with display() as shown:
        host = Host(steps(shown))
        for minor in unwanted:
            _check_unused(minor, settings)
            remove_driver(minor, settings, host)
        if not unwanted or wanted:
            if faults := get_drivers(wanted, settings, host):
                raise GridError("\n  ".join(map(str, faults)))
            setup_browsers(settings.pools_with_workers(), settings, host, video=video, headed=headed)


def _check_unused(minor: str, settings: Settings) -> None:
    """Raises GridError if a running grid that takes its drivers from the same place has a pool of this version."""
    from pwgrid.cli.ask_grid import ask
    from pwgrid.runtime.find_grids import find_running

    grids = {grid.directory: grid for grid in [*find_running(), *find_running(elsewhere=True)]}
    for grid in grids.values():
        try:
            said = ask(grid, "settings")["settings"]
        except GridError:  # it has just ended, or is frozen: its processes tell
            continue
        pools = said["pools"]["value"] if said["drivers_dir"]["value"] == settings.drivers_dir else []
        users = [pool["name"] for pool in pools if pool.get("playwright") == minor]
        if users:
            where = f"pool {', '.join(users)} of the grid at {grid.endpoint} (master pid {grid.pid})"
            raise GridError(
                f"Playwright {minor} is in use by {where}: take it out of that pool, or stop that grid, first"
            )


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
