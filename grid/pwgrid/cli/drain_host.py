"""`pwgrid drain --host`: one of several hosts gets no more sessions, or gets them again; all hear it from Redis."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.ask_grid import processes_left, redis_of
from pwgrid.cli.options import say
from pwgrid.cli.progress import watching
from pwgrid.common.errors import GridError
from pwgrid.common.wording import counted, listed
from pwgrid.registry import blocking_reads
from pwgrid.registry.host_records import HostsFound
from pwgrid.runtime.find_grids import RunningGrid

HEARD_S: Final = 5.0
"""By then every proxy has heard of it, and nobody is on the way to that host any more."""


def drain_host(grid: RunningGrid, named: str, *, is_undone: bool, wait: bool, as_json: bool) -> None:
    """Drains a host of the grid that this one belongs to, or undoes that; with `wait` returns when it has no session.
    Raises GridError."""
    url, prefix = redis_of(grid)
    found = blocking_reads.hosts(url, prefix)
    name = host_named(found, named)
    blocking_reads.mark_drained(url, prefix, name, None if is_undone else time.time())
    if not wait or is_undone:
        text = (
            f"host {name} gets sessions again"
            if is_undone
            else f"host {name} gets no more sessions; its live ones go on"
        )
        say({"host": name, "drained": not is_undone}, text, as_json)
        return
    with watching("the drain", is_silent=as_json) as shown:
        heard_by = time.monotonic() + HEARD_S
        for _ in processes_left(()):
            found, active = blocking_reads.hosts(url, prefix), blocking_reads.active(url, prefix)
            record = found.records.get(name)
            left = record.room(active).busy if record is not None else 0
            shown.show(name, f"{name}: {counted(left, 'session')} left", left)
            if record is None or (not left and time.monotonic() >= heard_by):
                break
        shown.end(name)
        shown.line(f"{name}: no session left: it may be stopped now")
    if as_json:
        say({"host": name, "drained": True, "sessions": 0}, "", as_json=True)
    sys.exit(exit_codes.DONE)


def host_named(found: HostsFound, named: str) -> str:
    """Returns the name of the host that is meant: its whole name, or the part before its port if that is enough. Raises
    GridError."""
    names = {*found.records, *found.drained}
    if named in names:
        return named
    fit = [name for name in sorted(names) if name.rpartition(":")[0].strip("[]") == named.strip("[]")]
    if len(fit) == 1:
        return fit[0]
    if not names:
        raise GridError(
            "this grid is alone: hosts form one grid where each has REDIS_URL, the same one, and ADVERTISED_HOST"
        )
    raise click.UsageError(f"there is no host {named!r:.80}, or several; hosts are {listed(sorted(names))}")
