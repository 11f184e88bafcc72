"""`pwgrid drain`: waits until the workers that drain are gone, and tells how each has ended."""

from collections.abc import Sequence
from typing import Any

from pwgrid.cli.grid_queries import status, watch
from pwgrid.cli.progress import Display
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import RunningGrid


def wait(grid: RunningGrid, workers: Sequence[str], shown: Display) -> dict[str, dict[str, Any] | None]:
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
    """The line for a worker (as the status has it) that is still there."""
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
    """Whether no session was lost against the operator's wish: False for a worker that was lost, or that cut sessions
    because its time ran out."""
    return outcome is not None and not outcome["lost"] and not (outcome["timedOut"] and outcome["cut"])
