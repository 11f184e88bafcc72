"""Says whether the grid can take sessions, by the master's roster and by what a selection would choose in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.registry.records import RegistrySnapshot
from pwgrid.registry.registry import Registry
from pwgrid.registry.selectable_workers import Look, Verdict, can_serve, until_all_serve
from pwgrid.settings.model import Settings


class Readiness:
    """While Redis is away, or takes no writes, only the roster counts: the proxy chooses by that, too."""

    def __init__(self, settings: Settings, roster: Roster, registry: Registry) -> None:
        self._stale_s = settings.stale_threshold
        self._roster = roster
        self._registry = registry
        self._looking: asyncio.Task[Look] | None = None

    async def verdict(self, found: RegistrySnapshot | None = None) -> Verdict:
        """Returns whether the grid is ready now. `found` is a snapshot, or a `look`, if the caller has one."""
        if (not_ready := self._roster.not_ready()) is not None:
            return Verdict(not_ready)  # whatever Redis says
        look = found or await self._ask_redis()
        # Now: one may have been removed meanwhile.
        return self._judge(look, (pool for pool in self._roster.offered().values() if not pool.is_on_demand))

    async def shortage(self, pool: str) -> str | None:
        """Returns why this pool can take no session at all; None when it can once a slot is free."""
        roster = self._roster
        if roster.is_available_elsewhere(pool):
            return None
        if roster.is_only_elsewhere(pool):  # whatever this host is short of
            return roster.shortage(pool)
        if not_ready := roster.host_guard or roster.shortage(pool):
            return not_ready
        look = await self._ask_redis()
        found = roster.pools.get(pool)  # it may have been removed meanwhile
        return self._judge(look, [found] if found else []).reason

    def _judge(self, look: Look, pools: Iterable[PoolView]) -> Verdict:
        return can_serve(None, look, pools, self._registry.now(), self._stale_s)

    async def _ask_redis(self) -> Look:
        """Returns what Redis says, or why it says nothing. Calls at the same time share one look: many clients may have
        waited in vain."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read())
        return await asyncio.shield(self._looking)

    async def look(self) -> RegistrySnapshot:
        """Asks Redis for counters and totals, and for as many workers as tell that every pool can serve, else all.
        Raises RegistryUnavailable."""
        roster = self._roster
        # By the masters' figures a pool without an available worker serves nobody, whatever Redis says.
        pools = [pool for pool in roster.pools.values() if pool.available or roster.is_available_elsewhere(pool.name)]
        own = [worker.counter for worker in roster.workers.values()]
        return await self._registry.look(own, until_all_serve(pools, self._registry.now(), self._stale_s))

    async def _read(self) -> Look:
        try:
            return await self.look()
        except RegistryUnavailable as error:
            return error
