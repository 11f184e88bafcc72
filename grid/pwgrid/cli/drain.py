"""`pwgrid drain`: has workers drain, waits until they are gone, and tells how each has ended."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from pwgrid.cli import exit_codes
from pwgrid.cli.ask_grid import ask, find_grid, status, watch
from pwgrid.cli.options import GRID_OPTIONS, completing, say, with_json, with_options
from pwgrid.cli.progress import Display, watching
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import RunningGrid


@click.command()
@with_options(GRID_OPTIONS)
@click.argument("worker", required=False, shell_complete=completing("worker"))
@click.option("--pool", metavar="NAME", shell_complete=completing("pool"), help="Every worker of this pool.")
@click.option("--all", "everything", is_flag=True, help="Every worker.")
@click.option("--host", "host", metavar="NAME", help="One of several hosts: only the others get sessions.")
@click.option("--undo", is_flag=True, help="With --host: it gets sessions again.")
@click.option("--now", is_flag=True, help="End live sessions at once. A second drain without --wait does that too.")
@click.option(
    "--wait",
    is_flag=True,
    help="Show live sessions and the time left, until the workers are gone. May be repeated: ends no session.",
)
@with_json
def drain(
    port: int | None,
    runtime_dir: str | None,
    worker: str | None,
    pool: str | None,
    everything: bool,
    host: str | None,
    **options: bool,
) -> None:
    """Drains WORKER, a pool, a host or all workers.

    A draining worker gets no new sessions, its live ones go on until DRAIN_TIMEOUT, and its replacement starts at once.

    With --wait the exit code is 1 when time ran out and sessions were cut, or a worker was lost. Ctrl-C ends only the
    waiting.
    """
    if sum((worker is not None, pool is not None, host is not None, everything)) != 1:
        raise click.UsageError("name one of WORKER, --pool POOL, --host NAME and --all")
    if host is None and options["undo"]:
        raise click.UsageError("--undo is for --host: workers that drain are replaced")
    if host is not None:
        from pwgrid.cli.drain_host import drain_host  # takes 0.2 s to import, with redis-py

        if options["now"]:
            raise click.UsageError("sessions of a host end at once with pwgrid drain --all --now there")
        grid = find_grid(port, runtime_dir)
        drain_host(grid, host, is_undone=options["undo"], wait=options["wait"], as_json=options["as_json"])
        return
    selection = {"worker": worker} if worker else {"pool": pool} if pool else {"all": True}
    grid = find_grid(port, runtime_dir)
    if options["wait"]:
        import pwgrid.registry.blocking_reads  # noqa: F401 - takes 0.2 s, which would delay the first figures of the drain
    # For a worker that an operator drains already a drain means now, unless it is asked for `once`.
    asked = {**selection, "now": options["now"], "once": options["wait"], "reason": "operator"}
    draining = ask(grid, "drain", asked)["draining"]
    if not options["wait"]:
        text = "draining " + (", ".join(draining) or "nothing: there is no worker")
        say({"draining": draining}, text, options["as_json"])
        return
    with watching("the drain", is_silent=options["as_json"]) as shown:
        outcomes = _ends(grid, draining, shown)
    are_good = all(map(is_good, outcomes.values()))
    if options["as_json"]:
        say({"draining": draining, "good": are_good, "outcomes": outcomes}, "", as_json=True)
    sys.exit(exit_codes.DONE if are_good else exit_codes.FAILED)


def _ends(grid: RunningGrid, workers: Sequence[str], shown: Display) -> dict[str, dict[str, Any] | None]:
    """Shows the progress until these workers are gone; returns the outcome of each (None: unknown), by worker id."""
    outcomes: dict[str, Any] = {}
    pids = [worker["pid"] for worker in status(grid)["workers"] if worker["id"] in workers]
    for found in watch(grid, pids):
        outcomes |= {outcome["id"]: outcome for outcome in found["drained"]}  # the master keeps only the last ones
        there = [worker for worker in found["workers"] if worker["id"] in workers]
        for worker in there:
            shown.show(worker["id"], progress(worker), (worker["status"], worker["active"]))
        if not there:
            break
    for worker_id in workers:
        shown.end(worker_id)
        shown.line(describe_end(worker_id, outcomes.get(worker_id)))
    return {worker_id: outcomes.get(worker_id) for worker_id in workers}


def progress(worker: dict[str, Any]) -> str:
    """The line for a worker that is still there; `worker` is its entry in the status."""
    sessions, left_s = worker["active"] or 0, worker["drainLeftS"]
    if not sessions:
        return f"{worker['id']}: {worker['status']}, no session left"
    left = "" if left_s is None else f", {left_s:.0f} s left"
    return f"{worker['id']}: {worker['status']}, {counted(sessions, 'session')} left{left}"


def describe_end(worker_id: str, outcome: dict[str, Any] | None) -> str:
    """The line for a worker that is gone; `outcome` is what the status says of it, if it does."""
    if outcome is None:
        return f"{worker_id}: gone, and nobody knows how"
    if outcome["lost"]:
        return f"{worker_id}: lost: {outcome['lost']}"
    if not outcome["cut"]:
        return f"{worker_id}: gone, no session was cut"
    why = "its time ran out" if outcome["timedOut"] else "it was told to end now"
    return f"{worker_id}: gone, {counted(outcome['cut'], 'session')} cut: {why}"


def is_good(outcome: dict[str, Any] | None) -> bool:
    """Whether the drain went as the operator wished: False for a worker that was lost, or that cut sessions because its
    time ran out."""
    return outcome is not None and not outcome["lost"] and not (outcome["timedOut"] and outcome["cut"])
