"""The lines of clients that wait, as the hosts of one grid know them of each other: whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pwgrid.registry.scripts import SCRIPTS

if TYPE_CHECKING:
    from pwgrid.registry.redis_client import RedisClient

LINE: Final = "cluster:line:"
"""Before the name of a pool: hash of the lines of all proxies, as lua/take_turn.lua writes it."""


class PartyInLine(NamedTuple):
    """Clients of one line that share a turn."""

    name: str
    since_s: float
    """Since when the first of them waits, by the clock of the line's proxy."""
    asks_since_s: float | None
    """The same of those that may ask for a slot; None: all have asked in vain since a slot last came free."""


class TurnFound(NamedTuple):
    """`party` is to ask for a slot now; None: none of this line is. `is_held`: one may ask after those of others.
    `is_new_round`: a slot came free since this line was last told its turn, so that all may ask again."""

    party: str | None
    is_held: bool
    is_new_round: bool


class Lines:
    """The lines' part of the registry. `line_id` tells this proxy's from all others."""

    def __init__(self, client: RedisClient, prefix: str, line_id: str) -> None:
        self._client = client
        self._prefix = prefix
        self.line_id = line_id

    async def take_turn(
        self, pool: str, parties: Sequence[PartyInLine], *, now_s: float, served: str, has_caps: bool, patience_s: float
    ) -> TurnFound:
        """Tells who waits in this proxy's line for a pool, and which party was `served` just now ("" for none), and
        returns whose turn it is. `has_caps`: one of those who wait has a cap. A line whose turn it is and that says
        nothing for `patience_s` is left out. Raises RegistryUnavailable while Redis is away."""
        told = [text for each in parties for text in (each.name, _ms(each.since_s), _ms(each.asks_since_s))]
        arguments = (
            self._prefix,
            pool,
            self.line_id,
            _ms(now_s),
            _ms(patience_s),
            served,
            "1" if has_caps else "",
            "",
            *told,
        )
        reply = await self._client.run(SCRIPTS["take_turn"], (f"{self._prefix}{LINE}{pool}",), arguments)
        party, is_held, is_new_round = reply
        return TurnFound(party or None, bool(is_held), bool(is_new_round))


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else round(seconds * 1000)
