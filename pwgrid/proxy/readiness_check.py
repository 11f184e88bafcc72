"""Says whether the grid can take sessions, by the master's roster and by what a selection would choose in Redis."""

from __future__ import annotations

import asyncio
import math

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.policy.why_pool_cannot_serve import Candidate, why_cannot_serve
from pwgrid.proxy.roster import Roster
from pwgrid.registry.records import RegistrySnapshot
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
        now = math.floor(self._registry.now())
        candidates = [
            Candidate(
                worker.status,
                now - math.floor(worker.last_heartbeat),
                found.lifetime.get(field, 0),
                bool(worker.ws_endpoint),
            )
            for field, worker in found.workers.items()
            if (worker.pool, worker.browser_type) == (name, pool.browser_type)
        ]
        return why_cannot_serve(name, candidates, pool.lifetime, self._stale_s)
