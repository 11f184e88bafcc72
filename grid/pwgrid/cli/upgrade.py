"""`pwgrid upgrade` and `restart`: everything in a running grid is replaced, and its progress shown."""

from collections.abc import Sequence
from typing import Any

import click

from pwgrid.cli.ask_grid import CHECK_TIMEOUT_S, ask, find_grid, watch
from pwgrid.cli.options import GRID_OPTIONS, say, with_json, with_options
from pwgrid.cli.progress import Display, watching
from pwgrid.common.errors import GridError
from pwgrid.common.reasons import WorkerEnd
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN
from pwgrid.runtime.find_grids import RunningGrid


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--force", is_flag=True, help="Replace everything, even if nothing is new.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the new code has loaded.")
@with_json
def upgrade(port: int | None, runtime_dir: str | None, **options: bool) -> None:
    """Moves a running grid to the code, the browsers and the settings that are installed now.

    Does nothing if the grid runs with these already. Replaces the proxy first, then one worker after the other, and
    shows the progress. Live sessions go on in the old workers until RECYCLE_DRAIN_TIMEOUT; the command does not wait
    for them. Ctrl-C ends only the waiting.
    """
    _replace_everything(port, runtime_dir, **options)


@click.command()
@with_options(GRID_OPTIONS)
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@with_json
def restart(port: int | None, runtime_dir: str | None, **options: bool) -> None:
    """Replaces the proxy and every worker of a running grid; drops no session and refuses no client.

    The master executes itself anew and reads the configuration file again; everything else is as with `pwgrid upgrade`.
    """
    _replace_everything(port, runtime_dir, force=True, **options)


def _replace_everything(
    port: int | None, runtime_dir: str | None, *, force: bool, no_wait: bool, as_json: bool
) -> None:
    """Without `force` nothing is replaced that is new already. Raises Refused when the new code does not load."""
    grid = find_grid(port, runtime_dir)
    before = ask(grid, "status")  # not `status`, which imports more of the new code: that may be broken
    is_needed = not ask(grid, "upgrade", {"force": force}, timeout_s=CHECK_TIMEOUT_S).get("unchanged")
    if not is_needed:
        done = "nothing to do: the grid runs with the code, browsers and settings that are here now (see --force)"
    elif no_wait:
        done = "the new code has loaded; the grid replaces its parts one after the other"
    else:
        with watching("the version change", is_silent=as_json) as shown:
            done = wait_for_replacements(grid, before, shown)
    say({"changed": is_needed, "through": not (is_needed and no_wait), "message": done}, done, as_json)


def wait_for_replacements(grid: RunningGrid, before: dict[str, Any], shown: Display) -> str:
    """Shows the progress until the proxy and all serving workers of the status `before` are replaced; returns a
    sentence about it.

    Does not wait for sessions in old workers, which may go on for much longer. Raises GridError when it fails.
    """
    old_ids = {worker["id"] for worker in before["workers"] if worker["status"] in BEFORE_A_DRAIN}
    proxy = before["proxy"]["pid"]
    pids = [proxy, *(worker["pid"] for worker in before["workers"])]
    # The new code has to load before the master answers.
    for found in watch(grid, filter(None, pids), CHECK_TIMEOUT_S):
        serving = [worker for worker in found["workers"] if worker["status"] in BEFORE_A_DRAIN]
        old_ids |= {worker["id"] for worker in serving if worker["reasonKind"] == WorkerEnd.UPGRADE}
        old = [worker for worker in found["workers"] if worker["id"] in old_ids]
        left = [worker for worker in serving if worker["id"] in old_ids]
        if found["proxy"]["beingReplaced"]:
            shown.show("upgrade", "replacing the proxy")
        elif not left:
            break
        elif any(worker["reason"] for worker in left):
            shown.show("upgrade", workers_left(len(old_ids), len(left), old, found["pools"]))
        else:
            raise GridError("the master could not execute the new code, and its log says why")
    shown.end("upgrade")
    if found["proxy"]["pid"] == proxy:
        raise GridError("all workers are replaced, but the proxy is not, and the grid's log says why")
    workers = counted(len(old_ids), "worker")
    done = f"the master, the proxy and {workers} run the new code (version {found['version']})"
    return "; ".join([done, *_lingering(old)])


def workers_left(total: int, left: int, old: Sequence[dict[str, Any]], pools: Sequence[dict[str, Any]]) -> str:
    """The progress of a version change: `left` of `total` workers are still to be replaced, `old` are the workers (as
    the status has them) of the old version that still exist."""
    short = [f"{pool['name']}: {pool['reason']}" for pool in pools if pool["reason"]]
    return "; ".join([f"{total - left} of {total} workers replaced", *_lingering(old), *short])


def _lingering(old: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence about live sessions in old workers that are draining, if there are any."""
    lingering = [worker for worker in old if worker["status"] == "draining" and worker["active"]]
    if not lingering:
        return []
    sessions = sum(worker["active"] for worker in lingering)
    left_s = max(worker["drainLeftS"] or 0 for worker in lingering)
    what = counted(sessions, "live session goes on", "live sessions go on")
    return [f"{what} in {counted(len(lingering), 'old worker')}, for {left_s:.0f} s at the most"]
