"""`pwgrid status` of a grid that shares its Redis with many other workers."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pwgrid.cli import ask_grid
from pwgrid.registry import host_records, records
from pwgrid.registry.records import WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.runtime.find_grids import RunningGrid
from pwgrid.settings.model import Settings
from tests.support.many_workers import hashes_read, many_workers
from tests.support.redis import RedisServer

POOL = {"name": "chromium", "browserType": "chromium", "lifetimeOfWorker": 50, "wanted": 1}


async def test_a_status_reads_no_more_workers_than_tell_that_its_pools_serve(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = many_workers(own_redis, "", 3 * records.HASHES_AT_ONCE)
    own = WorkerRecord("chromium", "x1", "ws://host:8080/playwright/chromium/x1.secret", pool="chromium")
    registry = Registry(own_redis.url, Settings(redis_timeout=20))
    await registry.register(own, lifetime=7)

    def answers(_grid: RunningGrid, name: str, **_: Any) -> dict[str, Any]:
        worker = {"id": "x1", "browserType": "chromium", "active": None, "lifetime": None}
        status = {"workers": [worker], "pools": [POOL], "redis": {"staleS": 30}, "host": {}, "reason": None}
        return status if name == "status" else {"url": own_redis.url, "prefix": ""}

    monkeypatch.setattr(ask_grid, "ask", answers)
    grid = RunningGrid(Path("/nowhere"), 1, 1, "ws://localhost:1")
    commands = (*records.snapshot_commands(""), *host_records.commands(""))
    totals = sum(command[0] == "HGETALL" for command in commands)
    before = hashes_read(own_redis)
    found = ask_grid.status(grid)
    assert (found["ready"], found["workers"][0]["lifetime"]) == (True, 7)
    assert hashes_read(own_redis) - before == totals + records.HASHES_AT_ONCE
    # One that cannot be chosen tells nothing of the others.
    own_redis.command("HSET", "worker:chromium:x1", "lastHeartbeat", int(time.time()) - 60)
    before = hashes_read(own_redis)
    found = ask_grid.status(grid)
    assert found["reason"].startswith("no chromium worker can be chosen")
    assert hashes_read(own_redis) - before == totals + len(fields) + 1
    await registry.register(replace(own, worker_id="w9999"))  # the last one that is read
    assert ask_grid.status(grid)["ready"] is True
    await registry.close()
