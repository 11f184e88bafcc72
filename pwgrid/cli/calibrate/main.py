"""Runs `pwgrid calibrate`: measures, and prints and writes what follows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from pwgrid.cli import output
from pwgrid.cli.calibrate import load_generator, measure, plot, sizing, write
from pwgrid.cli.calibrate.measure import CalibrateOptions
from pwgrid.common.errors import GridError
from pwgrid.settings.load import DEFAULT_FILE, FILE_VARIABLE, Loaded


def main(asked: CalibrateOptions, loaded: Loaded, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Measures, prints, and writes what the options ask for. Raises GridError."""
    file = loaded.config_file or Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)
    _check(asked, file)

    def say(line: str) -> None:
        if not asked.as_json:
            click.echo(output.printable(line))

    what = f"the script {asked.script}" if asked.script else asked.url or "a stand-in page (--url names yours)"
    say(f"measuring {what} with {asked.browser_type}")
    found = measure.calibrate(asked, loaded.settings, arguments, environment, say)
    proposal = sizing.propose(found, asked.browser_type, loaded.settings.min_host_available_mib)
    if asked.as_json:
        click.echo(output.as_json(sizing.as_data(found, proposal)))
    for line in ["", *measure.report(found), "", *(f"- {reason}" for reason in proposal.reasons), ""]:
        say(line)
    for name, value in proposal.settings.items():
        say(f"{name} = {value}")
    say("")
    # Only now: minutes of measuring are not lost where a file cannot be written.
    if asked.svg is not None:
        _draw(asked.svg, plot.as_svg(found.steps, f"{asked.browser_type} on {found.cores:g} cores"))
    if asked.write:
        write.write(file, proposal.settings)
    say(
        f"written into {file}: pwgrid reload, or a new start, takes it"
        if asked.write
        else "--write puts this into a file"
    )


def _check(asked: CalibrateOptions, file: Path) -> None:
    """Raises GridError for options with which a grid would be started for nothing."""
    if asked.url is not None and asked.script is not None:
        raise click.UsageError("--url and --script: one of them is what a session does")
    # A file is replaced as a whole, for which its directory must be writable.
    if asked.write and not os.access(os.path.dirname(os.path.realpath(file)), os.W_OK | os.X_OK):
        raise GridError(f"{file} cannot be written: name another file by --config, or leave --write out")
    if asked.script is not None:
        load_generator.command(asked.script)


def _draw(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise GridError(f"{path} cannot be written: {error.strerror}") from None
