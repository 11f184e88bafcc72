"""`pwgrid status --watch` and `pwgrid sessions --follow`: in place on a terminal, line by line into a pipe."""

import contextlib
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pwgrid.cli import grid_queries, tables
from pwgrid.cli.ask_grid import WithoutMasterError, find_grid
from pwgrid.cli.output import clock, compact, is_live, printable
from pwgrid.common.errors import GridError

Found = dict[str, Any]


def status(port: int | None, runtime_dir: str | None) -> list[Found]:
    """The status of the grid that is meant, or of all those whose master is gone. Raises GridError, NoGridError."""
    try:
        return [grid_queries.status(find_grid(port, runtime_dir))]
    except WithoutMasterError as error:
        return [grid_queries.status_without_master(grid) for grid in error.left]


def watch_status(port: int | None, runtime_dir: str | None, every_s: float, *, as_json: bool) -> NoReturn:
    """Shows the status again every `every_s` seconds, also while there is no grid; until Ctrl-C."""
    console = Console()
    screen = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
    with screen if is_live(console) and not as_json else contextlib.nullcontext() as live:
        while True:
            try:
                found: list[Found] | GridError = status(port, runtime_dir)
            except GridError as error:
                found = error
            if live is None:
                _print_lines(found, as_json=as_json)
            else:
                text = f"{clock()}  every {every_s:g} s, Ctrl-C ends it\n\n{_text(found)}"
                live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(every_s)  # noqa: TID251 - a period that the user has given


def follow_sessions(
    latest: list[Found], news: Iterator[list[Found]], *, status: str | None = None, as_json: bool
) -> None:
    """Prints a line for each of the `latest` sessions (given newest first), then for each of `news`; until Ctrl-C."""
    for session in chain(reversed(latest), _not_told(latest, news)):
        if status in (None, session["status"]):
            click.echo(compact(session) if as_json else tables.session_line(session))


def _not_told(latest: list[Found], news: Iterator[list[Found]]) -> Iterator[Found]:
    """All news. The first ones are of all that has happened since before `latest` was read, which may have it, too."""
    told = {(session["id"], session["status"]) for session in latest}
    for sessions in news:
        yield from (session for session in sessions if (session["id"], session["status"]) not in told)
        told = set()


def _print_lines(found: list[Found] | GridError, *, as_json: bool) -> None:
    if not as_json:
        click.echo(f"{clock()}\n{_text(found)}\n")
    elif isinstance(found, GridError):
        click.echo(compact({"error": str(found)}))
    else:
        click.echo("\n".join(map(compact, found)))


def _text(found: list[Found] | GridError) -> str:
    return printable(str(found)) if isinstance(found, GridError) else "\n".join(map(tables.status_text, found))
