"""Says why a selection would choose no worker of a pool, by the rule of lua/selector.lua."""

from __future__ import annotations

import math
from collections import Counter
from typing import Protocol

from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord


class Pool(Protocol):
    """What a selection knows of a pool; `lifetime` are the sessions of each worker's life."""

    @property
    def name(self) -> str: ...
    @property
    def browser_type(self) -> str: ...
    @property
    def lifetime(self) -> int: ...


def why_cannot_serve(found: RegistrySnapshot, pool: Pool, now: float, stale_s: float) -> str | None:
    """Returns why a selection would choose no worker of this pool even if all slots were free; None when it would
    choose one."""
    obstacles = [
        _obstacle(worker, found.lifetime.get(field, 0), pool.lifetime, now, stale_s)
        for field, worker in found.workers.items()
        if (worker.pool, worker.browser_type) == (pool.name, pool.browser_type)
    ]
    if None in obstacles:
        return None
    listed = ", ".join(f"{count} {what}" for what, count in Counter(obstacles).items())
    return f"no {pool.name} worker can be chosen: in Redis {listed or 'none is registered'}"


def _obstacle(worker: WorkerRecord, lifetime: int, max_lifetime: int, now: float, stale_s: float) -> str | None:
    if worker.status != WorkerStatus.AVAILABLE:
        return worker.status or "without a status"
    if math.floor(now) - math.floor(worker.last_heartbeat) > stale_s:
        return f"without a heartbeat for over {stale_s:g} s"
    if lifetime >= max_lifetime:
        return f"used up (cluster:lifetime_connections says {counted(max_lifetime, 'session')} or more)"
    return None if worker.ws_endpoint else "without an endpoint"
