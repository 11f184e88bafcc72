"""`pwgrid version`: what is installed here, and what each grid of ours runs."""

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

import click

import pwgrid
from pwgrid import __version__
from pwgrid.cli.ask_grid import ask
from pwgrid.cli.options import say, with_json
from pwgrid.common.errors import GridError
from pwgrid.installed.driver import Driver, drivers_directories, installed_drivers
from pwgrid.runtime.find_grids import find_running
from pwgrid.settings.load import load
from pwgrid.settings.model import Settings


@click.command()
@with_json
def version(as_json: bool) -> None:
    """Shows the versions of pwgrid, Playwright and Python, and of your grids that run here."""
    grids = {grid.directory: grid for grid in [*find_running(), *find_running(elsewhere=True)]}
    running = []
    for grid in grids.values():
        with contextlib.suppress(GridError):
            running.append({"endpoint": grid.endpoint, "pid": grid.pid, "version": ask(grid, "status")["version"]})
    here = {"python": platform.python_version(), "from": str(Path(pwgrid.__file__).parent)}
    drivers = [each.version for each in _drivers()]
    found = {
        "pwgrid": __version__,
        "playwright": metadata.version("playwright"),
        "drivers": drivers,
        **here,
        "running": running,
    }
    lines = [f"pwgrid {found['pwgrid']}, Playwright {found['playwright']}, Python {found['python']} ({found['from']})"]
    if len(drivers) > 1:
        lines.append(f"drivers for clients of Playwright: {', '.join(drivers)}")
    lines += [f"{each['endpoint']} runs {each['version']} (master pid {each['pid']})" for each in running]
    say(found, "\n".join(lines), as_json)


def _drivers() -> tuple[Driver, ...]:
    """All that are installed, as far as the configuration in the default place tells."""
    try:
        settings = load(None, os.environ, {}).settings
    except GridError:
        settings = Settings()
    return installed_drivers(*drivers_directories(settings))
