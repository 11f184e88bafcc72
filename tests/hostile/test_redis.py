"""A Redis that greets and then talks nonsense: the grid serves on, says so now and then, and recovers. Who can write
to it chooses workers, and no socket."""

import asyncio
import contextlib
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.raw import connect, head, read_all, session
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


@contextlib.contextmanager
def listening(path: Path, kind: socket.SocketKind) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))
        sock.listen()
        sock.setblocking(False)
        yield sock


def test_a_worker_s_id_that_is_a_path_leads_to_no_socket() -> None:
    """In a session's record for the live view, in a worker's endpoint and in its key for a connect, beside sockets that
    have the names of the grid's own."""
    environment = {**WITHOUT_SPARES, "HEARTBEAT_INTERVAL": "9", "WORKER_SELECT_TIMEOUT": "1"}
    with contextlib.ExitStack() as stack:
        grid = stack.enter_context(running_grid("--chromium", "1", environment=environment, fake=True))
        evil = grid.runtime.parent / "evil"
        evil.mkdir()
        stack.callback(shutil.rmtree, evil)
        lives = stack.enter_context(listening(evil / "live.sock", socket.SOCK_STREAM))
        handoffs = stack.enter_context(listening(evil / "handoff.sock", socket.SOCK_SEQPACKET))
        up = stack.enter_context(listening(grid.runtime / "handoff.sock", socket.SOCK_SEQPACKET))
        (worker,) = (key.decode() for key in grid.redis("KEYS", "worker:chromium:*"))
        with session(grid.port):
            (key,) = eventually(lambda: grid.redis("KEYS", "session:*"), "it is on record")
            eventually(lambda: grid.redis("HGET", key, "status") == b"running", "it runs")
            grid.redis("HSET", key, "workerId", "../../evil")
            with connect(grid.port) as view:
                view.sendall(head(target=f"/v1/live/{key.decode().partition(':')[2]}"))
                assert b"the worker of this session cannot show it now" in read_all(view)
        for endpoint in (
            "../../evil",
            "ws://x/playwright/chromium/...secret",
            "ws://x/playwright/chromium/other.secret",
        ):
            grid.redis("HSET", worker, "wsEndpoint", endpoint)
            logged = len(grid.output())
            session(grid.port).close()  # by the worker's key
            assert grid.output()[logged:].count("offer_failed") <= 1
        grid.redis("RENAME", worker, "worker:chromium:../../evil")
        grid.redis("HSET", "cluster:active_connections", "chromium:../../evil", "0")
        with connect(grid.port) as client:
            client.sendall(head())
            assert read_all(client).startswith(b"HTTP/1.1 503 ")
        assert "../../evil' is no worker's id" in grid.output()
        for sock in (lives, handoffs, up):
            with pytest.raises(BlockingIOError):
                sock.accept()
