"""`pwgrid setup`: finds or installs what a grid needs of this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pwgrid.cli.options import Configured
from pwgrid.cli.progress import Display, LiveDisplay, display
from pwgrid.setup.packages import Host, Steps


@click.command(cls=Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
@click.option("--headed", is_flag=True, help="Install Xvfb and full browsers as well, which windows need.")
def setup(config_file: Path | None, video: bool, headed: bool, **flags: Any) -> None:
    """Finds or installs the browser of each pool that wants a worker, and launches it once.

    Prints each step. Without root, the steps that need it are put into one command for you to run.
    """
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load
    from pwgrid.setup.browsers import setup as setup_browsers

    settings = load(config_file, without_application_redis(), flags).settings  # `pwgrid run` uses none of those
    with display() as shown:
        host = Host(steps(shown))
        setup_browsers(settings.pools_with_workers(), settings, host, video=video, headed=headed)


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
