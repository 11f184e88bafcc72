"""`pwgrid calibrate`: measures, and prints and writes what follows."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pwgrid.cli import output
from pwgrid.cli.calibrate import plot, sizing
from pwgrid.cli.options import Configured, as_arguments, as_private, with_json
from pwgrid.common.atomic_write import rewrite
from pwgrid.common.errors import GridError
from pwgrid.common.types import BROWSER_TYPES
from pwgrid.settings.model import SETTINGS, literal

if TYPE_CHECKING:
    from pwgrid.cli.calibrate.measure import CalibrateOptions
    from pwgrid.settings.load import Loaded


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
    # These load Playwright and more, for which no --help is to wait.
    from pwgrid.cli.calibrate.measure import CalibrateOptions, settings_for
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load

    names = ("url", "script", "browser_type", "seconds", "most", "svg", "write", "as_json")
    asked = CalibrateOptions(**{name: rest.pop(name) for name in names})
    environment = without_application_redis()
    loaded = load(config_file, environment, as_private(rest), private=True)
    # A flag would beat what is set for the measurement, in the grid's environment.
    given = {**rest, **dict.fromkeys(settings_for(asked)), "port": 0, "config_file": config_file}
    main(asked, loaded, as_arguments(given), environment)


def main(asked: CalibrateOptions, loaded: Loaded, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Measures, prints, and writes what the options ask for. Raises GridError."""
    from pwgrid.cli.calibrate import measure
    from pwgrid.settings.load import DEFAULT_FILE, FILE_VARIABLE

    file = loaded.config_file or Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)
    _check(asked, file, loaded)
    if asked.script is not None:
        measure.command(asked.script)

    def say(line: str) -> None:
        if not asked.as_json:
            click.echo(output.printable(line))

    what = f"the script {asked.script}" if asked.script else asked.url or "a stand-in page (--url names yours)"
    say(f"measuring {what} with {asked.browser_type}")
    found = measure.calibrate(asked, loaded.settings, arguments, environment, say)
    proposal = sizing.propose(found, asked.browser_type, loaded.settings.min_host_available_mib)
    if asked.as_json:
        click.echo(output.as_json(sizing.as_data(found, proposal)))
    for line in ["", *plot.report(found), "", *(f"- {reason}" for reason in proposal.reasons), ""]:
        say(line)
    has_pools = bool(loaded.settings.pools)
    for name, value in (sizing.for_a_pool(proposal.settings) if has_pools else proposal.settings).items():
        say(f"{name} = {value}")
    say("")
    # Only now: minutes of measuring are not lost where a file cannot be written.
    if asked.svg is not None:
        _draw(asked.svg, plot.as_svg(found.steps, f"{asked.browser_type} on {found.cores:g} cores"))
    if asked.write:
        write(file, proposal.settings)
        say(f"written into {file}: pwgrid reload, or a new start, takes it")
    else:
        say("put this into the table of a pool" if has_pools else "--write puts this into a file")


def _check(asked: CalibrateOptions, file: Path, loaded: Loaded) -> None:
    """Raises GridError for options with which a grid would be started for nothing."""
    if asked.url is not None and asked.script is not None:
        raise click.UsageError("--url and --script: one of them is what a session does")
    if asked.write and loaded.settings.pools:
        raise GridError(
            f"--write: there are pools ({loaded.sources['pools']}), and nobody says which of them this is for: leave it"
            " out, and put what is proposed into a pool's table"
        )
    # A file is replaced as a whole, for which its directory must be writable.
    if asked.write and not os.access(os.path.dirname(os.path.realpath(file)), os.W_OK | os.X_OK):
        raise GridError(f"{file} cannot be written: name another file by --config, or leave --write out")


def _draw(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise GridError(f"{path} cannot be written: {error.strerror}") from None


def with_settings(text: str, settings: Mapping[str, int]) -> str:
    """The configuration `text` with these settings, each in its section; comments and order stay.

    Raises GridError if the text does not have one setting a line.
    """
    lines = text.splitlines()
    sections = {name: SETTINGS[name].section for name in settings}
    for name, value in settings.items():
        _put(lines, sections[name], name, f"{name} = {literal(value)}")
    changed = "\n".join(lines) + "\n"
    try:
        found = tomllib.loads(changed)
        is_there = all(found[sections[name]][name] == value for name, value in settings.items())
    except (ValueError, KeyError, TypeError):
        is_there = False
    if not is_there:
        raise GridError(
            "the configuration file does not have each setting on a line of its own: put the settings in by hand"
        )
    return changed


def write(path: Path, settings: Mapping[str, int]) -> None:
    """Put `settings` into the file at `path`, which need not exist. Raises GridError."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        rewrite(path, with_settings(text, settings).encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GridError(f"{path} cannot be written: {reason}") from None


def _put(lines: list[str], section: str, name: str, line: str) -> None:
    """Replaces the line that sets `name`, else the comment that shows it, else adds a line at the end of its
    section."""
    head = next((place for place, each in enumerate(lines) if re.match(rf"\s*\[{section}\]\s*(#.*)?$", each)), None)
    if head is None:
        lines += [""] * bool(lines) + [f"[{section}]", line]
        return
    after = [place for place in range(head + 1, len(lines)) if re.match(r"\s*\[", lines[place])]
    end = after[0] if after else len(lines)
    for pattern in (rf"\s*{name}\s*=", rf"\s*#\s*{name}\s*="):
        for place in range(head + 1, end):
            if re.match(pattern, lines[place]):
                lines[place] = line
                return
    while end > head + 1 and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, line)
