"""A Redis that greets and then talks nonsense: the grid serves on, says so now and then, and recovers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.grid import WITHOUT_SPARES, Grid, eventually_async, running_grid
from tests.support.raw import session
from tests.support.redis import RedisServer, own_redis
from tests.support.redis_relay import RedisRelay

__all__ = ["own_redis"]

FOR_S = 9.0
LINES_A_SECOND = 10
"""Of all processes together: a proxy and two workers, each of which tries once in half a second at the most."""


@pytest_asyncio.fixture(loop_scope="session")
async def relay(own_redis: RedisServer) -> AsyncIterator[RedisRelay]:
    relay = RedisRelay(own_redis.socket_path)
    await relay.start()
    yield relay
    await relay.close()


@pytest.mark.parametrize(
    "nonsense",
    [b"?nonsense\r\n", b"*-5\r\n$x\r\n", b"\0" * 100, b"+fine\r\n" * 1000],
    ids=["an unknown type", "lengths that are none", "zeros", "a thousand replies"],
)
async def test_a_redis_that_breaks_the_protocol_is_complained_about_now_and_then(
    relay: RedisRelay, nonsense: bytes
) -> None:
    environment = {**WITHOUT_SPARES, "REDIS_URL": f"redis://127.0.0.1:{relay.port}/0"}
    running = running_grid("--chromium", "2", environment=environment, fake=True)
    grid: Grid = await asyncio.to_thread(running.__enter__)
    try:
        began, connects = len(grid.output()), relay.connects
        relay.refuse = {b"EVALSHA": nonsense, b"SUBSCRIBE": nonsense}
        relay.drop()
        await asyncio.sleep(FOR_S)
        lines = grid.output()[began:].splitlines()
        assert len(lines) <= FOR_S * LINES_A_SECOND, Counter(line.split("] ")[1].split(" ")[0] for line in lines)
        assert relay.connects - connects <= FOR_S * LINES_A_SECOND
        assert "redis_connection_lost" in "".join(lines)
        assert "Traceback" not in "".join(lines)
        (await asyncio.to_thread(session, grid.port)).close()
        relay.refuse = {}
        await eventually_async(lambda: grid.get("/v1/status")[0] == 200, "Redis answers again")
        await eventually_async(lambda: len(grid.redis("KEYS", "worker:*")) == 2, "both workers are registered")
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
