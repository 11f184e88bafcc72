"""`pwgrid drain`: asks the master for it and watches it to its end. Drains nothing itself."""

import contextlib
import os
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pwgrid.cli.operate import ask, status
from pwgrid.runtime.directory import RunningGrid

LOOK_EVERY_S: Final = 0.25
"""How often the figures are asked for; the end of a worker's process is seen at once."""


def drain(grid: RunningGrid, selection: dict[str, Any], *, now: bool) -> list[str]:
    """Starts the drain of the workers that `selection` means; their ids. Raises GridError when there are none."""
    draining: list[str] = ask(grid, "drain", {**selection, "now": now, "reason": "operator"})["draining"]
    return draining


def wait(grid: RunningGrid, workers: Sequence[str], tell: Callable[[str], None]) -> bool:
    """Returns when these workers are gone, with one line for each change before. False when a worker was lost, or when
    its time ran out and it cut sessions."""
    found = status(grid)
    last: dict[str, tuple[Any, ...]] = {}
    outcomes: dict[str, Any] = {}
    with _ends([worker["pid"] for worker in found["workers"] if worker["id"] in workers]) as ends:
        while there := [worker for worker in found["workers"] if worker["id"] in workers]:
            for worker in there:
                figures = (worker["status"], worker["active"])
                if last.get(worker["id"]) != figures:
                    last[worker["id"]] = figures
                    tell(progress(worker))
            for pidfd, _ in ends.poll(LOOK_EVERY_S * 1000):
                ends.unregister(pidfd)
            found = status(grid)
            outcomes |= _outcomes(found)  # the master keeps only the last ones
    outcomes |= _outcomes(found)  # of those that were gone before the first look
    for worker_id in workers:
        tell(describe_end(worker_id, outcomes.get(worker_id)))
    return all(is_good(outcomes.get(worker_id)) for worker_id in workers)


def _outcomes(found: dict[str, Any]) -> dict[str, Any]:
    return {outcome["id"]: outcome for outcome in found["drained"]}


@contextlib.contextmanager
def _ends(pids: Sequence[int]) -> Iterator[select.poll]:
    """A poll object with a pidfd for each of these processes that is still there."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                poll.register(pidfd, select.POLLIN)
        yield poll


def progress(worker: dict[str, Any]) -> str:
    """The line for a worker (as the status has it) that is still there."""
    sessions, left_s = worker["active"] or 0, worker["drainLeftS"]
    if not sessions:
        return f"{worker['id']}: {worker['status']}, no session left"
    left = "" if left_s is None else f", {left_s:.0f} s left"
    return f"{worker['id']}: {worker['status']}, {_sessions(sessions)} left{left}"


def describe_end(worker_id: str, outcome: dict[str, Any] | None) -> str:
    """The line for a worker that is gone; `outcome` is what the status says of it, if it does."""
    if outcome is None:
        return f"{worker_id}: gone, and nobody knows how"
    if outcome["lost"]:
        return f"{worker_id}: lost: {outcome['lost']}"
    if not outcome["cut"]:
        return f"{worker_id}: gone, no session was cut"
    why = "its time ran out" if outcome["timedOut"] else "it was told to end now"
    return f"{worker_id}: gone, {_sessions(outcome['cut'])} cut: {why}"


def is_good(outcome: dict[str, Any] | None) -> bool:
    """Whether the drain did to no session what nobody wanted."""
    return outcome is not None and not outcome["lost"] and not (outcome["timedOut"] and outcome["cut"])


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
