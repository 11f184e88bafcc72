"""Reads what the dashboard shows of sessions, and no more. Writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pwgrid.registry import records
from pwgrid.registry.client import RedisClient
from pwgrid.registry.records import SessionRecord


@dataclass(frozen=True, slots=True)
class Activity:
    """What changes whenever a session begins or ends: the counters by worker field ("{type}:{id}"), the totals of ends,
    and the id of the newest session. While two are equal, no session has begun or ended between them."""

    active: Mapping[str, int]
    lifetime: Mapping[str, int]
    outcomes: Mapping[str, int]
    taken_back: Mapping[str, int]
    newest: str | None

    @property
    def fields(self) -> list[str]:
        """The fields of all workers that have a counter."""
        return sorted(self.active.keys() | self.lifetime.keys())


async def activity(client: RedisClient, prefix: str) -> Activity:
    """Takes one round trip, however many workers and sessions there are."""
    active, lifetime, outcomes, taken_back, newest = await client.pipeline(
        [
            *(("HGETALL", prefix + key) for key in (records.ACTIVE, records.LIFETIME, records.OUTCOMES)),
            ("HGETALL", prefix + records.TAKEN_BACK),
            ("ZREVRANGE", prefix + records.INDEX, 0, 0),
        ]
    )
    return Activity(
        active=records.counts(active),
        lifetime=records.counts(lifetime),
        outcomes=records.counts(outcomes),
        taken_back=records.counts(taken_back),
        newest=newest[0] if newest else None,
    )


async def session_ids(
    client: RedisClient, prefix: str, fields: Collection[str], *, newest: int, at_most: int
) -> tuple[frozenset[str], list[str]]:
    """Returns ids: of these workers' live sessions (at most `at_most` for each worker), and of the `newest` sessions
    of all workers."""
    *live, latest = await client.pipeline(
        [
            *(("ZRANGE", f"{prefix}sessions:live:{field}", 0, at_most - 1) for field in fields),
            ("ZREVRANGE", prefix + records.INDEX, 0, newest - 1),
        ]
    )
    return frozenset(session_id for ids in live for session_id in ids), latest


async def session_records(client: RedisClient, prefix: str, ids: Collection[str]) -> dict[str, SessionRecord]:
    """Returns records by id, without sessions that have none (any more)."""
    hashes = await client.pipeline([("HGETALL", f"{prefix}session:{session_id}") for session_id in ids])
    return {
        session_id: SessionRecord.read(session_id, values)
        for session_id, values in zip(ids, hashes, strict=True)
        if values
    }
