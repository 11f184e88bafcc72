"""`pwgrid setup` and `pwgrid doctor`: what a grid needs of this host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from pwgrid.cli import output
from pwgrid.cli.options import Configured, with_json
from pwgrid.cli.progress import Display, LiveDisplay, display
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
    for finding in examine(load(config_file, os.environ, flags)):
        findings.append(finding)
        if not as_json:
            click.echo(output.printable(f"{finding.level:5} {finding.name:12} {finding.found}"))
            if finding.to_do:
                click.echo(output.printable(f"{'':18} -> {finding.to_do}"))
    is_good = all(finding.level != "bad" for finding in findings)
    if as_json:
        click.echo(output.as_json({"good": is_good, "findings": [asdict(finding) for finding in findings]}))
    sys.exit(0 if is_good else 1)
