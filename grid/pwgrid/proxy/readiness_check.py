"""Says whether the grid can take sessions, by the master's roster and by what a selection would choose in Redis."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.wording import counted
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings


class Readiness:
    """While Redis is away only the roster counts: the proxy chooses by that, too."""

    def __init__(self, settings: Settings, roster: Roster, registry: Registry) -> None:
        self._stale_s = settings.stale_threshold
        self._roster = roster
        self._registry = registry
        self._looking: asyncio.Task[RegistrySnapshot | None] | None = None

    async def problem(self, found: RegistrySnapshot | None = None) -> str | None:
        """Returns why the grid cannot take a session of every pool; None when it can. `found` is the registry's
        snapshot, if the caller has one."""
        reason = self._roster.not_ready()
        if reason is None and (found := found or await self._look()) is not None:
            reasons = [self._why_cannot_serve(found, pool) for pool in self._roster.offered()]
            reason = "; ".join(each for each in reasons if each) or None
        return reason

    async def shortage(self, pool: str) -> str | None:
        """Returns why this pool can take no session at all; None when it can once a slot is free."""
        reason = self._roster.host_guard or self._roster.shortage(pool)
        if reason is None and (found := await self._look()) is not None:
            reason = self._why_cannot_serve(found, pool)
        return reason

    async def _look(self) -> RegistrySnapshot | None:
        """Returns what Redis says; None while it is away. Callers at the same time share a look: many clients may have
        waited in vain."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read())
        return await asyncio.shield(self._looking)

    async def _read(self) -> RegistrySnapshot | None:
        try:
            return await self._registry.snapshot()
        except RegistryUnavailable:
            return None

    def _why_cannot_serve(self, found: RegistrySnapshot, name: str) -> str | None:
        pool = self._roster.pools.get(name)
        if pool is None:  # removed during the look at Redis
            return None
        return why_cannot_serve(found, pool, self._registry.now(), self._stale_s)


def why_cannot_serve(found: RegistrySnapshot, pool: PoolView, now: float, stale_s: float) -> str | None:
    """Returns why a selection would choose no worker of this pool even if all slots were free, by the rule of
    lua/selector.lua; None when it would choose one."""
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
