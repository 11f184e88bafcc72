"""What hosts leave for each other in Redis."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pwgrid.registry import blocking_reads
from pwgrid.registry.host_records import HostRecord
from pwgrid.registry.records import WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.settings.model import Settings
from pwgrid.setup import doctor_checks
from tests.support.redis import RedisServer

PREFIX = "{pwgrid}:"
BOUND_S = 20.0
HERE, THERE = "10.0.0.1:8080", "10.0.0.2:8080"


@pytest.fixture
async def registry(redis: RedisServer) -> AsyncIterator[Registry]:
    registry = Registry(redis.url, Settings(redis_key_prefix=PREFIX, redis_timeout=BOUND_S))
    yield registry
    await registry.close()


def record(name: str) -> HostRecord:
    return HostRecord(name, ("10.0.0.1", 8080), at=7.0, waiting={"chromium": 2})


async def test_each_host_reads_what_the_others_have_told(registry: Registry, redis: RedisServer) -> None:
    hosts = registry.hosts
    assert (await hosts.exchange(None)).records == {}
    await hosts.exchange(record(HERE))
    found = await hosts.exchange(record(THERE))
    assert found.records == {HERE: record(HERE), THERE: record(THERE)}
    assert found == blocking_reads.hosts(redis.url, PREFIX)
    redis.command("HSET", f"{PREFIX}cluster:hosts", "other", "nonsense")
    assert [*(await hosts.exchange(None)).records] == [HERE, THERE]
    assert redis.command("PTTL", f"{PREFIX}cluster:hosts") > 0


async def test_a_host_that_leaves_in_order_is_drained_no_longer(registry: Registry, redis: RedisServer) -> None:
    hosts = registry.hosts
    await hosts.exchange(record(HERE))
    blocking_reads.mark_drained(redis.url, PREFIX, HERE, 5.0)
    blocking_reads.mark_drained(redis.url, PREFIX, THERE, 5.0)
    assert (await hosts.exchange(None)).drained == {HERE, THERE}
    blocking_reads.mark_drained(redis.url, PREFIX, THERE, None)
    await hosts.forget(HERE)
    found = await hosts.exchange(None)
    assert (found.records, found.drained) == ({}, {HERE})  # a lost host comes back as it was
    await hosts.forget(HERE, with_drain=True)
    assert (await hosts.exchange(None)).drained == frozenset()


async def test_a_forward_is_taken_once_and_for_nothing_else(registry: Registry, redis: RedisServer) -> None:
    hosts = registry.hosts
    forward = {"worker": "a1", "request": {"headers": {"host": "x"}}}
    forward_id = await hosts.leave_forward(forward)
    (key,) = redis.command("KEYS", "*forward*")
    assert 0 < redis.command("PTTL", key) <= 15_000
    assert await hosts.take_refusal(forward_id) is None
    taken = await asyncio.gather(*(hosts.take_forward(forward_id) for _ in range(5)))
    assert [each for each in taken if each is not None] == [forward]
    await hosts.leave_refusal(forward_id, {"refused": "full"})
    assert await hosts.take_forward(forward_id) is None
    assert await hosts.take_refusal(forward_id) == {"refused": "full"}
    assert redis.command("KEYS", "*forward*") == []


async def test_what_is_no_forward_is_none(registry: Registry, redis: RedisServer) -> None:
    for text in ("[]", "nonsense", ""):
        redis.command("SET", f"{PREFIX}cluster:forward:x", text)
        assert await registry.hosts.take_forward("x") is None


async def test_silent_workers_are_those_that_redis_still_knows(registry: Registry, redis: RedisServer) -> None:
    for worker_id in ("aa01", "aa02"):
        worker = WorkerRecord("chromium", worker_id, f"ws://h/playwright/chromium/{worker_id}.s", host=HERE)
        await registry.register(worker)
    redis.command("HSET", f"{PREFIX}worker:chromium:aa01", "lastHeartbeat", "100")
    redis.command("HSET", f"{PREFIX}cluster:active_connections", "chromium:aa03", "1")  # its key has run out
    workers = dict.fromkeys(("aa01", "aa02", "aa03", "aa04"), "chromium")
    silent, is_alive = await registry.hosts.silent_workers(workers, before=101.0)  # type: ignore[arg-type]
    assert ({*silent}, is_alive) == ({"aa01", "aa03"}, True)
    silent, is_alive = await registry.hosts.silent_workers({"aa01": "chromium", "aa04": "chromium"}, before=101.0)
    assert ({*silent}, is_alive) == ({"aa01"}, False)
    assert (await registry.snapshot()).workers["chromium:aa02"].host == HERE


async def test_a_selection_prefers_and_avoids_hosts(registry: Registry) -> None:
    for worker_id, host in (("aa01", HERE), ("aa02", THERE)):
        worker = WorkerRecord("chromium", worker_id, f"ws://h/playwright/chromium/{worker_id}.s", slots=1, host=host)
        await registry.register(worker)

    async def chosen(session_id: str, **wish: object) -> str | None:
        return await registry.select("chromium", max_concurrent=1, max_lifetime=9, session_id=session_id, **wish)  # type: ignore[arg-type]

    assert await chosen("s1", avoid_hosts=[HERE, THERE]) is None
    assert await chosen("s2", prefer_host=THERE) == "aa02"
    assert await chosen("s3", prefer_host=THERE) == "aa01"
    session = await registry.session("s3")
    assert session is not None
    assert (session.host, session.as_json()["host"]) == (HERE, HERE)


@pytest.mark.parametrize(
    ("changes", "is_here", "level", "says"),
    [
        ({}, False, "bad", "another host tells of itself as {name}, and nothing listens on port {port} here"),
        ({}, True, "good", "{name}, with 10.0.0.2:8080"),
        ({"at": 0.0}, False, "good", "{name}, with 10.0.0.2:8080"),  # left of an earlier grid
        ({"is_name_taken": True}, True, "bad", "{name}: another host uses this one's name, too"),
    ],
)
async def test_doctor_says_that_another_host_has_this_one_s_name(
    changes: dict[str, Any], is_here: bool, level: str, says: str, registry: Registry, redis: RedisServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = Settings(redis_url=redis.url, redis_key_prefix=PREFIX, port=port, advertised_host="10.0.0.1")
        name = settings.host_name()
        told = HostRecord(name, ("10.0.0.1", port), at=time.time())
        await registry.hosts.exchange(record(THERE))
        await registry.hosts.exchange(replace(told, **changes))
        if not is_here:
            listener.close()
        (finding,) = doctor_checks._hosts(settings)
    assert finding.level == level
    assert finding.found.startswith(says.format(name=name, port=port))


async def test_what_was_told_of_this_host_before_is_known(registry: Registry) -> None:
    told = record(HERE)
    assert (await registry.hosts.exchange(told)).before is None
    assert (await registry.hosts.exchange(replace(told, at=8.0))).before == told
    assert (await registry.hosts.exchange(None)).before is None
