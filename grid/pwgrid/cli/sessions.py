"""`pwgrid sessions`: the latest sessions, and with --follow those that begin and end from now on."""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final

import click

from pwgrid.cli import output
from pwgrid.cli.ask_grid import find_grid, latest_sessions, redis_of
from pwgrid.cli.options import GRID_OPTIONS, with_json, with_options
from pwgrid.cli.output import clock, one_line, table
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.types import Isolation, Protocol
from pwgrid.runtime.find_grids import RunningGrid

FOLLOW_EVERY_S: Final = 0.5

Found = dict[str, Any]


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
    grid = find_grid(port, runtime_dir)
    if follow:
        news = _news(grid)
        next(news)  # what happens from here on is news
        follow_sessions(latest_sessions(grid, wanted, limit), news, status=wanted, as_json=as_json)
    found = latest_sessions(grid, wanted, limit)
    click.echo(output.as_json(found) if as_json else sessions_text(found))


def _news(grid: RunningGrid) -> Iterator[list[Found]]:
    """Yields at once, and then every `FOLLOW_EVERY_S` seconds, the sessions that have begun or ended since the time
    before, the oldest first. Raises RegistryUnavailable."""
    from pwgrid.registry.blocking_reads import SessionWatch

    watch = SessionWatch(*redis_of(grid))
    while True:
        yield [session.as_json() for session in watch.look(time.time()).news]
        time.sleep(FOLLOW_EVERY_S)  # noqa: TID251 - Redis tells of no change of a session


def follow_sessions(
    latest: list[Found], news: Iterator[list[Found]], *, status: str | None = None, as_json: bool
) -> None:
    """Prints a line for each of the `latest` sessions (given newest first), then for each of `news`; until Ctrl-C."""
    for session in chain(reversed(latest), _not_told(latest, news)):
        if status in (None, session["status"]):
            click.echo(output.compact(session) if as_json else session_line(session))


def _not_told(latest: list[Found], news: Iterator[list[Found]]) -> Iterator[Found]:
    """Yields `news` without what `latest` has shown: the first ones go back to before that was read."""
    told = {(session["id"], session["status"]) for session in latest}
    for sessions in news:
        yield from (session for session in sessions if (session["id"], session["status"]) not in told)
        told = set()


def sessions_text(found: Sequence[Found]) -> str:
    """Sessions, as the API shows them."""
    rows = []
    for session in found:
        began = datetime.fromtimestamp(session["createdAt"]).astimezone().isoformat(" ", "seconds")[:19]
        lasted_s = (session["endedAt"] or time.time()) - session["createdAt"]
        who = (session["id"], session["pool"], session["workerId"], session["status"])
        remarks = [session["reason"]] if session["reason"] else []
        if (isolation := session.get("isolation", Isolation.CONTEXT)) != Isolation.CONTEXT:
            remarks.append(f"isolation {isolation}")
        if (protocol := session.get("protocol", Protocol.PLAYWRIGHT)) != Protocol.PLAYWRIGHT:
            remarks.append(f"protocol {protocol}")
        if profile := session.get("profile"):
            remarks.append(f"profile {profile}")
        if session.get("kept"):
            remarks.append(f"kept for another {max(0.0, session['keptUntil'] - time.time()):.0f} s")
        if ignored := session.get("ignoredOptions"):
            remarks.append(f"launch options ignored: {', '.join(ignored)}")
        if session.get("viewedAt"):
            remarks.append("looked at by an operator")
        told = ("name", "run", "labels", "lease", "host")
        remarks += [f"{what} {said}" for what in told if (said := session.get(what))]
        client = session["client"] + (f" ({session['token']})" if session.get("token") else "")
        rows.append((*who, began, f"{lasted_s:.1f} s", client, "; ".join(remarks)))
    head = ("SESSION", "POOL", "WORKER", "STATUS", "BEGAN", "LASTED", "CLIENT", "REASON")
    return table(head, rows)


def session_line(session: Found) -> str:
    """The last change of a session, in one line."""
    at = session["endedAt"] or session["startedAt"] or session["createdAt"]
    lasted = "" if session["endedAt"] is None else f"after {session['endedAt'] - session['createdAt']:.1f} s"
    who = (session["id"], session["pool"], session["workerId"], session["client"], session.get("name"))
    parts = (clock(at), f"{session['status']:9}", *who, lasted, session["reason"])
    return "  ".join(one_line(str(part)) for part in parts if part)
