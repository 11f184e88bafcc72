"""Pages through the records of sessions and leases, the newest first. Reads only."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from pwgrid.registry import records
from pwgrid.registry.records import SessionPage, SessionRecord
from pwgrid.registry.redis_client import RedisClient

_CHUNK: Final = 200

MOST_READ: Final = 10_000
"""How many records one page may read; by hand, 0.15 s. With the default SESSION_HISTORY_MAX that is all there are."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a session must match; None matches anything."""

    statuses: Set[str] | None = None
    browser_type: str | None = None
    worker_id: str | None = None
    token: str | None = None

    def passes(self, session: SessionRecord) -> bool:
        return (
            (self.statuses is None or session.status in self.statuses)
            and self.browser_type in (None, session.browser_type)
            and self.worker_id in (None, session.worker_id)
            and self.token in (None, session.token)
        )


async def page(
    client: RedisClient, prefix: str, index: str, wanted: Filter, limit: int, cursor: str | None
) -> SessionPage:
    """Returns up to `limit` sessions, or leases, of the index that pass, or those among the next MOST_READ. `cursor` is
    the previous page's; new sessions do not shift the pages.

    Raises ValueError for a malformed cursor.
    """
    found: list[SessionRecord] = []
    score, last_id = _read(cursor) if cursor else ("+inf", None)
    for _ in range(MOST_READ // _CHUNK):
        entries = await _entries(client, prefix + index, score, last_id)
        hashes = await client.pipeline([("HGETALL", prefix + records.key_of(session_id)) for session_id, _ in entries])
        for (session_id, created_at), values in zip(entries, hashes, strict=True):
            score, last_id = str(created_at), session_id
            session = SessionRecord.read(session_id.removeprefix(records.LEASE), values)
            if values and wanted.passes(session):
                found.append(session)
                if len(found) == limit:
                    return SessionPage(found, f"{score}:{last_id}")
        if len(entries) < _CHUNK:
            return SessionPage(found, None)
    return SessionPage(found, f"{score}:{last_id}")


async def _entries(client: RedisClient, index: str, score: str, last_id: str | None) -> list[tuple[str, float]]:
    """Returns the next ids with their times, after `last_id`, which may share its millisecond with others."""
    offset = 0
    if last_id is not None:
        same = await client.call("ZREVRANGEBYSCORE", index, score, score)
        offset = sum(session_id >= last_id for session_id in same)  # Redis orders equal scores by bytes
    entries: list[tuple[str, float]] = await client.call(
        *("ZREVRANGEBYSCORE", index, score, "-inf", "WITHSCORES", "LIMIT", offset, _CHUNK)
    )
    return entries


def _read(cursor: str) -> tuple[str, str]:
    score, colon, session_id = cursor.partition(":")
    if not colon or not score.isascii() or not (score.replace(".", "", 1).isdecimal() or score == "inf"):
        raise ValueError(f"not a cursor: {cursor!r}")
    return score, session_id
