"""The turns of parties over all hosts: each proxy tells Redis who waits in its lines, and hears whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.policy.fair_line import Head, Party, Turn
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim
from pwgrid.registry.registry import Registry
from pwgrid.registry.take_turn import PartyInLine

log = structlog.get_logger()

LINE_PATIENCE_S: Final = 0.5
"""How long lines wait for another one whose turn it is and which says nothing: its proxy is gone, or frozen."""


class Turns:
    """Asked only for clients that wait, and only where there are other hosts."""

    def __init__(self, registry: Registry, roster: Roster) -> None:
        self._registry = registry
        self._roster = roster

    @property
    def are_shared(self) -> bool:
        """Whether there are other hosts, whose clients take turns with this one's."""
        return bool(self._roster.hosts.others)

    async def take(
        self, pool: str, heads: Sequence[Head[Claim]], served: Party | None, *, has_caps: bool
    ) -> Turn | None:
        """Tells who waits in this proxy's line for a pool, and which party was `served` there just now; returns whose
        turn it is. None while Redis is away: each host goes by its own line. `has_caps`: a client in line has a cap."""
        named = {_name(head.party): head for head in heads}
        try:
            found = await self._registry.lines.take_turn(
                pool,
                [
                    PartyInLine(name, head.first.waits_since, head.asking.waits_since if head.asking else None)
                    for name, head in named.items()
                ],
                now_s=asyncio.get_running_loop().time(),
                served="" if served is None else _name(served),
                has_caps=has_caps,
                patience_s=LINE_PATIENCE_S,
            )
        except RegistryUnavailable as error:
            log.info("turn_without_redis", pool=pool, error=str(error))
            return None
        head = named.get(found.party) if found.party is not None else None
        return Turn(head.party if head else None, found.is_held, found.is_new_round)


def _name(party: Party) -> str:
    return f"{party.token}/{party.run}"
