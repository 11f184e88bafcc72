"""Makes what the dashboard shows: tables of what the proxy knows, the changes between two of them, and events as
sentences for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pwgrid.common.launch_failure import without_places
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.policy.fair_line import Waiting
from pwgrid.proxy.policy.pools_of_all_hosts import WholePool
from pwgrid.proxy.roster import PoolView, Roster, WorkerView

Table = dict[str, Any]
"""Rows by key; the table `grid` has single values by key."""

View = dict[str, Table]
"""Tables by name: grid, hosts, pools, workers, sessions, queue."""

Level = Literal["info", "warning", "error"]

_STATUS = {"starting": "starts", "spare": "is warm, as a spare", "available": "serves", "draining": "drains"}
_LEVELS: Mapping[str, Level] = {"ended": "info", "failed": "error"}


@dataclass(frozen=True, slots=True)
class Sources:
    """What a view is made of. `status` is the master's answer to `status` of `status_at`, in Unix seconds; empty before
    the first one. Counters are by worker field ("{type}:{id}"). `grid` has further values of the table `grid`.

    Where several hosts are one grid, `elsewhere` has for each worker of another host its `host`, and what the master
    would say of one of this host; `waiting_elsewhere` how many clients wait there, by host and pool; `hosts` the rows
    of all hosts, and `host` is this one's name.
    """

    status: Mapping[str, Any]
    pools: Iterable[WholePool]
    workers: Iterable[WorkerView]
    active: Mapping[str, int]
    lifetime: Mapping[str, int]
    sessions: Mapping[str, Mapping[str, Any]]
    waiting: Iterable[Waiting]
    status_at: float
    grid: Mapping[str, Any]
    host: str = ""
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    elsewhere: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    waiting_elsewhere: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def view(sources: Sources) -> View:
    """Makes all tables. No text in them has a path or a pid of the host."""
    status = sources.status
    pools = {pool["name"]: pool for pool in status.get("pools", ())}
    details = {worker["id"]: worker for worker in status.get("workers", ())} | dict(sources.elsewhere)
    workers = {
        worker.worker_id: _worker(worker, details.get(worker.worker_id, {}), sources) for worker in sources.workers
    }
    slots_elsewhere = Counter[str]()
    for worker_id, row in workers.items():
        if worker_id in sources.elsewhere and row["status"] == WorkerStatus.AVAILABLE:
            slots_elsewhere[row["pool"]] += row["slots"]
    host = status.get("host", {})
    return {
        "grid": {
            "active": sum(sources.active.values()),
            "slots": sum(pool.get("slots") or 0 for pool in pools.values()) + slots_elsewhere.total(),
            "startedAt": status.get("master", {}).get("startedAt"),
            "hostAvailableMib": host.get("availableMib"),
            "memoryMetric": host.get("memoryMetric"),
            "problems": [without_places(problem) for problem in status.get("problems", ())],
            **sources.grid,
        },
        "hosts": dict(sources.hosts),
        "pools": {
            pool.whole.name: _pool(
                pool, pools.get(pool.whole.name, {}), slots_elsewhere, with_hosts=bool(sources.hosts)
            )
            for pool in sources.pools
        },
        "workers": workers,
        "sessions": dict(sources.sessions),
        "queue": {
            f"{pool} {token} {run}": {"pool": pool, "run": run, "token": token, "clients": waiting}
            for pool, run, token, waiting in sources.waiting
        }
        | {
            f"{host} {pool}": {"pool": pool, "run": "", "token": "", "clients": waiting, "host": host}
            for host, by_pool in sources.waiting_elsewhere.items()
            for pool, waiting in by_pool.items()
            if waiting
        },
    }


def changes(before: View, after: View) -> View:
    """Returns what to set in `before` to get `after`; a removed key is None. Tables without changes are left out."""
    found = {}
    for name, table in after.items():
        was = before.get(name, {})
        # Most rows are the same objects as before: comparing each field of thousands of sessions takes milliseconds.
        changed = {
            key: value
            for key, value in table.items()
            if key not in was or (was[key] is not value and was[key] != value)
        }
        changed |= {key: None for key in was if key not in table}
        if changed:
            found[name] = changed
    return found


def _pool(
    of_hosts: WholePool, found: Mapping[str, Any], slots_elsewhere: Mapping[str, int], *, with_hosts: bool
) -> dict[str, Any]:
    """`of_hosts` is from rosters, which are known even while the master does not answer."""
    pool = of_hosts.whole
    hosts = {name: {"wanted": each.wanted, "available": each.available} for name, each in of_hosts.hosts.items()}
    more = slots_elsewhere.get(pool.name)
    return {
        **({"hosts": hosts} if with_hosts else {}),
        "browserType": pool.browser_type,
        "wanted": pool.wanted,
        "available": pool.available,
        "starting": pool.starting,
        "spare": pool.spare,
        "draining": pool.draining,
        "drainTimeouts": pool.drain_timeouts,
        "lifetimeOfWorker": pool.lifetime,
        "slots": found.get("slots") if more is None else (found.get("slots") or 0) + more,
        "memoryLimitMib": found.get("memoryLimitMib"),
        "memoryHardLimitMib": found.get("memoryHardLimitMib"),
        "reason": without_places(pool.reason) if pool.reason else None,
        "labels": list(pool.labels),
        "isolation": pool.isolation,
        "playwright": pool.playwright,
        "onDemand": pool.is_on_demand,
    }


def _worker(worker: WorkerView, found: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    left_s, reason = found.get("drainLeftS"), found.get("reason")
    return {
        **({"host": found.get("host", sources.host)} if sources.hosts else {}),
        "pool": worker.pool,
        "browserType": worker.browser_type,
        "status": worker.status,
        "active": sources.active.get(worker.counter, 0),
        "slots": found.get("slots") or 0,
        "lifetime": sources.lifetime.get(worker.counter, found.get("lifetime") or 0),
        "launches": found.get("launches") or 0,
        "memoryMib": found.get("memoryMib"),
        "startedAt": found.get("startedAt"),
        "drainUntil": None if left_s is None else round(sources.status_at + left_s),
        "reason": without_places(reason) if reason else None,
        "suspect": found.get("suspect") or worker.suspect,
        "playwright": worker.playwright_version,
    }


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is what it is about: grid, pool, worker, session or refusal. No text has a path or a pid of the host."""

    kind: str
    text: str
    level: Level = "info"


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
    called = _called(session_id, name)
    words = {"ended": "was ended", "failed": "failed", "expired": "expired"}
    return Event("session", f"{called} {words.get(status, status)}{_because(reason)}", _LEVELS.get(status, "warning"))


def session_goes_on(session_id: str, name: str | None) -> Event:
    """Returns the event for a session whose presumed end was taken back."""
    return Event("session", f"{_called(session_id, name)} goes on after all: its end was only presumed")


def _called(session_id: str, name: str | None) -> str:
    return f"session {session_id}" + (f" ({name})" if name else "")


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
