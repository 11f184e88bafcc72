"""What the proxy does for workers that are gone, on a real Redis."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.proxy import reap_workers
from pwgrid.proxy.reap_workers import DeadWorkers
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.registry.spool import SpoolFile, write_spool_file
from pwgrid.settings.model import Settings
from tests.lua.test_registry import WORKER, select
from tests.support.redis import RedisServer

BOUND_S = 20.0
AT = 1_700_000_000.0


@pytest.fixture
async def registry(own_redis: RedisServer) -> AsyncIterator[Registry]:
    registry = Registry(own_redis.url, Settings(redis_timeout=BOUND_S))
    yield registry
    await registry.close()


def left_by_the_worker(runtime: Path) -> None:
    end = SessionEnd(SessionStatus.COMPLETED, Reason(EndReason.CLIENT_DISCONNECTED), AT, 7, 9)
    updates = [SessionUpdate("s1", AT, "c:1", end), SessionUpdate("local", AT, "c:2", end)]
    write_spool_file(runtime, "chromium", "aabbccdd", updates)


async def test_what_a_worker_left_is_written_before_the_worker_is_removed(registry: Registry, tmp_path: Path) -> None:
    await registry.register(WORKER)
    await select(registry, "s1")
    await select(registry, "s2")
    await registry.write(SessionUpdate("s2", AT))
    left_by_the_worker(tmp_path)
    cleared: list[bool] = []
    with capture_logs() as logs:
        await DeadWorkers(registry, tmp_path, lambda: cleared.append(True)).clear()
    (reaped,) = [line for line in logs if line["event"] == "worker_reaped"]
    assert (reaped["log_level"], reaped["worker"], reaped["reason"]) == ("info", "chromium:aabbccdd", "worker stopped")
    assert reaped["sessions"] == ["s2"]
    found = await registry.snapshot()
    assert (found.active, found.lifetime, found.workers) == ({}, {}, {})
    assert found.outcomes == {"completed": 2, "failed": 1}
    s2 = await registry.session("s2")
    assert s2 is not None
    assert (s2.status, s2.reason) == ("failed", "worker stopped")
    local = await registry.session("local")
    assert local is not None
    assert (local.status, local.client, local.bytes_in) == ("completed", "c:2", 7)
    assert cleared == [True]
    assert list(tmp_path.glob("unwritten/*")) == []


async def test_a_file_that_cannot_be_removed_ends_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_the_worker(tmp_path)
    cleared: list[bool] = []
    dead = DeadWorkers(registry, tmp_path, lambda: cleared.append(True))
    with monkeypatch.context() as patch:

        def read_only(_file: SpoolFile) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        patch.setattr(SpoolFile, "remove", read_only)
        await dead.clear()
    assert cleared == []
    await dead.clear()
    assert cleared == [True]
    assert (await registry.snapshot()).outcomes == {"completed": 2}


async def test_what_redis_cannot_take_yet_stays_for_later(
    registry: Registry, own_redis: RedisServer, tmp_path: Path
) -> None:
    left_by_the_worker(tmp_path)
    cleared: list[bool] = []
    clearing = DeadWorkers(registry, tmp_path, lambda: cleared.append(True))
    clearing.lost["00000000"] = ("chromium", Reason(EndReason.MEMORY_LIMIT))
    await registry.client.wait_connected()
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    await clearing.clear()
    assert len(list(tmp_path.glob("unwritten/*"))) == 1
    assert (clearing.lost.keys(), cleared) == ({"00000000"}, [])
    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    await clearing.clear()
    assert list(tmp_path.glob("unwritten/*")) == []
    assert (clearing.lost, cleared) == ({}, [True])
    assert (await registry.snapshot()).outcomes == {"completed": 2}


async def test_a_worker_that_redis_refuses_to_remove_keeps_no_other_one(registry: Registry, tmp_path: Path) -> None:
    await registry.register(WORKER)
    await registry.client.call("SET", "sessions:live:chromium:00000000", "of another program")
    cleared: list[bool] = []
    clearing = DeadWorkers(registry, tmp_path, lambda: cleared.append(True))
    clearing.lost.update(
        {
            "00000000": ("chromium", Reason(EndReason.MEMORY_LIMIT)),
            WORKER.worker_id: ("chromium", Reason(EndReason.MEMORY_LIMIT)),
        }
    )
    with capture_logs() as logs:
        await clearing.clear()
    assert [line["worker"] for line in logs if line["event"] == "dead_worker_not_cleared"] == ["00000000"]
    assert (clearing.lost.keys(), cleared) == ({"00000000"}, [])
    assert (await registry.snapshot()).workers == {}
    await registry.client.call("DEL", "sessions:live:chromium:00000000")
    await clearing.clear()
    assert (clearing.lost, cleared) == ({}, [True])


async def test_what_redis_refuses_of_a_worker_that_left_a_file_keeps_no_other_one(
    registry: Registry, tmp_path: Path
) -> None:
    await registry.register(WORKER)
    await registry.client.call("SET", "sessions:live:chromium:00000000", "of another program")
    write_spool_file(tmp_path, "chromium", "00000000", [SessionUpdate("s1", AT, "c:1")])
    cleared: list[bool] = []
    clearing = DeadWorkers(registry, tmp_path, lambda: cleared.append(True))
    clearing.lost[WORKER.worker_id] = ("chromium", Reason(EndReason.MEMORY_LIMIT))
    await clearing.clear()
    assert (clearing.lost, cleared) == ({}, [])
    assert (await registry.snapshot()).workers == {}
    await registry.client.call("DEL", "sessions:live:chromium:00000000")
    await clearing.clear()
    assert cleared == [True]
    assert list(tmp_path.glob("unwritten/*")) == []


async def test_what_was_put_off_is_tried_again(
    registry: Registry, own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells that a Redis which refused takes writes again."""
    monkeypatch.setattr(reap_workers, "RETRY_INTERVAL_S", 0.02)
    left_by_the_worker(tmp_path)
    cleared = asyncio.Event()
    clearing = DeadWorkers(registry, tmp_path, cleared.set)
    await registry.client.wait_connected()
    own_redis.command("CONFIG", "SET", "maxmemory", "1")
    await clearing.clear()
    trying = asyncio.create_task(clearing.keep_trying())
    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    async with asyncio.timeout(BOUND_S):
        await cleared.wait()
    trying.cancel()
    assert (await registry.snapshot()).outcomes == {"completed": 2}


async def test_at_last_redis_is_waited_for(
    registry: Registry, own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.client.wait_connected()
    own_redis.kill()
    left_by_the_worker(tmp_path)
    monkeypatch.setattr(reap_workers, "LAST_S", BOUND_S)
    waiting = asyncio.create_task(DeadWorkers(registry, tmp_path, lambda: None).last_try())
    await asyncio.sleep(0)
    own_redis.start()
    await waiting
    assert (await registry.snapshot()).outcomes == {"completed": 2}


async def test_at_last_a_redis_that_stays_away_is_not_waited_for_for_ever(
    registry: Registry, own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.client.wait_connected()
    own_redis.kill()
    left_by_the_worker(tmp_path)
    monkeypatch.setattr(reap_workers, "LAST_S", 0.05)
    await DeadWorkers(registry, tmp_path, lambda: None).last_try()
    assert len(list(tmp_path.glob("unwritten/*"))) == 1
