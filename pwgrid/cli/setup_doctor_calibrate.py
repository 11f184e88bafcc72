"""`pwgrid setup`, `doctor` and `calibrate`: what a grid needs of this host, and what the host carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from pwgrid.cli import output
from pwgrid.cli.options import OWN_REDIS, Configured, as_arguments, with_json
from pwgrid.cli.progress import Display, LiveDisplay, display
from pwgrid.common.types import BROWSER_TYPES
from pwgrid.setup.packages import Host, Steps


@click.command(cls=Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
def setup(config_file: Path | None, video: bool, **flags: Any) -> None:
    """Finds or installs the browser of each pool that wants a worker, and launches it once.

    Prints each step. Without root, the steps that need it are put into one command for you to run.
    """
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load
    from pwgrid.setup.browsers import setup as setup_browsers

    settings = load(config_file, without_application_redis(), flags).settings  # `pwgrid run` uses none of those
    with display() as shown:
        setup_browsers(settings.pools_with_workers(), settings, Host(steps(shown)), video=video)


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


@click.command(cls=Configured)
@with_json
def doctor(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Checks everything that a grid needs of this host, launches each browser once, and says what to do.

    Exits 1 if something that the configuration asks for will fail.
    """
    from dataclasses import asdict

    from pwgrid.settings.load import load
    from pwgrid.setup.doctor import examine

    findings = []
    for finding in examine(load(config_file, os.environ, flags).settings):
        findings.append(finding)
        if not as_json:
            click.echo(output.printable(f"{finding.level:5} {finding.name:12} {finding.found}"))
            if finding.to_do:
                click.echo(output.printable(f"{'':18} -> {finding.to_do}"))
    is_good = all(finding.level != "bad" for finding in findings)
    if as_json:
        click.echo(output.as_json({"good": is_good, "findings": [asdict(finding) for finding in findings]}))
    sys.exit(0 if is_good else 1)


@click.command(cls=Configured, shown=("prefer",))
@click.option("--url", help="The page that a session opens.  [default: a table of 2,000 rows]")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="A program (.py, .js or executable) that is run as a session instead; it connects to $PWGRID_WS_ENDPOINT.",
)
@click.option("--browser", "browser_type", type=click.Choice(BROWSER_TYPES), default="chromium", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=8.0, show_default=True, help="How long each step measures."
)
@click.option("--most", type=click.IntRange(min=1), help="Clients at once in the last step.  [16 for each core]")
@click.option("--svg", type=click.Path(path_type=Path), help="Also write the plot into this file.")
@click.option("--write", is_flag=True, help="Write the proposal into the configuration file.")
@with_json
def calibrate(config_file: Path | None, **rest: Any) -> None:
    """Measures how many sessions with your own page or script this host carries, and proposes settings.

    Starts a private grid with real browsers and measures what an idle worker and a session take, how fast browsers
    launch, how many sessions a second 1, 2, 4 … clients at once reach, and from where on more clients add nothing.
    Clients and grid share this host, so stop everything else here. --write puts workers, slots, memory limits and
    lifetime into the file that --config or $PWGRID_CONFIG names, or /etc/pwgrid/grid.toml.
    """
    from pwgrid.cli.calibrate import main as calibration
    from pwgrid.cli.calibrate.measure import CalibrateOptions, settings_for
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load

    names = ("url", "script", "browser_type", "seconds", "most", "svg", "write", "as_json")
    asked = CalibrateOptions(**{name: rest.pop(name) for name in names})
    environment = without_application_redis()
    loaded = load(config_file, environment, rest | OWN_REDIS)
    # A flag would beat what is set for the measurement, in the grid's environment.
    given = {**rest, **dict.fromkeys(settings_for(asked)), "port": 0, "config_file": config_file}
    calibration.main(asked, loaded, as_arguments(given), environment)
