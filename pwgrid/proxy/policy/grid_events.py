"""Makes events, as sentences for people, from two states of the grid. Keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pwgrid.common.launch_failure import without_places
from pwgrid.common.wording import counted
from pwgrid.proxy.roster import PoolView, Roster, WorkerView

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is what it is about: grid, pool, worker, session or refusal. No text has a path or a pid of the host."""

    kind: str
    text: str
    level: Level = "info"


_STATUS = {"starting": "starts", "spare": "is warm, as a spare", "available": "serves", "draining": "drains"}


def happened(before: Roster, after: Roster) -> Iterator[Event]:
    """Yields what has happened between two states, except lost workers, which the master reports itself."""
    for name, pool in after.pools.items():
        if (was := before.pools.get(name)) is not None:
            yield from _of_pool(name, was, pool)
    for worker_id, worker in after.workers.items():
        yield from _of_worker(worker_id, before.workers.get(worker_id), worker)
    for worker_id, gone in before.workers.items():
        if worker_id not in after.workers and gone.status == "draining":
            yield Event("worker", f"worker {worker_id} of {gone.pool} has ended{_because(gone.reason)}")
    was_not_ready, not_ready = before.not_ready(), after.not_ready()
    if after.stopping and not before.stopping:
        yield Event("grid", "the grid is shutting down", "warning")
    elif not_ready and not was_not_ready:
        yield Event("grid", f"the grid is not ready{_because(not_ready)}", "warning")
    elif was_not_ready and not not_ready:
        yield Event("grid", "the grid is ready")


def session_end(session_id: str, name: str | None, status: str, reason: str | None) -> Event | None:
    """Returns the event for a session's end; None if its client ended it as usual."""
    if status == "completed":
        return None
    called = f"session {session_id}" + (f" ({name})" if name else "")
    words = {"ended": "was ended", "failed": "failed", "expired": "expired"}
    return Event("session", f"{called} {words.get(status, status)}{_because(reason)}", _LEVELS.get(status, "warning"))


_LEVELS: Mapping[str, Level] = {"ended": "info", "failed": "error"}


def _of_pool(name: str, was: PoolView, pool: PoolView) -> Iterator[Event]:
    if pool.wanted != was.wanted:
        yield Event("pool", f"pool {name} wants {counted(pool.wanted, 'worker')}, it wanted {was.wanted}")
    if pool.reason and pool.reason != was.reason:
        yield Event("pool", f"pool {name} is short of workers{_because(pool.reason)}", "warning")
    elif was.reason and not pool.reason:
        yield Event("pool", f"pool {name} has its workers again")


def _of_worker(worker_id: str, was: WorkerView | None, worker: WorkerView) -> Iterator[Event]:
    if was is not None and was.status == worker.status:
        return
    does = _STATUS.get(worker.status, f"is {worker.status}")
    reason = worker.reason if worker.status == "draining" else None
    yield Event("worker", f"worker {worker_id} of {worker.pool} {does}{_because(reason)}")


def _because(reason: str | None) -> str:
    return f": {without_places(reason)}" if reason else ""
