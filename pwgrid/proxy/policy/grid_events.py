"""Makes events, as sentences for people, from two states of the grid. Keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pwgrid.common.launch_failure import without_places

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is what it is about: grid, pool, worker, session or refusal. No text has a path or a pid of the host."""

    kind: str
    text: str
    level: Level = "info"


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker in one state of the grid; `reason` says why it drains, or will."""

    pool: str
    status: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool in one state of the grid; `reason` says why it is short of workers."""

    wanted: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GridSeen:
    """One state of the grid. `trouble` says why it is not ready; None when it is."""

    trouble: str | None = None
    stopping: bool = False
    pools: Mapping[str, PoolSeen] = field(default_factory=dict)
    workers: Mapping[str, WorkerSeen] = field(default_factory=dict)


_STATUS = {"starting": "starts", "spare": "is warm, as a spare", "available": "serves", "draining": "drains"}


def happened(before: GridSeen, after: GridSeen) -> Iterator[Event]:
    """Yields what has happened between two states, except lost workers, which the master reports itself."""
    for name, pool in after.pools.items():
        if (was := before.pools.get(name)) is not None:
            yield from _of_pool(name, was, pool)
    for worker_id, worker in after.workers.items():
        yield from _of_worker(worker_id, before.workers.get(worker_id), worker)
    for worker_id, gone in before.workers.items():
        if worker_id not in after.workers and gone.status == "draining":
            yield Event("worker", f"worker {worker_id} of {gone.pool} has ended{_because(gone.reason)}")
    if after.stopping and not before.stopping:
        yield Event("grid", "the grid is shutting down", "warning")
    elif after.trouble and not before.trouble:
        yield Event("grid", f"the grid is not ready{_because(after.trouble)}", "warning")
    elif before.trouble and not after.trouble:
        yield Event("grid", "the grid is ready")


def session_end(session_id: str, name: str | None, status: str, reason: str | None) -> Event | None:
    """Returns the event for a session's end; None if its client ended it as usual."""
    if status == "completed":
        return None
    called = f"session {session_id}" + (f" ({name})" if name else "")
    words = {"ended": "was ended", "failed": "failed", "expired": "expired"}
    return Event("session", f"{called} {words.get(status, status)}{_because(reason)}", _LEVELS.get(status, "warning"))


_LEVELS: Mapping[str, Level] = {"ended": "info", "failed": "error"}


def _of_pool(name: str, was: PoolSeen, pool: PoolSeen) -> Iterator[Event]:
    if pool.wanted != was.wanted:
        yield Event("pool", f"pool {name} wants {pool.wanted} workers, it wanted {was.wanted}")
    if pool.reason and pool.reason != was.reason:
        yield Event("pool", f"pool {name} is short of workers{_because(pool.reason)}", "warning")
    elif was.reason and not pool.reason:
        yield Event("pool", f"pool {name} has its workers again")


def _of_worker(worker_id: str, was: WorkerSeen | None, worker: WorkerSeen) -> Iterator[Event]:
    if was is not None and was.status == worker.status:
        return
    does = _STATUS.get(worker.status, f"is {worker.status}")
    reason = worker.reason if worker.status == "draining" else None
    yield Event("worker", f"worker {worker_id} of {worker.pool} {does}{_because(reason)}")


def _because(reason: str | None) -> str:
    return f": {without_places(reason)}" if reason else ""
