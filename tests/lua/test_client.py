"""The connection to Redis: order, deadlines, losses and returns."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable

import pytest

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.registry.blocking import BlockingClient
from pwgrid.registry.client import RedisClient
from pwgrid.registry.redis_address import parse_url
from pwgrid.registry.resp import RegistryError
from pwgrid.registry.scripts import Script, load
from pwgrid.registry.subscriber import Subscriber
from tests.support.redis import RedisServer

BOUND_S = 20.0

Connect = Callable[..., RedisClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients, and closes them at the end."""
    clients: list[RedisClient] = []

    def make(server: RedisServer, timeout_s: float = BOUND_S, scripts: tuple[Script, ...] = ()) -> RedisClient:
        clients.append(RedisClient(parse_url(server.url), timeout_s=timeout_s, scripts=scripts))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def reconnected(client: RedisClient) -> None:
    async with asyncio.timeout(BOUND_S):
        await client.wait_connected()


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


async def test_a_cancelled_caller_does_not_shift_the_replies(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    await client.call("PING")
    calls = [asyncio.create_task(client.call("ECHO", str(number))) for number in range(20)]
    await asyncio.sleep(0)  # all are sent, none is answered
    for call in calls[::3]:
        call.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    for number, reply in enumerate(replies):
        assert isinstance(reply, asyncio.CancelledError) if number % 3 == 0 else reply == str(number)
    assert await client.call("ECHO", "next") == "next"


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
    await reconnected(client)
    # The late replies of the old connection are nobody's.
    assert await client.call("ECHO", "new") == "new"


async def test_after_a_restart_of_redis_calls_succeed_again(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    returns: list[int] = []
    client.on_connect(lambda: returns.append(1))
    await client.call("SET", "a", 1)
    own_redis.kill()
    with pytest.raises(RegistryUnavailable):
        await client.call("GET", "a")
    while client.connected:
        await asyncio.sleep(0)
    with pytest.raises(RegistryUnavailable, match="is away"):
        await client.call("PING")
    own_redis.start()
    await reconnected(client)
    assert await client.call("GET", "a") is None
    assert len(returns) == 2


async def test_calls_that_wait_when_redis_dies_fail_at_once(own_redis: RedisServer, connect: Connect) -> None:
    client = connect(own_redis)
    blocked = asyncio.create_task(client.call("BLPOP", "nothing", 0))
    while "blocked_clients:1" not in own_redis.command("INFO", "clients"):
        await asyncio.sleep(0)
    own_redis.kill()
    async with asyncio.timeout(BOUND_S / 2):
        with pytest.raises(RegistryUnavailable):
            await blocked


async def test_a_forgotten_script_is_sent_again(redis: RedisServer, connect: Connect) -> None:
    script = load("drain")
    client = connect(redis, scripts=(script,))
    await client.call("PING")
    assert redis.command("SCRIPT", "EXISTS", script.digest) == [1]
    redis.command("SCRIPT", "FLUSH")
    assert await client.run(script, ("worker:chromium:a",), ()) == 0
    assert redis.command("SCRIPT", "EXISTS", script.digest) == [1]


async def test_scripts_are_there_after_a_restart(own_redis: RedisServer, connect: Connect) -> None:
    script = load("drain")
    client = connect(own_redis, scripts=(script,))
    await client.call("PING")
    own_redis.kill()
    own_redis.start()
    while own_redis.command("SCRIPT", "EXISTS", script.digest) == [0]:
        await asyncio.sleep(0.01)
    await reconnected(client)


async def test_a_script_that_fails_raises(redis: RedisServer, connect: Connect) -> None:
    with pytest.raises(RegistryError, match="Redis refused"):
        await connect(redis).run(load("release"), ("cluster:active_connections",), ("s1", "pending", "", 1))


async def test_a_closed_client_refuses(redis: RedisServer, connect: Connect) -> None:
    client = connect(redis)
    await client.call("PING")
    await client.close()
    await client.close()
    with pytest.raises(RegistryUnavailable, match="closed"):
        await client.call("PING")


async def test_password_and_database_of_the_url_are_used(own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "requirepass", "p@ss:word")
    url = f"unix://:p%40ss%3Aword@{own_redis.socket_path}?db=3"
    client = RedisClient(parse_url(url), timeout_s=BOUND_S)
    await client.call("SET", "here", 1)
    blocking = BlockingClient(url)
    assert blocking.command("DBSIZE") == 1
    blocking.command("SELECT", 0)
    assert blocking.command("DBSIZE") == 0
    blocking.close()
    await client.close()
    wrong = RedisClient(parse_url(url.replace("word", "wrong")), timeout_s=BOUND_S)
    with pytest.raises(RegistryUnavailable) as refusal:
        await wrong.call("PING")
    assert "refused AUTH" in str(refusal.value)
    assert "p@ss" not in str(refusal.value)
    await wrong.close()


async def test_what_is_no_redis_is_unavailable() -> None:
    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RedisClient(parse_url(f"redis://127.0.0.1:{port}"), timeout_s=BOUND_S, scripts=(load("drain"),))
    with pytest.raises(RegistryUnavailable, match=rf"redis://127\.0\.0\.1:{port}/0 is away"):
        await client.call("PING")
    await client.close()
    server.close()
    await server.wait_closed()


# Subscriber


@pytest.fixture
async def inbox(own_redis: RedisServer) -> AsyncIterator[asyncio.Queue[tuple[str, str]]]:
    """What a subscriber to channel `a` and pattern `p*` hears; ("", "") for each subscription."""
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    subscriber = Subscriber(
        parse_url(own_redis.url),
        timeout_s=BOUND_S,
        on_message=lambda channel, message: queue.put_nowait((channel, message)),
        on_subscribed=lambda: queue.put_nowait(("", "")),
        channels=["a"],
        patterns=["p*"],
    )
    yield queue
    await subscriber.close()


async def heard(inbox: asyncio.Queue[tuple[str, str]]) -> tuple[str, str]:
    async with asyncio.timeout(BOUND_S):
        return await inbox.get()


async def test_a_subscriber_hears_channels_and_patterns(
    own_redis: RedisServer, inbox: asyncio.Queue[tuple[str, str]]
) -> None:
    assert await heard(inbox) == ("", "")
    assert own_redis.command("PUBLISH", "a", "one") == 1
    assert own_redis.command("PUBLISH", "pattern", "two") == 1
    assert own_redis.command("PUBLISH", "b", "three") == 0
    assert [await heard(inbox), await heard(inbox)] == [("a", "one"), ("pattern", "two")]


async def test_a_subscriber_subscribes_again_and_says_so(
    own_redis: RedisServer, inbox: asyncio.Queue[tuple[str, str]]
) -> None:
    assert await heard(inbox) == ("", "")
    own_redis.kill()
    own_redis.start()
    assert await heard(inbox) == ("", "")
    assert own_redis.command("PUBLISH", "a", "one") == 1
    assert await heard(inbox) == ("a", "one")


async def test_a_subscriber_notices_a_redis_that_is_silent(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.registry.subscriber.CHECK_INTERVAL_S", 0.05)
    subscribed: asyncio.Queue[None] = asyncio.Queue()
    subscriber = Subscriber(
        parse_url(own_redis.url),
        timeout_s=2,
        on_message=lambda channel, message: None,
        on_subscribed=lambda: subscribed.put_nowait(None),
        channels=["a"],
    )
    async with asyncio.timeout(BOUND_S):
        await subscribed.get()
        own_redis.signal(signal.SIGSTOP)
        assert subscriber._protocol is not None
        assert "no answer" in await asyncio.shield(subscriber._protocol.closed)
        own_redis.signal(signal.SIGCONT)
        await subscribed.get()
    await subscriber.close()
