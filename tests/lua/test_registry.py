"""The registry as proxies and workers see it: every method on a real Redis, which also goes away and comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from pwgrid.common import paths
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus
from pwgrid.registry import blocking_reads, records
from pwgrid.registry.blocking_reads import SessionWatch, latest_sessions, snapshot
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.settings.model import Settings
from tests.support.many_workers import hashes_read, many_workers
from tests.support.redis import RedisServer

BOUND_S = 20.0
PREFIX = "{pwgrid}:"

ENDPOINT = "ws://host:8080/playwright/chromium/aabbccdd.secret"
WORKER = WorkerRecord(
    browser_type="chromium",
    worker_id="aabbccdd",
    ws_endpoint=ENDPOINT,
    started_at=1_700_000_000.5,
    slots=3,
    playwright_version="1.65.1",
    grid="0.1.0",
    handoff="/run/handoff.sock",
    pid=42,
    pool="chromium",
    labels=("AppA:Chromium", "AppA:Chromium:UAT"),
)


class Clock:
    """A wall clock that stands still."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def registry(own_redis: RedisServer, clock: Clock) -> AsyncIterator[Registry]:
    registry = Registry(own_redis.url, Settings(redis_key_prefix=PREFIX, redis_timeout=BOUND_S), clock)
    yield registry
    await registry.close()


async def select(registry: Registry, session_id: str, **wish: Any) -> Any:
    return await registry.select("chromium", max_concurrent=5, max_lifetime=50, session_id=session_id, **wish)


async def start(registry: Registry, session_id: str) -> bool:
    return await registry.write(SessionUpdate(session_id, registry.now()))


async def end(registry: Registry, session_id: str, status: str, reason: str = "", **count: int) -> bool:
    ended = SessionEnd(SessionStatus(status), Reason(EndReason.OTHER, reason), registry.now(), **count)
    return await registry.write(SessionUpdate(session_id, end=ended))


async def test_a_session_from_selection_to_end(registry: Registry, clock: Clock) -> None:
    await registry.register(WORKER)
    worker_id = await select(registry, "s1", client="1.2.3.4:5", version="1.65", fields={"run": "nightly"})
    assert worker_id == "aabbccdd"
    clock.now += 1
    assert await start(registry, "s1")
    clock.now += 2
    assert await end(registry, "s1", "completed", "closed by client", bytes_in=7, bytes_out=9)
    assert not await end(registry, "s1", "failed", "again")
    session = await registry.session("s1")
    assert session is not None
    assert (session.status, session.reason, session.client) == ("completed", "closed by client", "1.2.3.4:5")
    assert (session.created_at, session.started_at, session.ended_at) == (1_700_000_000, 1_700_000_001, 1_700_000_003)
    assert (session.bytes_in, session.bytes_out, session.extra["run"]) == (7, 9, "nightly")
    assert await registry.session("nobody") is None


async def test_the_snapshot_tells_everything_also_over_the_blocking_client(
    registry: Registry, own_redis: RedisServer, clock: Clock
) -> None:
    await registry.register(WORKER)
    await select(registry, "s1")
    await registry.heartbeat(replace(WORKER, rss_mib=210, launches=7), sessions=[])
    found = await registry.snapshot()
    assert found == snapshot(own_redis.url, PREFIX)
    assert (found.active, found.lifetime) == ({"chromium:aabbccdd": 1}, {"chromium:aabbccdd": 1})
    worker = found.workers["chromium:aabbccdd"]
    assert (worker.rss_mib, worker.launches, worker.pid, worker.slots) == (210, 7, 42, 3)
    assert (worker.pool, worker.labels) == ("chromium", ("AppA:Chromium", "AppA:Chromium:UAT"))
    assert (worker.started_at, worker.last_heartbeat) == (1_700_000_000.5, clock.now)
    assert (found.outcomes, found.counter_repairs) == ({}, 0)
    activity = await registry.activity()
    assert (activity.active, activity.lifetime) == (found.active, found.lifetime)


async def test_a_look_reads_no_more_workers_than_are_enough_and_those_that_are_asked_for_first(
    registry: Registry, own_redis: RedisServer
) -> None:
    fields = many_workers(own_redis, PREFIX, 3 * records.HASHES_AT_ONCE)
    totals = sum(command[0] == "HGETALL" for command in records.snapshot_commands(PREFIX))

    def is_enough(found: RegistrySnapshot) -> bool:
        return fields[-1] in found.workers

    async def blocking() -> RegistrySnapshot:
        return snapshot(own_redis.url, PREFIX, [fields[-1], "chromium:gone"], is_enough)

    for look in (lambda: registry.look([fields[-1], "chromium:gone"], is_enough), blocking):
        before = hashes_read(own_redis)
        found = await look()
        assert hashes_read(own_redis) - before == totals + records.HASHES_AT_ONCE
        assert [*found.workers] == [*fields[: records.HASHES_AT_ONCE - 1], fields[-1]]
        assert found.active.keys() == {*fields}
    before = hashes_read(own_redis)
    assert [*(await registry.snapshot()).workers] == fields
    assert hashes_read(own_redis) - before == totals + len(fields)


async def test_a_page_of_workers_reads_these_alone_and_all_pages_together_have_each_worker_once(
    registry: Registry, own_redis: RedisServer
) -> None:
    fields = many_workers(own_redis, PREFIX, 30)
    own_redis.command("DEL", *(f"{PREFIX}worker:{field}" for field in fields[8:19]))  # only their counters are left
    seen: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        before = hashes_read(own_redis)
        found, cursor = await registry.worker_page(limit=7, cursor=cursor)
        assert len(found.workers) <= 7
        assert hashes_read(own_redis) - before <= 2 + 7 + 11
        assert found.active.keys() == {*fields}
        seen += found.workers
        pages += 1
        if pages == 1:
            assert hashes_read(own_redis) - before == 2 + 7
            own_redis.command("HDEL", f"{PREFIX}cluster:active_connections", fields[0])  # who is gone shifts no page
            fields = fields[1:]
    assert seen == ["chromium:w0000", *fields[:7], *fields[18:]]
    assert pages == 3
    assert (await registry.worker_page(limit=7, cursor="chromium:w9"))[0].workers == {}


async def test_however_many_workers_and_sessions_are_read_no_pipeline_holds_up_a_selection_for_all_of_them(
    registry: Registry, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = many_workers(own_redis, PREFIX, 2 * records.HASHES_AT_ONCE + 1)
    sent, pipeline = [], registry.client.pipeline

    async def noting(commands: Collection[Any]) -> list[Any]:
        sent.append(len(commands))
        return await pipeline(commands)

    monkeypatch.setattr(registry.client, "pipeline", noting)
    await registry.snapshot()
    assert sent == [records.HASHES_AT_ONCE] * 2 + [1]
    sent.clear()
    await registry.session_ids(fields, newest=2, at_most=10)
    assert sent == [1, *[2 * records.HASHES_AT_ONCE] * 2, 2]  # first the newest of all
    sent.clear()
    await registry.session_records([f"s{number}" for number in range(records.HASHES_AT_ONCE + 1)])
    assert sent == [records.HASHES_AT_ONCE, 1]


async def test_a_lease_is_no_session(registry: Registry) -> None:
    await registry.register(WORKER)
    await select(registry, "l1", kind=HeldAs.LEASE)
    assert await registry.session("l1") is None
    assert await registry.session_records(["l1"]) == {}
    lease = await registry.lease("l1")
    assert lease is not None
    assert (lease.session_id, (await registry.leases({"pending"})).sessions) == ("l1", [lease])


async def test_a_lease_that_was_taken_for_ended_and_lives_is_in_the_snapshot(registry: Registry) -> None:
    await registry.register(WORKER)
    await select(registry, "l1", kind=HeldAs.LEASE)
    await registry.write(SessionUpdate("l1", registry.now(), kind=HeldAs.LEASE))
    await registry.heartbeat(WORKER, sessions=[])
    await registry.heartbeat(WORKER, sessions=[SessionUpdate("l1", kind=HeldAs.LEASE)])
    found = await registry.snapshot()
    assert (found.leases, found.leases_taken_back) == ({"failed": 1}, {"failed": 1})


async def test_an_empty_registry_has_an_empty_snapshot(registry: Registry) -> None:
    found = await registry.snapshot()
    assert (found.active, found.workers, found.counter_repairs) == ({}, {}, 0)


async def test_a_watch_tells_each_change_once_also_of_what_began_and_ended_between_two_looks(
    registry: Registry, own_redis: RedisServer, clock: Clock
) -> None:
    watch = SessionWatch(own_redis.url, PREFIX)

    def look() -> tuple[list[tuple[str, str]], list[str]]:
        clock.now += 1
        seen = watch.look(clock.now)
        return [(each.session_id, each.status) for each in seen.news], [each.session_id for each in seen.live]

    await registry.register(WORKER)
    for session_id in ("old", "long"):
        await select(registry, session_id)
        await start(registry, session_id)
    await end(registry, "old", "completed")
    _, live = look()
    assert live == ["long"]
    assert look() == ([], ["long"])
    await select(registry, "short")
    await end(registry, "short", "completed")
    await select(registry, "new")
    assert look() == ([("new", "pending"), ("short", "completed")], ["long", "new"])
    await start(registry, "new")
    assert look() == ([("new", "running")], ["long", "new"])
    clock.now += 600  # Redis was away, or the command asleep
    await select(registry, "late")
    await end(registry, "late", "failed", "memory limit")
    assert look() == ([("late", "failed")], ["long", "new"])
    await end(registry, "long", "completed")
    assert look() == ([("long", "completed")], ["new"])
    clock.now += 600
    assert look() == ([], ["new"])


async def test_a_drain_reaches_the_worker_at_its_next_heartbeat(registry: Registry) -> None:
    await registry.register(WORKER)
    await registry.send_drain("chromium", "aabbccdd")
    reply = await registry.heartbeat(WORKER, sessions=[])
    assert (reply.known, reply.command, reply.repaired) == (True, "shutdown", 0)
    assert await registry.mark_draining("chromium", "aabbccdd")
    assert await select(registry, "s1") is None
    stopped = Reason(EndReason.WORKER_STOPPED)
    assert await registry.reap_worker("chromium", "aabbccdd", stopped) == {"chromium:aabbccdd": ((), ())}
    assert not await registry.mark_draining("chromium", "aabbccdd")


@pytest.mark.parametrize("endpoint", ["", "ws://x", "ws://x/..", "ws://x/playwright/chromium/..", "ws://x/a/other.s"])
async def test_a_worker_is_found_by_its_key_whatever_its_endpoint_says(registry: Registry, endpoint: str) -> None:
    await registry.register(replace(WORKER, ws_endpoint=endpoint))
    named = await select(registry, "s1")
    if named != "aabbccdd":  # there is no such worker, so that the next try excludes it
        await registry.rollback("s1")
        assert await select(registry, "s1", exclude={named}) == "aabbccdd"
    assert await select(registry, "s2", exclude={"aabbccdd", named}) is None
    await registry.rollback("s1")
    assert (await registry.snapshot()).active == {"chromium:aabbccdd": 0}


async def test_a_worker_that_cannot_be_excluded_is_not_chosen_again_and_again(registry: Registry) -> None:
    await registry.register(replace(WORKER, worker_id="a,b", ws_endpoint=""))
    assert await select(registry, "s1") is None
    assert (await registry.snapshot()).active == {"chromium:a,b": 0}


async def test_a_rollback_makes_room_and_the_next_selection_goes_elsewhere(registry: Registry) -> None:
    await registry.register(WORKER)
    await select(registry, "s1")
    assert await registry.rollback("s1")
    assert not await registry.rollback("s1")
    assert await select(registry, "s1", exclude={"aabbccdd"}) is None
    assert await select(registry, "s1", worker_id="aabbccdd") == "aabbccdd"


async def test_reaping_names_workers_and_sessions(registry: Registry, clock: Clock) -> None:
    await registry.register(WORKER)
    await select(registry, "s1")
    assert await registry.reap() == {}
    clock.now += 31
    assert await registry.reap(lock_s=60) == {"chromium:aabbccdd": (("s1",), ())}
    assert await registry.reap_worker("chromium", "aabbccdd", Reason(EndReason.WORKER_LOST, "killed")) == {}


async def test_only_one_registry_reaps_at_a_time(registry: Registry, own_redis: RedisServer, clock: Clock) -> None:
    other = Registry(own_redis.url, Settings(redis_key_prefix=PREFIX, redis_timeout=BOUND_S), clock)
    assert await registry.reap(lock_s=60) == {}
    await registry.register(WORKER)
    clock.now += 31
    assert await other.reap(lock_s=60) == {}
    assert await registry.reap(lock_s=60) == {"chromium:aabbccdd": ((), ())}
    await other.close()


async def test_a_waiter_is_woken_by_the_release(registry: Registry) -> None:
    woken: asyncio.Queue[str | None] = asyncio.Queue()
    registry.subscribe_slots(woken.put_nowait)
    async with asyncio.timeout(BOUND_S):
        assert [await woken.get(), await woken.get()] == [None, None]  # both connections came up
        await registry.register(WORKER)
        assert await woken.get() == "chromium"
        for session_id in ("s1", "s2", "s3"):
            assert await select(registry, session_id) is not None
        assert await select(registry, "s4") is None
        await end(registry, "s1", "failed", "why")
        assert await woken.get() == "chromium"
    assert await select(registry, "s4") is not None


async def test_a_waiter_for_a_pool_is_woken_by_the_release_of_one_of_its_workers(registry: Registry) -> None:
    woken: asyncio.Queue[str | None] = asyncio.Queue()
    registry.subscribe_slots(woken.put_nowait)
    async with asyncio.timeout(BOUND_S):
        assert [await woken.get(), await woken.get()] == [None, None]
        await registry.register(replace(WORKER, pool="appa", slots=1))
        assert sorted([await woken.get() or "", await woken.get() or ""]) == ["appa", "chromium"]
        assert await select(registry, "s1", pool="appb") is None
        assert await select(registry, "s1", pool="appa") is not None
        assert await select(registry, "s2", pool="appa") is None
        await end(registry, "s1", "failed", "why")
        assert await woken.get() == "appa"
    assert await select(registry, "s2", pool="appa") is not None
    assert (session := await registry.session("s2")) is not None
    assert session.pool == "appa"


async def test_redis_restarted_empty_gets_the_true_counts_from_the_worker(
    registry: Registry, own_redis: RedisServer
) -> None:
    returned: asyncio.Queue[str | None] = asyncio.Queue()
    await registry.register(WORKER)
    for session_id in ("s1", "s2"):
        await select(registry, session_id)
        await start(registry, session_id)
    registry.subscribe_slots(returned.put_nowait)
    async with asyncio.timeout(BOUND_S):
        assert await returned.get() is None
    own_redis.kill()
    with pytest.raises(RegistryUnavailable):
        await end(registry, "s1", "completed")
    own_redis.start()
    async with asyncio.timeout(BOUND_S):
        assert [await returned.get(), await returned.get()] == [None, None]
        await registry.client.wait_connected()

    # What the worker does: the write that it kept, then its heartbeat.
    assert await end(registry, "s1", "completed")
    running = [SessionUpdate("s2", 1_700_000_000.0, "1.2.3.4:5")]
    reply = await registry.heartbeat(WORKER, sessions=running)
    assert not reply.known
    await registry.register(WORKER, lifetime=2, sessions=running)
    activity = await registry.activity()
    assert (activity.active, activity.lifetime) == ({"chromium:aabbccdd": 1}, {"chromium:aabbccdd": 2})
    admitted = [await select(registry, f"n{number}") for number in range(4)]
    assert [selection is not None for selection in admitted] == [True, True, False, False]
    reply = await registry.heartbeat(WORKER, sessions=running)
    assert (reply.known, reply.repaired) == (True, 0)
    assert (await registry.snapshot()).outcomes == {"completed": 1}


async def test_connecting_to_nothing_says_where_without_the_password() -> None:
    registry = Registry("unix://user:secret@/nowhere/redis.sock", Settings(redis_timeout=0.05))
    with pytest.raises(RegistryUnavailable) as refusal:
        await registry.connected(attempts=2, delay_s=0.05)
    assert "/nowhere/redis.sock within 0.1 s (2 attempts)" in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_connecting_waits_for_a_redis_that_comes_late(own_redis: RedisServer) -> None:
    own_redis.kill()
    registry = Registry(own_redis.url, Settings(redis_timeout=BOUND_S))
    connecting = asyncio.create_task(registry.connected(attempts=2, delay_s=BOUND_S))
    await asyncio.sleep(0)
    own_redis.start()
    await connecting
    assert registry.client.connected
    await registry.close()


async def test_a_drain_that_comes_after_the_worker_has_left_leaves_nothing(
    registry: Registry, redis: RedisServer
) -> None:
    await registry.register(WORKER)
    assert await registry.send_drain("chromium", "aabbccdd")
    await registry.reap_worker("chromium", "aabbccdd", Reason(EndReason.WORKER_STOPPED))
    assert not await registry.send_drain("chromium", "aabbccdd")
    assert [key for key in redis.command("KEYS", "*") if "cmd" in key] == []


async def test_keys_live_as_long_as_the_retention_says(own_redis: RedisServer, clock: Clock) -> None:
    settings = Settings(
        redis_timeout=BOUND_S,
        redis_key_ttl=100,
        shutdown_command_ttl=200,
        session_history_ttl=300,
        session_history_max=2,
        stale_threshold=30,
        reaper_run_interval=103,
    )
    registry = Registry(own_redis.url, settings, clock)
    await registry.register(WORKER)
    await registry.send_drain("chromium", "aabbccdd")
    for number in range(3):
        await select(registry, f"s{number}")
    await end(registry, "s1", "failed", "why")

    def ttl(key: str) -> int:
        return int(own_redis.command("PTTL", key))

    assert 90_000 < ttl("worker:chromium:aabbccdd") <= 100_000
    assert 190_000 < ttl("worker:cmd:chromium:aabbccdd") <= 200_000
    assert 290_000 < ttl("session:s1") <= 300_000
    assert 390_000 < ttl("session:s2") <= 400_000
    assert own_redis.command("ZCARD", "sessions:index") == 2
    await registry.close()


# Listing


@pytest.fixture
async def many(registry: Registry, clock: Clock) -> Registry:
    """450 sessions, three in each moment; every second one has ended."""
    await registry.register(WORKER)
    for number in range(450):
        clock.now = 1_700_000_000 + number // 3
        session_id = f"{number:04}"
        assert await select(registry, session_id) is not None
        await end(registry, session_id, "completed" if number % 2 else "failed", "why")
        await registry.heartbeat(WORKER, sessions=[])
        await registry.client.call("HSET", f"{PREFIX}cluster:lifetime_connections", "chromium:aabbccdd", 0)
    return registry


async def test_pages_have_every_session_once_the_newest_first(many: Registry) -> None:
    found: list[str] = []
    page = await many.sessions(limit=7)
    while True:
        found += [session.session_id for session in page.sessions]
        if page.cursor is None:
            break
        page = await many.sessions(limit=7, cursor=page.cursor)
    assert found == [f"{number:04}" for number in reversed(range(450))]


async def test_new_sessions_do_not_shift_the_pages(many: Registry) -> None:
    first = await many.sessions(limit=3)
    await select(many, "newer")
    second = await many.sessions(limit=3, cursor=first.cursor)
    assert [session.session_id for session in second.sessions] == ["0446", "0445", "0444"]


async def test_filters_pass_what_matches(many: Registry) -> None:
    page = await many.sessions(status="completed", browser_type="chromium", worker_id="aabbccdd", limit=1000)
    assert [session.session_id for session in page.sessions] == [f"{n:04}" for n in reversed(range(1, 450, 2))]
    assert page.cursor is None
    assert (await many.sessions(worker_id="nobody")).sessions == []
    assert (await many.sessions(browser_type="firefox")).sessions == []


async def test_a_page_reads_only_so_many_records_and_the_next_one_goes_on(
    many: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.registry.registry.MOST_READ", 200)
    await many.client.call("HSET", f"{PREFIX}session:0100", "workerId", "rare")
    found, cursors = [], []
    page = await many.sessions(worker_id="rare")
    while page.cursor is not None:
        found.append([session.session_id for session in page.sessions])
        cursors.append(page.cursor)
        page = await many.sessions(worker_id="rare", cursor=page.cursor)
    assert found == [[], ["0100"]]
    assert [cursor.partition(":")[2] for cursor in cursors] == ["0250", "0050"]
    assert page.sessions == []


@pytest.mark.parametrize("history_max", [0, 2, 10_000])
async def test_who_lives_is_in_lists_whatever_has_begun_since(
    own_redis: RedisServer, clock: Clock, history_max: int
) -> None:
    """In the API's and in the command line's, where it stands as long ago as it began."""
    registry = Registry(own_redis.url, Settings(redis_timeout=BOUND_S, session_history_max=history_max), clock)
    await registry.register(replace(WORKER, slots=9))
    for kind, held in ((HeldAs.SESSION, "s"), (HeldAs.LEASE, "l")):
        for number in range(6):
            clock.now += number % 2  # two of them in the same moment
            limits = {"max_concurrent": 9, "max_lifetime": 50}
            assert await registry.select("chromium", **limits, session_id=f"{held}{number}", kind=kind)
            if number not in (0, 1, 4):
                ended = SessionEnd(SessionStatus.COMPLETED, Reason(EndReason.OTHER), clock.now)
                await registry.write(SessionUpdate(f"{held}{number}", end=ended, kind=kind))
    listed = {0: [4, 1, 0], 2: [5, 4, 1, 0], 10_000: [5, 4, 3, 2, 1, 0]}[history_max]
    page = await registry.sessions(limit=1)
    found = [each.session_id for each in page.sessions]
    while page.cursor is not None:
        page = await registry.sessions(limit=1, cursor=page.cursor)
        found += [each.session_id for each in page.sessions]
    assert found == [f"s{number}" for number in listed]
    pending = await registry.sessions(status="pending")
    assert [each.session_id for each in pending.sessions] == ["s4", "s1", "s0"]
    assert [each.session_id for each in (await registry.leases({"pending"})).sessions] == ["l4", "l1", "l0"]
    assert [each.session_id for each in latest_sessions(own_redis.url)] == found
    by_status = latest_sessions(own_redis.url, status="pending", limit=2)
    assert [each.session_id for each in by_status] == ["s4", "s1"]
    await registry.close()


async def test_the_command_line_lists_no_session_twice_while_others_begin(
    many: Registry, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, read = blocking_reads._pipeline, 0

    def while_others_begin(redis: Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
        nonlocal read
        read += 1
        own_redis.command("ZADD", f"{PREFIX}sessions:index", 1_800_000_000 + read, f"newer{read}")
        return pipeline(redis, commands)

    monkeypatch.setattr(blocking_reads, "_pipeline", while_others_begin)
    found = [each.session_id for each in latest_sessions(own_redis.url, PREFIX, limit=1000)]
    assert found == [f"{number:04}" for number in reversed(range(450))]
    assert read > 2


@pytest.mark.parametrize("cursor", ["x", "1:2:", "-inf:a", ":a", "\u0661:a"])
async def test_a_cursor_of_somebody_else_is_refused(registry: Registry, cursor: str) -> None:
    if cursor == "1:2:":
        assert (await registry.sessions(cursor=cursor)).sessions == []
    else:
        with pytest.raises(ValueError, match="not a cursor"):
            await registry.sessions(cursor=cursor)


@pytest.mark.parametrize(
    "asks",
    [
        lambda registry: registry.snapshot(),
        lambda registry: registry.sessions(),
        lambda registry: registry.leases({"running"}),
    ],
    ids=["snapshot", "sessions", "leases"],
)
async def test_a_call_that_asks_many_questions_has_one_deadline(
    asks: Callable[[Registry], Awaitable[object]], own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single answers may each be in time, and together never end."""

    async def never(*_arguments: object) -> None:
        await asyncio.Event().wait()

    own_redis.command("HSET", "cluster:active_connections", "chromium:a", 0)
    registry = Registry(own_redis.url, Settings(redis_timeout=0.05))
    monkeypatch.setattr(registry.client, "pipeline", never)
    async with asyncio.timeout(20):
        with pytest.raises(RegistryUnavailable, match=r"no reply within 0\.05 s"):
            await asks(registry)
    await registry.close()


async def test_a_worker_that_is_used_up_can_tell_who_serves_in_its_place(registry: Registry) -> None:
    await registry.register(WORKER, lifetime=48)
    spare = replace(WORKER, worker_id="spare", status="spare")
    await registry.register(spare)
    await select(registry, "s1")
    assert await registry.replacement("chromium", "aabbccdd") is None
    await select(registry, "s2")
    assert await registry.replacement("chromium", "aabbccdd") == "spare"
    reply = await registry.heartbeat(spare, sessions=[])
    assert (reply.known, reply.command) == (True, "serve")


async def test_a_registry_that_is_closed_as_soon_as_it_has_subscribed_ends(own_redis: RedisServer) -> None:
    """redis-py swallows a cancellation in the turn in which its connection comes to stand."""
    for turns in range(40):
        registry = Registry(own_redis.url, Settings(redis_timeout=BOUND_S))
        registry.subscribe_commands("chromium", "aabbccdd", lambda: None)
        await registry.client.wait_connected()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(BOUND_S):
            await registry.close()


async def test_a_look_at_a_session_is_on_its_record_and_makes_none(registry: Registry, clock: Clock) -> None:
    await registry.register(WORKER)
    await select(registry, "s1")
    clock.now += 5
    assert await registry.note_view("s1")
    found = await registry.session("s1")
    assert found is not None
    assert (found.viewed_at, found.as_json()["viewedAt"]) == (clock.now, clock.now)
    assert not await registry.note_view("s2")
    assert await registry.session("s2") is None


async def test_what_a_page_reads_are_the_live_sessions_and_the_newest(registry: Registry, clock: Clock) -> None:
    await registry.register(WORKER)
    before = await registry.activity()
    for number in range(3):
        clock.now += 1
        await select(registry, f"s{number}")
    activity = await registry.activity()
    assert activity != before
    assert (activity.active, activity.newest, activity.fields) == (
        {"chromium:aabbccdd": 3},
        "s2",
        ["chromium:aabbccdd"],
    )
    assert await registry.activity() == activity
    assert await end(registry, "s1", "failed", "hung")
    live, newest = await registry.session_ids(activity.fields, newest=2, at_most=10)
    assert (live, newest) == ({"chromium:aabbccdd": {"s0", "s2"}}, ["s2", "s1"])
    found = await registry.session_records(["s0", "s1", "gone"])
    assert {key: each.status for key, each in found.items()} == {"s0": "pending", "s1": "failed"}
    assert (await registry.activity()).outcomes == {"failed": 1}


async def test_who_looks_sees_sessions_that_came_with_leases_too(
    registry: Registry, own_redis: RedisServer, clock: Clock
) -> None:
    await registry.register(WORKER)
    await select(registry, "l1", kind=HeldAs.LEASE)
    assert await registry.write(SessionUpdate("s1", registry.now(), lease_id="l1"))
    live, newest = await registry.session_ids(["chromium:aabbccdd"], newest=9, at_most=10)
    assert (live, newest) == ({"chromium:aabbccdd": {"s1"}}, ["s1"])
    assert (await registry.session_records(newest))["s1"].extra["lease"] == "l1"
    later = SessionWatch(own_redis.url, PREFIX).look(clock.now + 100)  # which reads no session that began long ago
    assert [each.session_id for each in later.live] == ["s1"]


async def test_samples_of_the_page_are_kept_up_to_a_number_and_for_a_time(registry: Registry) -> None:
    assert await registry.samples() == []
    for number in range(5):
        await registry.keep_sample(f"[{number}]", at_most=3, ttl_s=3600)
    assert await registry.samples() == ["[2]", "[3]", "[4]"]
    assert 3000 < await registry.client.call("TTL", f"{PREFIX}page:history") <= 3600


async def test_a_process_that_connects_reads_neither_scripts_nor_versions_from_the_disk(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that is replaced has other scripts than the code of a master that runs on, and forks."""

    def fails(name: str) -> None:
        raise AssertionError(f"{name} is looked up")

    monkeypatch.setattr(paths, "resource_dir", fails)
    monkeypatch.setattr("pwgrid.registry.scripts.resource_dir", fails)
    monkeypatch.setattr("importlib.metadata.version", fails)
    registry = Registry(own_redis.url, Settings(redis_timeout=BOUND_S))
    try:
        await registry.connected(1, 0)
        found = await registry.select("chromium", max_concurrent=1, max_lifetime=1, session_id="0123456789abcdef")
        assert found is None
    finally:
        await registry.close()
