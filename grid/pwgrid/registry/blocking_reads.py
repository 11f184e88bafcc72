"""Reads the registry for the command line through redis-py's blocking client; marks hosts as drained, and leaves
questions for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_faults import RedisFault
from pwgrid.common.redis_url import shown
from pwgrid.common.session_lifecycle import LIVE, HeldAs
from pwgrid.registry import host_records, records
from pwgrid.registry.fault_of import NONSENSE, fault_of, write_fault
from pwgrid.registry.host_records import HostsFound
from pwgrid.registry.open_redis import open_blocking
from pwgrid.registry.records import RegistrySnapshot, SessionRecord, WorkerRecord
from pwgrid.registry.scripts import write_probe
from pwgrid.registry.session_index import IndexReader

TIMEOUT_S: Final = 1.0

_LATE_S: Final = 5.0
"""Redis may get a session's record up to this long after its `createdAt`."""


def snapshot(
    url: str,
    prefix: str = "",
    first: Collection[str] = (),
    is_enough: Callable[[RegistrySnapshot], bool] = lambda _found: False,
) -> RegistrySnapshot:
    """Returns what Registry.look returns. Raises RegistryUnavailable."""
    with _connected(url, prefix) as redis:
        replies = _pipeline(redis, records.snapshot_commands(prefix))
        found = records.read_snapshot(replies, _write_fault(redis, prefix))
        workers: dict[str, WorkerRecord] = {}
        for some in records.chunks(records.worker_fields(replies, first)):
            read = records.read_workers(some, _pipeline(redis, records.worker_commands(prefix, some)))
            workers |= read
            if is_enough(replace(found, workers=read)):
                break
    return replace(found, workers=dict(sorted(workers.items())))


def latest_sessions(url: str, prefix: str = "", *, status: str | None = None, limit: int = 100) -> list[SessionRecord]:
    """Returns up to `limit` sessions, newest first, of any or of one status. Raises RegistryUnavailable."""
    found: dict[str, SessionRecord] = {}
    index = IndexReader(prefix, HeldAs.SESSION)
    with _connected(url, prefix) as redis:
        while not index.is_at_end and len(found) < limit:
            ids = [session_id for session_id, _ in index.read(_pipeline(redis, index.commands()))]
            read = _sessions(redis, prefix, ids)
            found |= {each.session_id: each for each in read if status in (None, each.status)}
    return [*found.values()][:limit]


def session(url: str, session_id: str, prefix: str = "") -> SessionRecord | None:
    """Returns one session's record, or None if Redis has none (any more). Raises RegistryUnavailable."""
    with _connected(url, prefix) as redis:
        return next(iter(_sessions(redis, prefix, [session_id])), None)


def hosts(url: str, prefix: str = "") -> HostsFound:
    """Returns the hosts that form one grid. Raises RegistryUnavailable."""
    with _connected(url, prefix) as redis:
        return host_records.found(*_pipeline(redis, host_records.commands(prefix)))


def active(url: str, prefix: str = "") -> dict[str, int]:
    """Returns the live sessions by worker field. Raises RegistryUnavailable."""
    with _connected(url, prefix) as redis:
        (counters,) = _pipeline(redis, [("HGETALL", prefix + records.ACTIVE)])
    return records.counts(counters)


def mark_drained(url: str, prefix: str, name: str, since: float | None) -> None:
    """Has a host get no more sessions, `since` then (Unix seconds); with None it gets them again. Raises
    RegistryUnavailable."""
    key = prefix + host_records.DRAINED
    with _connected(url, prefix) as redis:
        _pipeline(redis, [("HDEL", key, name) if since is None else ("HSET", key, name, f"{since:.3f}")])


def leave_forward(url: str, prefix: str, question: Mapping[str, Any]) -> str:
    """Leaves a question for another host; returns the id by which that one takes it. Raises RegistryUnavailable."""
    forward_id, command = host_records.forward_command(prefix, question)
    with _connected(url, prefix) as redis:
        _pipeline(redis, [command])
    return forward_id


def take_back_forward(url: str, prefix: str, forward_id: str) -> bool:
    """Takes back what `leave_forward` has left. Returns whether it was still there, so that nobody gets it. Raises
    RegistryUnavailable."""
    with _connected(url, prefix) as redis:
        (removed,) = _pipeline(redis, [("DEL", f"{prefix}{host_records.FORWARD}{forward_id}")])
    return bool(removed)


@dataclass(frozen=True, slots=True)
class RegistryLook:
    """The registry at one moment. `news` are sessions that have begun or changed status since the previous look. Both
    lists are oldest first."""

    snapshot: RegistrySnapshot
    hosts: HostsFound
    live: list[SessionRecord]
    news: list[SessionRecord]


class SessionWatch:
    """Reads the registry repeatedly. Each look reads only the records of live, new and changed sessions."""

    def __init__(self, url: str, prefix: str = "") -> None:
        self._url, self._prefix = url, prefix
        self._known: dict[str, SessionRecord] = {}
        self._looked_at: float | None = None

    def look(self, now: float) -> RegistryLook:
        """`now` is in Unix seconds. The first look's `news` are all live sessions and those of the last 5 s. Raises
        RegistryUnavailable."""
        prefix, since = self._prefix, (now if self._looked_at is None else self._looked_at) - _LATE_S
        with _connected(self._url, prefix) as redis:
            begun = ("ZRANGEBYSCORE", prefix + records.INDEX, f"{since:f}", "+inf")
            commands = [*records.snapshot_commands(prefix), *host_records.commands(prefix), begun]
            *replies, told, drained, ids = _pipeline(redis, commands)
            fields = records.worker_fields(replies)
            workers = _pipeline(redis, records.worker_commands(prefix, fields))
            live = _pipeline(redis, records.live_commands(prefix, fields))
            wanted = dict.fromkeys([*self._known, *ids, *chain.from_iterable(live)])
            found = _sessions(redis, prefix, wanted)
            fault = _write_fault(redis, prefix)
        found.sort(key=lambda session: session.created_at)
        before, self._looked_at = self._known, now
        self._known = {
            each.session_id: each for each in found if each.status in LIVE or each.created_at >= now - 2 * _LATE_S
        }
        return RegistryLook(
            replace(records.read_snapshot(replies, fault), workers=records.read_workers(fields, workers)),
            host_records.found(told, drained),
            live=[each for each in found if each.status in LIVE],
            news=[
                each for each in found if each.session_id not in before or before[each.session_id].status != each.status
            ],
        )


@contextmanager
def _connected(url: str, prefix: str) -> Iterator[Redis]:
    redis = open_blocking(url, timeout_s=TIMEOUT_S, prefix=prefix)
    try:
        yield redis
    except (RedisError, OSError, *NONSENSE) as error:
        fault = fault_of(error, url=url, during=f"no answer within {TIMEOUT_S:g} s")
        raise RegistryUnavailable(f"Redis at {shown(url)} does not answer: {fault}", fault) from None
    finally:
        redis.close()


def _write_fault(redis: Redis, prefix: str) -> RedisFault | None:
    """Why Redis takes no writes now."""
    try:
        return write_fault(redis.execute_command(*write_probe(prefix)))
    except ResponseError as error:
        return write_fault(error)


def _sessions(redis: Redis, prefix: str, ids: Collection[str]) -> list[SessionRecord]:
    """The records of those that have one."""
    hashes = _pipeline(redis, [("HGETALL", f"{prefix}session:{session_id}") for session_id in ids])
    return [SessionRecord.read(*each) for each in zip(ids, hashes, strict=True) if each[1]]


def _pipeline(redis: Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    with redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies = pipeline.execute(raise_on_error=False)  # else it puts words of its own before those of Redis
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
