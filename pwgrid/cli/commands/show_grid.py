"""Commands that show a running grid, and change nothing."""

import os
import sys
from typing import Any

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.commands.options import GRID_OPTIONS, completing, say, with_json, with_options
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.common.session_lifecycle import SessionStatus


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    *("--watch", "every_s"),
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[S]",
    help="Show it again every S seconds (without S: 2), until Ctrl-C; with --json one object a line.",
)
@with_json
def status(port: int | None, runtime_dir: str | None, every_s: float | None, as_json: bool) -> None:
    """Shows the pools and workers, sessions and memory of a grid.

    The exit code is 0 when it is healthy, 3 when it is degraded (not ready, a pool short of workers for a reason, Redis
    away, another problem), 4 when none is running, 1 when it does not answer.
    """
    from pwgrid.cli import output, tables, watch_and_follow

    if every_s is not None:
        watch_and_follow.watch_status(port, runtime_dir, every_s, as_json=as_json)
    try:
        found = watch_and_follow.status(port, runtime_dir)
    except NoGridError as none:
        raise GridError(none.sentence, exit_codes.NONE_RUNNING) from None
    for each in found:
        click.echo(output.as_json(each) if as_json else tables.status_text(each))
    sys.exit(max(map(exit_codes.of_status, found)))


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="S", help="Seconds."
)
def top(port: int | None, runtime_dir: str | None, every_s: float) -> None:
    """Shows a grid's pools, workers, sessions and events on the whole screen, renewed every S seconds.

    Keys drain the chosen worker or pool, end a session, or filter; `?` lists all keys, `q` quits.
    """
    from pwgrid.cli.top.app import top

    sys.exit(top(port, runtime_dir, every_s))


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    "--status",
    "wanted",
    type=click.Choice([each.value for each in SessionStatus]),
    help="Only sessions with this status.",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many.")
@click.option(
    "--follow", "-f", is_flag=True, help="Then print a line for each session that begins or ends, until Ctrl-C."
)
@with_json
def sessions(
    port: int | None, runtime_dir: str | None, wanted: str | None, limit: int, follow: bool, as_json: bool
) -> None:
    """Shows the latest sessions, with the reason of each end; with --follow the newest last."""
    from pwgrid.cli import grid_queries, output, tables, watch_and_follow
    from pwgrid.cli.ask_grid import find_grid

    grid = find_grid(port, runtime_dir)
    if follow:
        news = grid_queries.follow_sessions(grid)
        latest = grid_queries.sessions(grid, wanted, limit)
        watch_and_follow.follow_sessions(latest, news, status=wanted, as_json=as_json)
    found = grid_queries.sessions(grid, wanted, limit)
    click.echo(output.as_json(found) if as_json else tables.sessions_text(found))


@click.command()
@with_options(GRID_OPTIONS)
@click.option(
    "--session",
    metavar="ID",
    shell_complete=completing("session"),
    help="Show this session: its record, and what is logged about it.",
)
@click.option("--worker", metavar="ID", shell_complete=completing("worker"), help="Only lines that name this worker.")
@click.option("--follow", "-f", is_flag=True, help="Then print new lines as they come, until Ctrl-C.")
@click.option(
    *("--lines", "-n"),
    type=click.IntRange(0),
    help="How many of the last lines; not for a --session or --worker that is followed.  [default: 100; with --session "
    "or --worker all]",
)
@with_json
def logs(port: int | None, runtime_dir: str | None, follow: bool, as_json: bool, **options: Any) -> None:
    """Shows the log of a grid: from LOG_FILE, the journal, supervisord, or the file that its stderr goes to.

    With --session, lines about the session's worker while it had the session are shown as well. With --json each line
    is one JSON object; where the grid itself does not log JSON, it has only the field `line`.
    """
    from pwgrid.cli import logs as logs_command

    if follow and options["lines"] is not None and (options["session"] or options["worker"]):
        raise click.UsageError(
            "--lines does not go with --follow where a --session or --worker is named: leave one out"
        )
    sys.exit(logs_command.run(port, runtime_dir, logs_command.Request(**options, follow=follow, as_json=as_json)))


@click.command()
@with_json
def version(as_json: bool) -> None:
    """Shows the versions of pwgrid, Playwright and Python, and of your grids that run here."""
    from pwgrid.cli import grid_queries

    found = grid_queries.versions()
    say(found, grid_queries.versions_text(found), as_json)


@click.command("redis-cli", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def redis_cli(arguments: tuple[str, ...]) -> None:
    """Runs redis-cli on the grid's Redis. PWGRID_PORT names the grid where several run."""
    from pwgrid.cli.ask_grid import find_grid
    from pwgrid.cli.grid_queries import redis_cli
    from pwgrid.settings.environment_variables import set_variables

    port = set_variables(os.environ).get("PWGRID_PORT", "")
    if port and not port.isdecimal():
        raise GridError(f"PWGRID_PORT: {port!r:.80} is no port")
    redis_cli(find_grid(int(port) if port else None, None), arguments)
