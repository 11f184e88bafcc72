"""The connection to Redis: pipelines, deadlines, losses and returns."""

import asyncio
import gc
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.backoff import NoBackoff
from structlog.testing import capture_logs

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.registry import redis_client
from pwgrid.registry.records import WorkerRecord
from pwgrid.registry.redis_client import RedisClient, Subscription, keep_connected
from pwgrid.registry.registry import Registry
from pwgrid.registry.scripts import Script, load
from pwgrid.settings.model import Settings
from tests.support.redis import RedisServer
from tests.support.redis_relay import RedisRelay

BOUND_S = 20.0
AT_ONCE_S = 1.0
"""What needs no answer of Redis, on a busy machine."""

Connect = Callable[..., RedisClient]
SET_FIELDS = load("set_fields")


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients, and closes them at the end."""
    clients: list[RedisClient] = []

    def make(
        server: RedisServer | RedisRelay, timeout_s: float = BOUND_S, scripts: tuple[Script, ...] = ()
    ) -> RedisClient:
        url = server.url if isinstance(server, RedisServer) else f"redis://127.0.0.1:{server.port}/0"
        clients.append(RedisClient(url, timeout_s=timeout_s, scripts=scripts))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def relay(redis: RedisServer) -> AsyncIterator[RedisRelay]:
    relay = RedisRelay(redis.socket_path)
    await relay.start()
    yield relay
    await relay.close()


async def connected(client: RedisClient) -> None:
    async with asyncio.timeout(BOUND_S):
        await client.wait_connected()


async def lost(client: RedisClient) -> None:
    async with asyncio.timeout(BOUND_S):
        while client.connected:
            await asyncio.sleep(0)


async def reason(client: RedisClient, text: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while text not in client.reason:
            await asyncio.sleep(0.01)


# Calls


async def test_the_first_call_waits_for_the_connection(redis: RedisServer, connect: Connect) -> None:
    assert await connect(redis).call("PING") == "PONG"


async def test_calls_side_by_side_get_their_own_replies(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    texts = [f"text {number}" for number in range(500)]
    assert await asyncio.gather(*(client.call("ECHO", text) for text in texts)) == texts


async def test_a_pipeline_gives_all_replies_in_order(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    assert await client.pipeline([]) == []
    assert await client.pipeline([("SET", "a", 1), ("INCR", "a"), ("GET", "a"), ("GET", "b")]) == ["OK", 2, "2", None]


async def test_a_refused_command_raises_and_the_connection_stays(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    with pytest.raises(RegistryError, match="wrong kind of value"):
        await client.pipeline([("SET", "a", "x"), ("HGETALL", "a"), ("PING",)])
    assert await client.call("GET", "a") == "x"


async def test_a_refusal_is_told_to_nobody_else_of_its_pipeline(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    await client.call("SET", "a", "x")
    calls = (client.call("GET", "a"), client.call("HGETALL", "a"), client.call("GET", "a"))
    first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == ("x", "x")
    assert isinstance(refused, RegistryError)


async def test_a_cancelled_caller_does_not_shift_the_replies(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    await client.call("PING")
    calls = [asyncio.create_task(client.call("ECHO", str(number))) for number in range(20)]
    await asyncio.sleep(0)  # all are asked, none is answered
    for call in calls[::3]:
        call.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    for number, reply in enumerate(replies):
        assert isinstance(reply, asyncio.CancelledError) if number % 3 == 0 else reply == str(number)
    assert await client.call("ECHO", "next") == "next"


async def test_a_caller_that_is_cancelled_under_way_does_not_shift_the_replies(
    relay: RedisRelay, connect: Connect
) -> None:
    client = connect(relay)
    await client.call("PING")
    relay.open.clear()
    before = len(relay.written)
    calls = [asyncio.create_task(client.call("ECHO", str(number))) for number in range(20)]
    while len(relay.written) == before:
        await asyncio.sleep(0)
    for call in calls[::3]:
        call.cancel()
    relay.open.set()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    for number, reply in enumerate(replies):
        assert isinstance(reply, asyncio.CancelledError) if number % 3 == 0 else reply == str(number)
    assert await client.call("ECHO", "next") == "next"


async def test_what_is_no_utf_8_is_read_all_the_same(redis: RedisServer, connect: Connect) -> None:
    """Other programs may write into the same Redis."""
    redis.command("EVAL", "redis.call('HSET', 'h', 'name', '\\255')", 0)
    client = connect(redis)
    returns: list[int] = []
    client.on_connect(lambda: returns.append(1))
    assert await client.call("HGETALL", "h") == {"name": "\ufffd"}
    assert returns == [1]


# Pipelines


async def test_calls_of_one_turn_are_one_write(relay: RedisRelay, connect: Connect) -> None:
    client = connect(relay)
    await client.call("PING")
    relay.written.clear()
    await asyncio.gather(*(client.call("ECHO", str(number)) for number in range(50)))
    (written,) = relay.written
    assert written.count(b"ECHO") == 50
    assert b"MULTI" not in written


async def test_calls_gather_while_a_pipeline_is_under_way_and_go_as_the_next(
    relay: RedisRelay, connect: Connect
) -> None:
    client = connect(relay)
    await client.call("PING")
    relay.open.clear()
    relay.written.clear()
    calls = [asyncio.create_task(client.call("ECHO", "first"))]
    while not relay.written:
        await asyncio.sleep(0)
    for number in range(50):
        calls.append(asyncio.create_task(client.call("ECHO", str(number))))
        await asyncio.sleep(0)
    relay.open.set()
    assert await asyncio.gather(*calls) == ["first", *map(str, range(50))]
    assert [each.count(b"ECHO") for each in relay.written] == [1, 50]


async def test_a_script_is_one_command(relay: RedisRelay, connect: Connect) -> None:
    client = connect(relay, scripts=(SET_FIELDS,))
    await client.call("PING")
    relay.written.clear()
    assert await client.run(SET_FIELDS, ("worker:chromium:a",), ("", "", "status", "draining")) == 0
    (written,) = relay.written
    assert b"EVALSHA" in written
    assert b"SCRIPT" not in written


async def test_forgotten_scripts_are_sent_once_for_a_whole_pipeline(
    relay: RedisRelay, redis: RedisServer, connect: Connect
) -> None:
    release = load("release")
    client = connect(relay, scripts=(SET_FIELDS, release))
    await client.call("PING")
    redis.command("SCRIPT", "FLUSH")
    relay.written.clear()
    runs = [
        client.run(SET_FIELDS, (f"worker:chromium:{number}",), ("", "", "status", "draining")) for number in range(50)
    ]
    assert await asyncio.gather(client.call("ECHO", "a"), *runs, client.call("ECHO", "b")) == ["a", *[0] * 50, "b"]
    first, second = relay.written
    assert (first.count(b"EVALSHA"), first.count(b"ECHO"), first.count(b"SCRIPT")) == (50, 2, 0)
    assert (second.count(b"EVALSHA"), second.count(b"ECHO"), second.count(b"SCRIPT")) == (50, 0, 2)
    assert redis.command("SCRIPT", "EXISTS", SET_FIELDS.digest) == [1]


async def test_scripts_are_there_after_a_restart(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis, scripts=(SET_FIELDS,))
    await client.call("PING")
    own_redis.kill()
    own_redis.start()
    while own_redis.command("SCRIPT", "EXISTS", SET_FIELDS.digest) == [0]:
        await asyncio.sleep(0.01)
    await connected(client)


async def test_a_script_that_fails_raises(redis: RedisServer, connect: Connect) -> None:
    release = load("release")
    client = connect(redis, scripts=(release,))
    with pytest.raises(RegistryError, match="Redis refused"):
        await client.run(release, ("cluster:active_connections",), ("s1", "pending", "", 1))


# Refusals that pass


async def test_what_redis_may_take_later_is_no_refusal_for_good(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)

    async def replies() -> list[Any]:
        plain = client.call("SET", "a", 1)
        of_a_script = client.call("EVAL", "return redis.call('SET', KEYS[1], 1)", 1, "a")
        return await asyncio.gather(plain, of_a_script, return_exceptions=True)

    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    for refusal in await replies():
        assert type(refusal) is RegistryUnavailable, refusal
        assert "command not allowed when used memory > 'maxmemory'" in str(refusal)
    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    own_redis.command("REPLICAOF", "127.0.0.1", "1")
    for refusal in await replies():
        assert type(refusal) is RegistryUnavailable, refusal
        assert "read only replica" in str(refusal)
    own_redis.command("REPLICAOF", "NO", "ONE")
    assert await replies() == ["OK", "OK"]


async def test_a_busy_redis_is_no_refusal_for_good(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    await client.call("CONFIG", "SET", "lua-time-limit", "1")
    busy = asyncio.create_task(asyncio.to_thread(endless_script, own_redis))
    refusal: object = None
    async with asyncio.timeout(BOUND_S):
        while refusal is None:
            (refusal,) = await asyncio.gather(client.call("SET", "a", 1), return_exceptions=True)
            refusal = None if refusal == "OK" else refusal
        assert type(refusal) is RegistryUnavailable, refusal
        assert "BUSY" in str(refusal)
        assert await client.call("SCRIPT", "KILL") == "OK"
        await busy
    assert await client.call("SET", "a", 1) == "OK"


def endless_script(redis: RedisServer) -> None:
    with pytest.raises(Exception, match="killed"):
        redis.command("EVAL", "while true do end", 0)


async def test_a_redis_that_loads_its_data_is_away(relay: RedisRelay, connect: Connect) -> None:
    relay.refuse[b"SCRIPT"] = b"-LOADING Redis is loading the dataset in memory\r\n"
    client = connect(relay, scripts=(SET_FIELDS,))
    with pytest.raises(RegistryUnavailable, match=r"is away: .*loading the dataset"):
        await client.call("PING")
    relay.refuse.clear()
    await connected(client)
    assert await client.call("PING") == "PONG"


# What is no Redis


async def fault(client: RedisClient, kind: FaultKind) -> None:
    async with asyncio.timeout(BOUND_S):
        while client.fault is None or client.fault.kind is not kind:
            await asyncio.sleep(0.01)


async def test_what_does_not_load_scripts_as_redis_does_is_away(relay: RedisRelay, connect: Connect) -> None:
    relay.refuse[b"SCRIPT"] = b"+OK\r\n"
    client = connect(relay, scripts=(SET_FIELDS,))
    await fault(client, FaultKind.NO_REDIS)
    with pytest.raises(RegistryUnavailable, match="what answers there is no Redis") as away:
        await client.call("PING")
    assert away.value.fault == client.fault
    relay.refuse.clear()
    await connected(client)
    assert await client.run(SET_FIELDS, ("none",), ("", "", "a", "b")) == 0


async def test_a_greeting_that_makes_no_sense_is_not_taken_for_a_good_one_at_the_next_attempt(
    relay: RedisRelay, connect: Connect
) -> None:
    """redis-py leaves such a connection open in its pool, as if it had greeted."""
    relay.refuse[b"HELLO"] = b"+OK\r\n"
    client = RedisClient(f"redis://:secret@127.0.0.1:{relay.port}/0", timeout_s=BOUND_S)
    async with asyncio.timeout(BOUND_S):
        while relay.connects < 3:
            await asyncio.sleep(0.01)
    assert not client.connected
    await fault(client, FaultKind.NO_REDIS)
    assert "secret" not in client.reason
    assert len(relay._clients) <= 1
    await client.close()


async def test_a_reply_that_cannot_be_read_ends_the_connection(relay: RedisRelay) -> None:
    registry = Registry(f"redis://127.0.0.1:{relay.port}/0", Settings(redis_timeout=BOUND_S))
    assert (await registry.snapshot()).write_fault is None
    connects = relay.connects
    relay.refuse[b"EVALSHA"] = b"+OK\r\n"
    with pytest.raises(RegistryUnavailable, match="what answers there is no Redis") as refused:
        await registry.heartbeat(WorkerRecord("chromium", "a", "ws://x"), sessions=())
    assert refused.value.fault == RedisFault(FaultKind.NO_REDIS, "its answer makes no sense")
    relay.refuse.clear()
    await lost(registry.client)
    await connected(registry.client)
    assert relay.connects == connects + 1
    assert not (await registry.heartbeat(WorkerRecord("chromium", "a", "ws://x"), sessions=())).known
    await registry.close()


async def test_a_subscription_that_is_refused_is_said_once(own_redis: RedisServer) -> None:
    own_redis.command("ACL", "SETUSER", "grid", "reset", "on", ">p", "+@all", "~*", "resetchannels")
    with capture_logs() as logs:
        subscription = Subscription(
            own_redis.url.replace("://", "://grid:p@"),
            timeout_s=BOUND_S,
            channels=["a"],
            on_message=lambda _: None,
            on_subscribed=lambda: None,
        )
        async with asyncio.timeout(BOUND_S):
            while own_redis.command("INFO", "stats")["total_connections_received"] < 8:
                await asyncio.sleep(0.02)
        await subscription.close()
    assert [each["event"] for each in logs] == ["redis_subscription_refused"]
    assert "its user may not do all that the grid does (NOPERM" in logs[0]["reason"]


# Losses


async def test_a_reply_that_does_not_come_ends_all_calls_and_the_connection(
    own_redis: RedisServer, connect: Connect
) -> None:
    client = connect(own_redis, timeout_s=2)
    await client.call("PING")
    own_redis.signal(signal.SIGSTOP)
    replies = await asyncio.gather(*(client.call("ECHO", str(n)) for n in range(3)), return_exceptions=True)
    assert all(isinstance(reply, RegistryUnavailable) for reply in replies)
    assert "no reply within 2 s" in str(replies[0])
    own_redis.signal(signal.SIGCONT)
    await connected(client)
    # The late replies of the old connection are nobody's.
    assert await client.call("ECHO", "new") == "new"


async def test_who_asks_behind_a_slow_pipeline_waits_no_longer_than_the_deadline_either(
    relay: RedisRelay, connect: Connect
) -> None:
    client = connect(relay, timeout_s=1)
    await client.call("PING")
    relay.open.clear()
    relay.written.clear()
    first = asyncio.create_task(client.call("ECHO", "first"))
    while not relay.written:
        await asyncio.sleep(0)
    began = time.monotonic()
    replies = await asyncio.gather(first, client.call("ECHO", "second"), return_exceptions=True)
    assert time.monotonic() - began < 1 + AT_ONCE_S
    assert all(isinstance(reply, RegistryUnavailable) for reply in replies)
    relay.open.set()


async def test_nobody_waits_for_a_redis_that_is_known_to_be_frozen(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis, timeout_s=1)
    await client.call("PING")
    own_redis.signal(signal.SIGSTOP)
    with pytest.raises(RegistryUnavailable, match="no reply within 1 s"):
        await client.call("PING")
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(
            RegistryUnavailable,
            match=r"Redis at unix:///.*redis\.sock is away: it did not answer in time \(no reply within 1 s\)",
        ):
            await client.call("PING")
    assert time.monotonic() - began < AT_ONCE_S


async def test_after_a_frozen_redis_wakes_calls_succeed_again(
    own_redis: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "_BACKOFF", NoBackoff())
    client = connect(own_redis, timeout_s=1.0)
    assert await client.call("PING") == "PONG"
    own_redis.signal(signal.SIGSTOP)
    try:
        with pytest.raises(RegistryUnavailable, match="no reply within"):
            await client.call("PING")
        await reason(client, "it did not answer")  # to an attempt to connect again
    finally:
        own_redis.signal(signal.SIGCONT)
    await connected(client)
    # Later Pythons get over a cancellation that is never taken back; up to 3.11.3 it ends the task that reconnects.
    assert {task.get_name(): task.cancelling() for task in asyncio.all_tasks()}["RedisClient"] == 0


async def test_after_a_restart_of_redis_calls_succeed_again(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    returns: list[int] = []
    client.on_connect(lambda: returns.append(1))
    await client.call("SET", "a", 1)
    own_redis.kill()
    with pytest.raises(RegistryUnavailable):
        await client.call("GET", "a")
    await lost(client)
    with pytest.raises(RegistryUnavailable, match="is away"):
        await client.call("PING")
    own_redis.start()
    await connected(client)
    assert await client.call("GET", "a") is None
    assert len(returns) == 2


async def test_a_loss_is_noticed_although_nobody_asks_anything(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    returned = asyncio.Event()
    was_connected: list[bool] = []
    await client.call("PING")
    client.on_connect(returned.set)
    client.on_lost(lambda: was_connected.append(client.connected))
    own_redis.kill()
    await lost(client)
    assert was_connected == [False]
    own_redis.start()
    async with asyncio.timeout(BOUND_S):
        await returned.wait()


async def test_calls_that_wait_when_redis_dies_fail_at_once(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    blocked = asyncio.create_task(client.call("BLPOP", "nothing", 0))
    while own_redis.command("INFO", "clients")["blocked_clients"] != 1:
        await asyncio.sleep(0)
    behind = asyncio.create_task(client.call("PING"))
    own_redis.kill()
    async with asyncio.timeout(BOUND_S / 2):
        for call in (blocked, behind):
            with pytest.raises(RegistryUnavailable):
                await call


async def test_a_reply_that_nobody_asked_for_ends_the_connection(relay: RedisRelay, connect: Connect) -> None:
    client = connect(relay)
    await client.call("PING")
    relay.inject(b"+odd\r\n")
    await lost(client)
    await connected(client)
    assert await client.call("ECHO", "mine") == "mine"


async def test_one_reply_too_many_is_nobody_s(relay: RedisRelay, connect: Connect) -> None:
    client = connect(relay)
    await client.call("PING")
    relay.refuse[b"ECHO"] = b"$4\r\nmine\r\n$3\r\nodd\r\n"
    assert await client.call("ECHO", "mine") == "mine"
    relay.refuse.clear()
    await lost(client)
    await connected(client)
    assert await client.call("ECHO", "mine") == "mine"


async def test_what_is_no_redis_is_unavailable() -> None:
    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RedisClient(f"redis://127.0.0.1:{port}/0", timeout_s=BOUND_S, scripts=(SET_FIELDS,))
    with pytest.raises(RegistryUnavailable, match=rf"redis://127\.0\.0\.1:{port}/0 is away"):
        await client.call("PING")
    await client.close()
    server.close()
    await server.wait_closed()


async def test_a_redis_that_breaks_each_connection_is_tried_and_complained_about_ever_more_rarely(
    relay: RedisRelay, connect: Connect
) -> None:
    """It greets, so each time there is a connection to lose."""
    relay.break_at = b"ECHO"
    client = connect(relay)
    client.on_connect(lambda: asyncio.get_running_loop().call_soon(asyncio.ensure_future, breaking()))

    async def breaking() -> None:
        with pytest.raises(RegistryUnavailable):
            await client.call("ECHO", "and break")

    with capture_logs() as logs:
        await asyncio.sleep(3)
    # Pauses of 20 ms at the least that double up to 1 s: 0.02 + 0.04 + … + 0.32 + 0.5 s and more.
    assert 4 <= relay.connects <= 12
    assert 4 <= len([each for each in logs if each["event"] == "redis_connection_lost"]) <= 12
    relay.break_at = b"\0never\0"


@pytest.mark.parametrize(("healthy_s", "last_pause_s"), [(0.0, 0.02), (BOUND_S, 1.0)])
async def test_pauses_begin_anew_after_a_connection_that_has_lasted(
    monkeypatch: pytest.MonkeyPatch, healthy_s: float, last_pause_s: float
) -> None:
    monkeypatch.setattr(redis_client, "HEALTHY_S", healthy_s)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3_000:  # more than powers of two that a float can hold
            raise EOFError

    async def live() -> None:
        """Lost at once."""

    monkeypatch.setattr("asyncio.sleep", pause)
    with pytest.raises(EOFError):
        await keep_connected(live)
    assert last_pause_s / 2 <= pauses[-1] <= max(pauses) <= last_pause_s


async def test_a_closed_client_refuses(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    await client.call("PING")
    await client.close()
    await client.close()
    with pytest.raises(RegistryUnavailable, match="closed"):
        await client.call("PING")


async def test_who_waits_when_the_client_is_closed_is_told(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    await client.call("PING")
    own_redis.signal(signal.SIGSTOP)
    call = asyncio.create_task(client.call("PING"))
    await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(RegistryUnavailable, match="closed"):
        await call


async def test_a_connection_that_is_lost_while_scripts_are_loaded_leaves_no_complaint(
    relay: RedisRelay, connect: Connect
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    relay.break_at = b"SCRIPT"
    client = connect(relay, scripts=(SET_FIELDS,))
    with pytest.raises(RegistryUnavailable, match="is away"):
        await client.call("PING")
    relay.break_at = b"\0never\0"
    await connected(client)
    assert await client.call("PING") == "PONG"
    gc.collect()
    assert complaints == []


async def test_nothing_is_left_behind(own_redis: RedisServer) -> None:
    """No task, no socket, and no complaint about an exception that nobody fetched."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    client = RedisClient(own_redis.url, timeout_s=0.5, scripts=(SET_FIELDS,))
    heard = asyncio.Event()
    subscription = Subscription(
        own_redis.url, timeout_s=0.5, channels=["a"], on_message=lambda _: None, on_subscribed=heard.set
    )
    await client.call("PING")
    await heard.wait()
    for end in (signal.SIGSTOP, signal.SIGKILL):
        calls = [asyncio.create_task(client.call("PING")) for _ in range(10)]
        await asyncio.sleep(0.01)
        own_redis.signal(end)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.2)
    await client.close()
    await subscription.close()
    del client, subscription, calls
    gc.collect()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert complaints == []


# Subscription


@pytest.fixture
async def inbox(own_redis: RedisServer) -> AsyncIterator[asyncio.Queue[str]]:
    """The channels of the messages that a subscription to `a` and `b` hears; "" when it has subscribed."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    subscription = Subscription(
        own_redis.url,
        timeout_s=BOUND_S,
        channels=["a", "b"],
        on_message=queue.put_nowait,
        on_subscribed=lambda: queue.put_nowait(""),
    )
    yield queue
    await subscription.close()


async def heard(inbox: asyncio.Queue[str]) -> str:
    async with asyncio.timeout(BOUND_S):
        return await inbox.get()


async def test_a_subscription_hears_its_channels(own_redis: RedisServer, inbox: asyncio.Queue[str]) -> None:
    assert await heard(inbox) == ""
    assert own_redis.command("PUBLISH", "a", "one") == 1
    assert own_redis.command("PUBLISH", "b", "two") == 1
    assert own_redis.command("PUBLISH", "c", "three") == 0
    assert [await heard(inbox), await heard(inbox)] == ["a", "b"]


async def test_a_subscription_is_renewed_and_says_so(own_redis: RedisServer, inbox: asyncio.Queue[str]) -> None:
    assert await heard(inbox) == ""
    own_redis.kill()
    own_redis.start()
    assert await heard(inbox) == ""
    assert own_redis.command("PUBLISH", "a", "one") == 1
    assert await heard(inbox) == "a"


async def test_a_subscription_notices_a_redis_that_is_silent(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.registry.redis_client.CHECK_INTERVAL_S", 0.05)
    subscribed: asyncio.Queue[None] = asyncio.Queue()
    subscription = Subscription(
        own_redis.url,
        timeout_s=2,
        channels=["a"],
        on_message=lambda _: None,
        on_subscribed=lambda: subscribed.put_nowait(None),
    )
    with capture_logs() as logs:
        async with asyncio.timeout(BOUND_S):
            await subscribed.get()
            await asyncio.sleep(0.5)
            assert (logs, subscribed.qsize()) == ([], 0)  # it was asked several times, and answered
            own_redis.signal(signal.SIGSTOP)
            while not logs:
                await asyncio.sleep(0.01)
            own_redis.signal(signal.SIGCONT)
            await subscribed.get()
    await subscription.close()
    assert (logs[0]["event"], logs[0]["reason"]) == (
        "redis_subscription_lost",
        str(RedisFault(FaultKind.SILENT, "no answer within 2 s")),
    )
