"""The kill table of docs/faults.md, row by row: real sessions that go on, real signals, and the books afterwards."""

import os
import signal
from collections.abc import Callable
from typing import Any

from playwright.async_api import Playwright

from tests.conftest import books_are_balanced, need
from tests.support.grid import Grid, eventually, eventually_async, running_grid
from tests.support.load import under_load
from tests.support.raw import connect, head


def worker_with_sessions(grid: Grid) -> dict[str, Any]:
    """The worker that has most of the live sessions."""
    workers: list[dict[str, Any]] = grid.status()["workers"]
    return max(workers, key=lambda worker: worker["active"])


def is_complete(grid: Grid, wanted: int) -> Callable[[], bool]:
    def complete() -> bool:
        (pool,) = (pool for pool in grid.status()["pools"] if pool["browserType"] == "chromium")
        return bool(pool["available"] == wanted)

    return complete


async def test_sigkill_of_the_proxy_loses_no_session_and_refuses_nobody(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "2") as grid:
        async with under_load(grid, playwright) as load:
            pid = grid.status()["proxy"]["pid"]
            os.kill(pid, signal.SIGKILL)
            await load.goes_on()
            assert load.lost == {}
            # Only a client that was in the proxy's own hands at that instant may see a reset.
            assert len(load.refused) <= 1, load.refused
            assert grid.status()["proxy"]["pid"] != pid
        await eventually_async(lambda: grid.active() == 0, "every slot is free")
        books_are_balanced(grid)


async def test_sigkill_of_a_worker_lets_its_sessions_go_on_and_a_replacement_serves(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "2") as grid:
        async with under_load(grid, playwright) as load:
            victim = worker_with_sessions(grid)
            assert victim["active"] >= 1
            os.kill(victim["pid"], signal.SIGKILL)
            await eventually_async(is_complete(grid, 2), "the replacement serves")
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])
            status = next(worker for worker in grid.status()["workers"] if worker["id"] == victim["id"])
            assert status["status"] == "draining"
            assert status["pid"] != victim["pid"]
        await eventually_async(
            lambda: victim["id"] not in {worker["id"] for worker in grid.status()["workers"]}, "the old worker is gone"
        )
        books_are_balanced(grid)
        outcomes = dict(zip(*[iter(grid.redis("HGETALL", "sessions:outcomes"))] * 2, strict=True))
        assert int(outcomes.get(b"failed", 0)) == 0, outcomes
        assert not (grid.runtime / "w" / victim["id"]).exists()


async def test_a_frozen_worker_is_killed_alone_and_its_sessions_go_on(playwright: Playwright) -> None:
    need("chromium")
    environment = {"WORKER_LOST_THRESHOLD": "5"}
    with running_grid("--chromium", "2", environment=environment) as grid:
        async with under_load(grid, playwright) as load:
            victim = worker_with_sessions(grid)
            os.kill(victim["pid"], signal.SIGSTOP)
            await eventually_async(lambda: not os.path.exists(f"/proc/{victim['pid']}"), "it is killed", 40)
            await eventually_async(is_complete(grid, 2), "the replacement serves", 40)
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])
        await eventually_async(
            lambda: victim["id"] not in {worker["id"] for worker in grid.status()["workers"]}, "the old worker is gone"
        )
        books_are_balanced(grid)


async def test_a_frozen_browser_server_costs_only_its_own_sessions_and_is_replaced(playwright: Playwright) -> None:
    need("chromium")
    environment = {"WORKER_LOST_THRESHOLD": "5"}
    with running_grid("--chromium", "2", environment=environment) as grid:
        async with under_load(grid, playwright) as load:
            victim = worker_with_sessions(grid)
            os.kill(victim["nodePid"], signal.SIGSTOP)
            await eventually_async(lambda: not os.path.exists(f"/proc/{victim['nodePid']}"), "it is killed", 40)
            await eventually_async(is_complete(grid, 2), "the replacement serves", 40)
            await load.goes_on()
            assert len(load.lost) <= victim["active"]
            assert load.refused == []
        await eventually_async(lambda: grid.active() == 0, "every slot is free")
        reasons = {
            grid.redis("HGET", key, "reason")
            for key in grid.redis("KEYS", "session:*")
            if grid.redis("HGET", key, "status") == b"failed"
        }
        assert reasons <= {b"hung"}
        books_are_balanced(grid)


async def test_sigkill_of_the_embedded_redis_loses_nothing(playwright: Playwright) -> None:
    need("chromium")
    environment = {"HEARTBEAT_INTERVAL": "1"}
    with running_grid("--chromium", "2", environment=environment) as grid:
        async with under_load(grid, playwright) as load:
            pid = grid.status()["redis"]["pid"]
            os.kill(pid, signal.SIGKILL)
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])
            await eventually_async(lambda: grid.active() >= 5, "the counters are true again")
        await eventually_async(lambda: grid.active() == 0, "every slot is free")
        assert grid.redis("KEYS", "sessions:live:*") == []


async def test_a_redis_that_is_frozen_for_a_while_is_done_without(playwright: Playwright) -> None:
    need("chromium")
    environment = {"HEARTBEAT_INTERVAL": "1"}
    with running_grid("--chromium", "2", environment=environment) as grid:
        async with under_load(grid, playwright) as load:
            pid = grid.status()["redis"]["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                await load.goes_on(beats=30, connects=10)
            finally:
                os.kill(pid, signal.SIGCONT)
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])
        await eventually_async(lambda: grid.active() == 0, "every slot is free")
        assert await eventually_async(lambda: grid.redis("KEYS", "sessions:live:*") == [], "nothing is live")


async def test_sigkill_of_a_browser_costs_only_its_own_sessions(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "2") as grid:
        async with under_load(grid, playwright) as load:
            victim = worker_with_sessions(grid)
            os.kill(victim["nodePid"], signal.SIGKILL)
            await eventually_async(is_complete(grid, 2), "the replacement serves")
            await load.goes_on()
            assert len(load.lost) <= victim["active"]
            assert load.refused == []
        await eventually_async(lambda: grid.active() == 0, "every slot is free")
        failed = [
            grid.redis("HGET", key, "reason")
            for key in grid.redis("KEYS", "session:*")
            if grid.redis("HGET", key, "status") == b"failed"
        ]
        assert set(failed) <= {b"browser server lost"}
        assert len(failed) >= len(load.lost)
        books_are_balanced(grid)


def test_a_redis_that_refuses_writes_is_as_good_as_away() -> None:
    """Out of memory, Redis answers every script with an error. The fake browser server stands in for Playwright."""
    environment = {"HEARTBEAT_INTERVAL": "1", "REDIS_TIMEOUT": "0.5"}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        before = {worker["id"] for worker in grid.status()["workers"]}
        with connect(grid.port) as old:
            old.sendall(head())
            assert old.recv(4096).startswith(b"HTTP/1.1 101")
            grid.redis("CONFIG", "SET", "maxmemory", "1")
            for _ in range(3):
                with connect(grid.port) as new:
                    new.sendall(head())
                    assert new.recv(4096).startswith(b"HTTP/1.1 101")
            eventually(lambda: "registry_write_kept" in grid.output(), "a write was refused")
            grid.redis("CONFIG", "SET", "maxmemory", "0")
            old.sendall(b"\x89\x80\0\0\0\0")
            assert old.recv(16) == b"\x8a\x00"
        eventually(lambda: grid.active() == 0, "the books are true again")
        assert {worker["id"] for worker in grid.status()["workers"]} == before
        # What was admitted without Redis is unknown to its counters until a heartbeat repairs them.
        assert grid.redis("KEYS", "sessions:live:*") == []
