"""Makes the tables that the dashboard shows from what the proxy knows, and compares two of their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pwgrid.common.launch_failure import without_places
from pwgrid.proxy.policy.fair_line import Waiting
from pwgrid.proxy.roster import PoolView, WorkerView

Table = dict[str, Any]
"""Rows by key; the table `grid` has single values by key."""

View = dict[str, Table]
"""Tables by name: grid, pools, workers, sessions, queue."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a view is made of. `status` is the master's answer to `status` of `status_at`, in Unix seconds; empty before
    the first one. Counters are by worker field ("{type}:{id}"). `grid` has further values of the table `grid`."""

    status: Mapping[str, Any]
    pools: Iterable[PoolView]
    workers: Iterable[WorkerView]
    active: Mapping[str, int]
    lifetime: Mapping[str, int]
    sessions: Mapping[str, Mapping[str, Any]]
    waiting: Iterable[Waiting]
    status_at: float
    grid: Mapping[str, Any] = field(default_factory=dict)


def view(sources: Sources) -> View:
    """Makes all tables. No text in them has a path or a pid of the host."""
    status = sources.status
    pools = {pool["name"]: pool for pool in status.get("pools", ())}
    details = {worker["id"]: worker for worker in status.get("workers", ())}
    host = status.get("host", {})
    return {
        "grid": {
            "active": sum(sources.active.values()),
            "slots": sum(pool.get("slots") or 0 for pool in pools.values()),
            "startedAt": status.get("master", {}).get("startedAt"),
            "hostAvailableMib": host.get("availableMib"),
            "memoryMetric": host.get("memoryMetric"),
            "problems": [without_places(problem) for problem in status.get("problems", ())],
            **sources.grid,
        },
        "pools": {pool.name: _pool(pool, pools.get(pool.name, {})) for pool in sources.pools},
        "workers": {
            worker.worker_id: _worker(worker, details.get(worker.worker_id, {}), sources) for worker in sources.workers
        },
        "sessions": dict(sources.sessions),
        "queue": {
            f"{pool} {token} {run}": {"pool": pool, "run": run, "token": token, "clients": waiting}
            for pool, run, token, waiting in sources.waiting
        },
    }


def changes(before: View, after: View) -> View:
    """Returns what to set in `before` to get `after`; a removed key is None. Tables without changes are left out."""
    found = {
        name: {
            **{
                key: value
                for key, value in table.items()
                if key not in (was := before.get(name, {})) or was[key] != value
            },
            **{key: None for key in before.get(name, {}) if key not in table},
        }
        for name, table in after.items()
    }
    return {name: table for name, table in found.items() if table}


def _pool(pool: PoolView, found: Mapping[str, Any]) -> dict[str, Any]:
    """`pool` is from the roster, which is known even while the master does not answer."""
    return {
        "browserType": pool.browser_type,
        "wanted": pool.wanted,
        "available": pool.available,
        "starting": pool.starting,
        "spare": pool.spare,
        "draining": pool.draining,
        "drainTimeouts": pool.drain_timeouts,
        "lifetimeOfWorker": pool.lifetime,
        "slots": found.get("slots"),
        "memoryLimitMib": found.get("memoryLimitMib"),
        "memoryHardLimitMib": found.get("memoryHardLimitMib"),
        "reason": without_places(pool.reason) if pool.reason else None,
        "labels": list(pool.labels),
    }


def _worker(worker: WorkerView, found: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    counter = f"{worker.browser_type}:{worker.worker_id}"
    left_s, reason = found.get("drainLeftS"), found.get("reason")
    return {
        "pool": worker.pool,
        "browserType": worker.browser_type,
        "status": worker.status,
        "active": sources.active.get(counter, 0),
        "slots": found.get("slots") or 0,
        "lifetime": sources.lifetime.get(counter, found.get("lifetime") or 0),
        "memoryMib": found.get("memoryMib"),
        "startedAt": found.get("startedAt"),
        "drainUntil": None if left_s is None else round(sources.status_at + left_s),
        "reason": without_places(reason) if reason else None,
    }
