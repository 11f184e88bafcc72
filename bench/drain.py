"""Bench: from the command to drain a worker to its status `draining` in Redis."""

from __future__ import annotations

import time
from statistics import median

from redis import Redis

from bench.harness import Options, Row, at_most, p99
from bench.servers import grid_of
from tests.support.grid import Grid, eventually

WORKERS = 4
POLL_S = 0.0002


def run(options: Options) -> list[Row]:
    drains, trips = [], []
    with (
        grid_of(WORKERS, fake=True) as grid,
        Redis.from_url(grid.redis_url) as redis,
    ):
        for _ in range(options.pick(100, 10)):
            worker = eventually(lambda: _any_available(grid), "a worker is available")
            trips.append(_trip_ms(redis, worker))
            drains.append(_drain_ms(grid, redis, worker))
    return [
        Row(
            f"command to status draining in Redis, p99 of {len(drains)}",
            f"{p99(drains):.1f} ms (median {median(drains):.1f} ms)",
            f"{p99(trips):.1f} ms for reading a status (median {median(trips):.2f} ms)",
            f"{p99(drains):.1f} ms",
            *at_most(p99(drains), 50, " ms"),
        )
    ]


def _any_available(grid: Grid) -> str | None:
    """The key of a worker that can be drained, once all are there: replacements that start would disturb."""
    workers = grid.ask("status")["workers"]
    available = [each for each in workers if each["status"] == "available"]
    if len(available) != WORKERS or len(workers) != WORKERS:
        return None
    return f"worker:{available[0]['browserType']}:{available[0]['id']}"


def _drain_ms(grid: Grid, redis: Redis, key: str) -> float:
    started = time.perf_counter()
    grid.ask("drain", {"worker": key.rpartition(":")[2], "reason": "bench"})
    # A worker without sessions is gone soon after; no key counts as drained too.
    while redis.hget(key, "status") in (b"available", "available"):
        time.sleep(POLL_S)
    return (time.perf_counter() - started) * 1000


def _trip_ms(redis: Redis, key: str) -> float:
    started = time.perf_counter()
    redis.hget(key, "status")
    return (time.perf_counter() - started) * 1000


COMPARES = (
    f"{WORKERS} workers with fake browser servers; one after the other is drained by a request to the master's "
    "control socket (what `pwgrid drain` sends), while Redis is read every 0.2 ms."
)
