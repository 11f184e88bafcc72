"""Says whether the grid can take sessions, by the master's roster and by what a selection would choose in Redis."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.launch_failure import without_places
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.proxy.roster import Roster
from pwgrid.registry.records import RegistrySnapshot
from pwgrid.registry.registry import Registry
from pwgrid.registry.selectable_workers import why_cannot_serve
from pwgrid.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is why the grid cannot take a session of every pool; None when it can. `degraded` says what it does
    without meanwhile, in words for anybody; None when there is everything."""

    reason: str | None
    degraded: str | None = None


class Readiness:
    """While Redis is away, or takes no writes, only the roster counts: the proxy chooses by that, too."""

    def __init__(self, settings: Settings, roster: Roster, registry: Registry) -> None:
        self._stale_s = settings.stale_threshold
        self._roster = roster
        self._registry = registry
        self._looking: asyncio.Task[RegistrySnapshot | RedisFault] | None = None

    async def verdict(self, found: RegistrySnapshot | None = None) -> Verdict:
        """Returns whether the grid is ready now. `found` is the registry's snapshot, if the caller has one."""
        if (reason := self._roster.not_ready()) is not None:
            return Verdict(reason)
        look = found or await self._look()
        if (fault := _fault(look)) is not None:
            return Verdict(None, f"clients are served without Redis: {without_places(fault.what)}")
        reasons = [self._why_cannot_serve(look, pool) for pool in self._roster.offered()]
        return Verdict("; ".join(each for each in reasons if each) or None)

    async def shortage(self, pool: str) -> str | None:
        """Returns why this pool can take no session at all; None when it can once a slot is free."""
        reason = self._roster.host_guard or self._roster.shortage(pool)
        return reason or self._why_cannot_serve(await self._look(), pool)

    async def _look(self) -> RegistrySnapshot | RedisFault:
        """Asks Redis. Returns what it says, or why it says nothing. Calls at the same time share one question: many
        clients may have waited in vain."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read())
        return await asyncio.shield(self._looking)

    async def _read(self) -> RegistrySnapshot | RedisFault:
        try:
            return await self._registry.snapshot()
        except RegistryUnavailable as error:
            return error.fault or RedisFault(FaultKind.UNREACHABLE, str(error))

    def _why_cannot_serve(self, look: RegistrySnapshot | RedisFault, name: str) -> str | None:
        pool = self._roster.pools.get(name)
        if pool is None or isinstance(look, RedisFault) or look.write_fault:  # or it was removed during the look
            return None
        return why_cannot_serve(look, pool, self._registry.now(), self._stale_s)


def _fault(look: RegistrySnapshot | RedisFault) -> RedisFault | None:
    """Why the proxy chooses workers without Redis."""
    return look if isinstance(look, RedisFault) else look.write_fault
