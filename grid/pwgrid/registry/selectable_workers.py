"""Decides whether the grid can serve: by what the master says, and by what a selection (lua/selector.lua) would choose.
`/health/ready`, the page, the metrics, `pwgrid status` and `pwgrid top` all have their answer from here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.launch_failure import without_places
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


Look = RegistrySnapshot | RegistryUnavailable
"""What Redis says, or why it says nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is why the grid cannot take a session of every pool; None when it can. `degraded` says what it does
    without meanwhile, in words for anybody; None when there is everything."""

    reason: str | None
    degraded: str | None = None


def can_serve(not_ready: str | None, look: Look, pools: Iterable[Pool], now: float, stale_s: float) -> Verdict:
    """`not_ready` is why the grid is not ready by what the master says (pwgrid/common/readiness.py); `pools` are those
    that want workers. While Redis is away, or takes no writes, only the master counts: proxies choose by it, too."""
    if not_ready is not None:
        return Verdict(not_ready)
    if isinstance(look, RegistryUnavailable) or look.write_fault is not None:
        return Verdict(None, f"clients are served without Redis: {without_places(_fault(look))}")
    return Verdict("; ".join(why_cannot_serve(look, pools, now, stale_s).values()) or None)


def _fault(look: Look) -> str:
    fault = look.fault if isinstance(look, RegistryUnavailable) else look.write_fault
    return str(look) if fault is None else fault.what


def why_cannot_serve(found: RegistrySnapshot, pools: Iterable[Pool], now: float, stale_s: float) -> dict[str, str]:
    """Returns by pool why a selection would choose no worker of it even if all slots were free, without the pools of
    which it would choose one."""
    wanted = {(pool.name, pool.browser_type): pool for pool in pools}
    obstacles = {named: Counter[str | None]() for named in wanted}
    for field, worker in found.workers.items():
        if (pool := wanted.get((worker.pool, worker.browser_type))) is not None:
            obstacle = _obstacle(worker, found.lifetime.get(field, 0), pool.lifetime, now, stale_s)
            obstacles[worker.pool, worker.browser_type][obstacle] += 1
    return {name: _no_worker(name, counts) for (name, _), counts in obstacles.items() if None not in counts}


def until_all_serve(pools: Iterable[Pool], now: float, stale_s: float) -> Callable[[RegistrySnapshot], bool]:
    """Returns a function that is told of workers again and again, a part of them at a time, and returns whether each of
    these pools has had one that can be chosen: then a grid that serves need not read the rest of its workers."""
    lacking = list(pools)

    def is_enough(found: RegistrySnapshot) -> bool:
        still = why_cannot_serve(found, lacking, now, stale_s)
        lacking[:] = [pool for pool in lacking if pool.name in still]
        return not lacking

    return is_enough


def _no_worker(pool: str, obstacles: Mapping[str | None, int]) -> str:
    listed = ", ".join(f"{count} {what}" for what, count in obstacles.items())
    return f"no {pool} worker can be chosen: in Redis {listed or 'none is registered'}"


def _obstacle(worker: WorkerRecord, lifetime: int, max_lifetime: int, now: float, stale_s: float) -> str | None:
    if worker.status != WorkerStatus.AVAILABLE:
        return worker.status or "without a status"
    if math.floor(now) - math.floor(worker.last_heartbeat) > stale_s:
        return f"without a heartbeat for over {stale_s:g} s"
    if lifetime >= max_lifetime:
        return f"used up (cluster:lifetime_connections says {counted(max_lifetime, 'session')} or more)"
    return None if worker.ws_endpoint else "without an endpoint"
