"""`pwgrid stop`: asks the master to stop, or the children of a master that is gone, and waits for their end."""

import signal
import time
from functools import partial
from typing import Any, Final

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.ask_grid import WithoutMasterError, ask, find_grid, master_left_text, processes_left
from pwgrid.cli.options import GRID_OPTIONS, say, with_json, with_options
from pwgrid.cli.progress import watching
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid
from pwgrid.runtime.process_identity import send, wait_ended

SECOND_SIGNAL_AFTER_S: Final = 0.5
"""A grid takes two signals at once for one."""

_MAY_START_AGAIN: Final = (
    "systemd runs this grid and may start it again: `systemctl stop` with the unit's name ends it for good"
)


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--now", is_flag=True, help="End live sessions at once.")
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@with_json
def stop(port: int | None, runtime_dir: str | None, now: bool, no_wait: bool, as_json: bool) -> None:
    """Ends a grid: no new sessions, live ones go on until DRAIN_TIMEOUT. Ctrl-C ends only the waiting."""
    try:
        grid = find_grid(port, runtime_dir)
    except WithoutMasterError as error:
        if len(error.left) > 1:
            raise
        left = error.left[0]
        stop_without_master(left, now=now)
        pids = [child.pid for child in left.children]
        notes = [f"its master is gone: {master_left_text(left)}"]
        progress = partial(_how_far_without_master, None if now else left.lock.drain_s, time.time())
    except NoGridError as none:
        raise GridError(none.sentence, exit_codes.NONE_RUNNING) from None
    else:
        answer = ask(grid, "stop", {"now": now})
        pids = [grid.pid]
        # For supervisord the exit code 0 is no reason to start the grid again.
        notes = [_MAY_START_AGAIN] if answer["manager"] == "systemd" else []
        progress = partial(_how_far, grid)
    if not as_json:
        click.echo("".join(f"{note}\n" for note in notes), nl=False)
    if not no_wait:
        with watching("the stop", is_silent=as_json) as shown:
            for still_there in processes_left(pids):
                if not still_there:
                    break
                shown.show("stop", progress())
            shown.end("stop")
    if as_json or not no_wait:
        say({"stopped": not no_wait, "notes": notes}, "stopped", as_json)


def stop_without_master(grid: GridWithoutMaster, *, now: bool) -> None:
    """Stops the children of a master that is gone, which else wait for a new one: the workers drain, the proxy ends
    last."""
    found = (child.process for child in grid.children if child.kind != "redis")  # each looks now: it may have ended
    asked = [process for process in found if process is not None]
    for process in asked:
        send(process, signal.SIGTERM)
    if now:
        until = time.monotonic() + SECOND_SIGNAL_AFTER_S  # one for all: they may be many
        for process in asked:
            wait_ended(process, until)
        for process in asked:
            send(process, signal.SIGTERM)


def _how_far_without_master(drain_s: float | None, asked_at: float) -> str:
    left = "" if drain_s is None else f": at most {max(0.0, asked_at + drain_s - time.time()):.0f} s left"
    return f"stopping{left}"


def _how_far(grid: RunningGrid) -> str:
    try:
        workers: list[dict[str, Any]] = ask(grid, "status")["workers"]
    except GridError:
        return "stopping: all sessions have ended"  # the master does not listen any more
    live = sum(worker["active"] or 0 for worker in workers)
    left_s = max((worker["drainLeftS"] or 0.0 for worker in workers if worker["active"]), default=0.0)
    sessions = counted(live, "live session")
    return f"stopping: {sessions}, {left_s:.0f} s left" if live else "stopping: all sessions have ended"
