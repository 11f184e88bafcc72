"""What ends a session: frozen clients, idle ones, long ones; each with its own recorded reason."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from playwright.async_api import Error, Playwright

from tests.conftest import counters_are_exact, need
from tests.e2e.test_faults import CLIENT
from tests.support import raw
from tests.support.grid import Grid, eventually, eventually_async, running_grid
from tests.support.redis import RedisServer


def reasons(grid: Grid) -> set[tuple[bytes, bytes]]:
    return {
        (grid.redis("HGET", key, "status"), grid.redis("HGET", key, "reason"))
        for key in grid.redis("KEYS", "session:*")
    }


async def test_a_frozen_client_is_closed_after_the_ping_timeout(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment={"SESSION_PING_TIMEOUT": "3"}) as grid:
        client = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CLIENT), grid.endpoint],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert client.stdout is not None
        with client.stdout:
            assert await asyncio.to_thread(client.stdout.readline) == b"up\n"
        os.killpg(client.pid, signal.SIGSTOP)
        try:
            await eventually_async(lambda: grid.active() == 0, "its slot is free")
            assert reasons(grid) == {(b"failed", b"ping timeout")}
        finally:
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
        counters_are_exact(grid)


async def test_an_idle_session_and_a_long_one_are_ended_with_their_own_reasons(playwright: Playwright) -> None:
    need("chromium")
    environment = {"SESSION_IDLE_TIMEOUT": "6", "SESSION_MAX_DURATION": "14"}
    with running_grid("--chromium", "1", environment=environment) as grid:
        idle, busy = [await playwright.chromium.connect(grid.endpoint) for _ in range(2)]

        async def work() -> None:
            with contextlib.suppress(Error):  # the end of the session may meet an evaluate half-way
                page = await busy.new_page()
                while busy.is_connected():
                    await page.evaluate("1")
                    await asyncio.sleep(0.2)

        await asyncio.gather(work(), eventually_async(lambda: grid.active() == 0, "both are ended"))
        assert not idle.is_connected()
        assert reasons(grid) == {(b"failed", b"idle timeout"), (b"failed", b"maximum duration")}
        counters_are_exact(grid)


def test_a_drain_that_runs_out_closes_what_is_left_and_says_why() -> None:
    """The fake browser server stands in for Playwright. A real client hears of its end in test_drain.py."""
    with running_grid("--chromium", "1", environment={"DRAIN_TIMEOUT": "1"}, fake=True) as grid:
        with raw.session(grid.port) as sock:
            (worker,) = grid.status()["workers"]
            grid.redis("SET", f"worker:cmd:chromium:{worker['id']}", "shutdown", "EX", "60")
            assert b"DRAIN_TIMEOUT=1 s was over" in raw.read_all(sock)
        why = {(b"failed", b"drain timeout: asked over Redis")}
        eventually(lambda: reasons(grid) == why, "the reason is recorded")
        eventually(
            lambda: (
                [each["id"] for each in grid.status()["workers"] if each["status"] == "available"]
                not in ([], [worker["id"]])
            ),
            "a replacement serves",
        )


def test_redis_that_comes_back_empty_learns_the_truth() -> None:
    """The fake browser server stands in for Playwright. Real sessions outlive a Redis in faults/test_redis_away.py."""
    environment = {"HEARTBEAT_INTERVAL": "1", "REDIS_TIMEOUT": "0.5"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        with contextlib.ExitStack() as held:
            socks = [held.enter_context(raw.session(grid.port)) for _ in range(3)]
            grid.redis("FLUSHALL")
            eventually(lambda: grid.redis("HVALS", "cluster:active_connections") == [b"3"], "3 are active again")
            assert all(raw.goes_on(sock) for sock in socks)
        eventually(lambda: grid.active() == 0, "all are gone")
        assert grid.redis("KEYS", "sessions:live:*") == []


def test_recycling_under_load_fails_no_connect_and_gives_each_worker_its_number_of_sessions() -> None:
    """The fake browser server stands in for Playwright. Real workers come and go under load in
    faults/test_redis_away.py."""
    environment = {"MAX_LIFETIME_SESSIONS": "10", "WORKER_SELECT_TIMEOUT": "60"}
    with running_grid("--chromium", "3", environment=environment, fake=True) as grid:

        def client() -> None:
            for _ in range(20):
                raw.session(grid.port).close()

        first = {worker["id"] for worker in grid.status()["workers"] if worker["status"] == "available"}
        with ThreadPoolExecutor(6) as clients:
            for each in [clients.submit(client) for _ in range(6)]:
                each.result()
        eventually(lambda: grid.redis("HGET", "sessions:outcomes", "completed") == b"120", "all ends are recorded")
        assert reasons(grid) == {(b"completed", b"client disconnected")}
        ids = [session_id.decode() for session_id in grid.redis("ZRANGE", "sessions:index", 0, -1)]
        served = Counter(grid.redis("HGET", f"session:{session_id}", "workerId").decode() for session_id in ids)
        assert served.total() == 120
        assert max(served.values()) == 10
        there = {worker["id"]: worker["status"] for worker in grid.status()["workers"]}
        leaving = {worker_id for worker_id in served if there.get(worker_id) not in ("available", "spare")}
        assert leaving >= first
        # A client that its last worker did not take in time is one less for that worker, and one more for another.
        retried = grid.output().count("offer_failed")
        assert 10 * len(leaving) - sum(served[worker_id] for worker_id in leaving) <= retried
        eventually(lambda: fully_served(grid, 3), "as many serve as are wanted")
        counters_are_exact(grid)


def fully_served(grid: Grid, wanted: int) -> bool:
    (pool,) = [pool for pool in grid.status()["pools"] if pool["wanted"]]
    return bool(pool["available"] >= wanted)


def test_a_spare_gets_no_session_until_it_serves_in_place_of_a_drained_worker() -> None:
    """The fake browser server stands in for Playwright."""
    with running_grid("--chromium", "2", environment={"MAX_LIFETIME_SESSIONS": "10"}, fake=True) as grid:

        def by_status(status: str) -> set[str]:
            return {worker["id"] for worker in grid.status()["workers"] if worker["status"] == status}

        while not (spares := by_status("spare")):
            raw.session(grid.port).close()
        for worker_id in spares:
            assert grid.redis("HGET", f"worker:chromium:{worker_id}", "status") == b"spare"
            assert grid.redis("HGET", "cluster:lifetime_connections", f"chromium:{worker_id}") == b"0"
        serving = by_status("available")
        for worker_id in serving:
            assert grid.command("drain", worker_id).returncode == 0
        eventually(lambda: spares & by_status("available"), "a spare serves")
        raw.session(grid.port).close()
        eventually(lambda: fully_served(grid, 2) and not serving & by_status("draining"), "all is as before")
        counters_are_exact(grid)


async def test_an_external_redis_is_used_and_left_clean(playwright: Playwright, own_redis: RedisServer) -> None:
    need("chromium")
    environment = {"REDIS_URL": own_redis.url, "REDIS_KEY_PREFIX": "{pwgrid}:"}
    with running_grid("--chromium", "1", environment=environment, prefix="{pwgrid}:") as grid:
        redis = {"pid": None, "url": own_redis.url, "prefix": "{pwgrid}:", "staleS": 30.0}
        assert grid.status()["redis"] == redis
        await (await playwright.chromium.connect(grid.endpoint)).close()
    kept = ("{pwgrid}:session", "{pwgrid}:page:history")  # what has been, for some time
    assert {key for key in own_redis.command("KEYS", "*") if not key.startswith(kept)} == set()
