"""Commands that need no running grid: serve, run, setup, doctor, calibrate."""

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any, cast

import click

from pwgrid.cli.commands.options import OWN_REDIS, Configured, with_json
from pwgrid.common.types import BROWSER_TYPES


def _leave_out_what_no_process_uses() -> None:
    """Has imports of these fail. Libraries import them wherever they are installed, and every process of the grid would
    have them: rich (2 MiB) and greenlet (1 MiB) by structlog, OpenTelemetry's metrics (1 MiB) by redis-py."""
    left_out = ["rich", "greenlet"]
    if not any(name.startswith("OTEL_") for name in os.environ):  # what traces may load is not ours to say
        left_out.append("opentelemetry.sdk.metrics")
    sys.modules.update(dict.fromkeys(left_out, cast(Any, None)))


@click.command(cls=Configured)
@click.option("--ready-fd", type=int, hidden=True, help="Write one JSON line here when the grid is ready.")
@click.option("--lifeline-fd", type=int, hidden=True, help="Stop when the other end of this descriptor closes.")
@click.option("--private", is_flag=True, hidden=True, help="Use a Redis of its own, and no tokens of `pwgrid token`.")
@click.option("--check-only", is_flag=True, hidden=True, help="Load the code and the configuration, start nothing.")
def serve(
    config_file: Path | None,
    ready_fd: int | None,
    lifeline_fd: int | None,
    private: bool,
    check_only: bool,
    **flags: Any,
) -> None:
    """Runs the grid in the foreground until SIGTERM or Ctrl-C."""
    gc.disable()  # until the code is loaded (Master.run), which takes an eighth less time so
    _leave_out_what_no_process_uses()
    from pwgrid.cli.serve import errors_as_json, serve
    from pwgrid.settings.load import load, log_format_of

    flags |= OWN_REDIS if private else {}
    with errors_as_json() if log_format_of(os.environ, flags) == "json" else contextlib.nullcontext():
        loaded = load(config_file, os.environ, flags, private=private)
        sys.exit(serve(loaded, ready_fd=ready_fd, lifeline_fd=lifeline_fd, check_only=check_only))


@click.command(
    cls=Configured,
    defaults={
        "port": "a free one",
        "max_concurrent_sessions": "from cores and memory",
        "worker_select_timeout": "600",
        "log_level": "warning",
    },
    context_settings={"allow_interspersed_args": False},  # all that comes after COMMAND is for COMMAND
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(config_file: Path | None, command: tuple[str, ...], **flags: Any) -> None:
    """Runs COMMAND with a private grid of its own.

    COMMAND finds the grid's address in PW_TEST_CONNECT_WS_ENDPOINT and PWGRID_WS_ENDPOINT. Playwright Test uses it by
    itself, and so does pytest-playwright where pwgrid is installed beside it (pwgrid help ci has a fixture for
    elsewhere). The exit code is that of COMMAND, and the grid ends after it.

    The grid has a Redis of its own, recycles no worker after a number of sessions, and lets clients wait for a slot for
    ten minutes. If a browser cannot be started, COMMAND is not run.

    \b
    pwgrid run --chromium 2 -- npx playwright test
    """
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.cli.run import run_command
    from pwgrid.cli.run_defaults import as_environment, private_settings
    from pwgrid.settings.load import load

    flags["port"] = flags["port"] or 0
    environment = without_application_redis()
    loaded = load(config_file, environment, flags | OWN_REDIS, private=True)  # complains here, not in the child
    environment |= as_environment(private_settings(loaded))
    sys.exit(run_command(_as_arguments({**flags, "config_file": config_file}), command, environment))


def _as_arguments(given: dict[str, Any]) -> list[str]:
    """The arguments of `pwgrid serve` for these option values."""
    arguments = []
    for option in serve.configuration_options():
        value = given[option.name]
        if value is not None:
            arguments += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return arguments


@click.command(cls=Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
def setup(config_file: Path | None, video: bool, **flags: Any) -> None:
    """Finds or installs the browser of each pool that wants a worker, and launches it once.

    Prints each step. Without root, the steps that need it are put into one command for you to run.
    """
    from pwgrid.cli import progress
    from pwgrid.cli.external_redis import without_application_redis
    from pwgrid.settings.load import load
    from pwgrid.setup.browsers import setup as setup_browsers

    settings = load(config_file, without_application_redis(), flags).settings  # `pwgrid run` uses none of those
    with progress.display() as shown:
        setup_browsers(settings.pools_with_workers(), settings, progress.steps(shown), video=video)


@click.command(cls=Configured)
@with_json
def doctor(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Checks everything that a grid needs of this host, launches each browser once, and says what to do.

    Exits 1 if something that the configuration asks for will fail.
    """
    from dataclasses import asdict

    from pwgrid.cli import output
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
    calibration.main(asked, loaded, _as_arguments(given), environment)
