"""Says why a selection would choose no worker of a pool even if all slots were free, by the rule of lua/selector.lua.
Reads no Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pwgrid.common.plural import counted
from pwgrid.common.worker_lifecycle import WorkerStatus


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered worker, as Redis has it. `beat_age_s` is in whole seconds since its last heartbeat."""

    status: str
    beat_age_s: float
    lifetime: int
    has_endpoint: bool = True


def why_cannot_serve(pool: str, candidates: Iterable[Candidate], max_lifetime: int, stale_s: float) -> str | None:
    """Returns why no worker of this pool can be chosen; None when one can, now or once a slot is free."""
    obstacles = [_obstacle(each, max_lifetime, stale_s) for each in candidates]
    if None in obstacles:
        return None
    listed = ", ".join(f"{count} {what}" for what, count in Counter(obstacles).items())
    return f"no {pool} worker can be chosen: in Redis {listed or 'none is registered'}"


def _obstacle(worker: Candidate, max_lifetime: int, stale_s: float) -> str | None:
    if worker.status != WorkerStatus.AVAILABLE:
        return worker.status or "without a status"
    if worker.beat_age_s > stale_s:
        return f"without a heartbeat for over {stale_s:g} s"
    if worker.lifetime >= max_lifetime:
        return f"used up (cluster:lifetime_connections says {counted(max_lifetime, 'session')} or more)"
    return None if worker.has_endpoint else "without an endpoint"
