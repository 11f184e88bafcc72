"""Reads the registry for a command that asks one thing and exits, over redis-py's blocking client. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import shown
from pwgrid.registry import records
from pwgrid.registry.connect import open_blocking
from pwgrid.registry.records import RegistrySnapshot, SessionRecord

DEFAULT_TIMEOUT_S: Final = 1.0
_PAGE: Final = 500


def snapshot(url: str, prefix: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> RegistrySnapshot:
    """Workers, counters and totals, as Registry.snapshot gives them. Raises RegistryUnavailable."""
    with _connected(url, timeout_s) as redis:
        replies = _pipeline(redis, records.snapshot_commands(prefix))
        fields = records.worker_fields(replies)
        return records.read_snapshot(
            replies, _pipeline(redis, [("HGETALL", f"{prefix}worker:{name}") for name in fields])
        )


def latest_sessions(
    url: str, prefix: str = "", *, status: str | None = None, limit: int = 100, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[SessionRecord]:
    """Up to `limit` sessions, the newest first, of all or of one status. Raises RegistryUnavailable."""
    found: list[SessionRecord] = []
    start = 0
    with _connected(url, timeout_s) as redis:
        while True:
            (ids,) = _pipeline(redis, [("ZREVRANGE", prefix + records.INDEX, start, start + _PAGE - 1)])
            hashes = _pipeline(redis, [("HGETALL", f"{prefix}session:{session_id}") for session_id in ids])
            sessions = (SessionRecord.read(*each) for each in zip(ids, hashes, strict=True) if each[1])
            found += [session for session in sessions if status in (None, session.status)]
            if len(ids) < _PAGE or len(found) >= limit:
                return found[:limit]
            start += _PAGE


@contextmanager
def _connected(url: str, timeout_s: float) -> Iterator[Redis]:
    redis = open_blocking(url, timeout_s=timeout_s)
    try:
        yield redis
    except RedisError as error:
        raise RegistryUnavailable(f"Redis at {shown(url)} does not answer: {error}") from None
    finally:
        redis.close()


def _pipeline(redis: Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    with redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute()
