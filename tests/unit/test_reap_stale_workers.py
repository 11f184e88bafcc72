"""The loop that reaps goes on whatever Redis says."""

import asyncio
import itertools
import time
from collections.abc import Iterator

from structlog.testing import capture_logs

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.reap_workers import keep_reaping
from pwgrid.registry.records import Failed, Reaped


class Registry:
    """Is away at first, then finds a worker."""

    def __init__(self) -> None:
        self.clocks: Iterator[float] = itertools.repeat(0.0)
        self.locks: list[float] = []
        self.is_over = asyncio.Event()

    def now(self) -> float:
        """The wall clock, by how far it is ahead of the monotonic one."""
        return next(self.clocks) + time.monotonic()

    async def reap(self, *, lock_s: float) -> Reaped:
        self.locks.append(lock_s)
        if len(self.locks) == 1:
            raise RegistryUnavailable("Redis is away")
        if len(self.locks) == 3:
            self.is_over.set()
        return {"chromium:a": Failed(("s",), ("l",))} if len(self.locks) == 2 else {}


async def test_what_redis_did_not_take_is_reaped_and_told_in_the_next_interval() -> None:
    registry = Registry()
    with capture_logs() as logs:
        reaping = asyncio.create_task(keep_reaping(registry, 0.002))  # type: ignore[arg-type]
        await asyncio.wait_for(registry.is_over.wait(), 20)
        reaping.cancel()
    assert registry.locks[:3] == [0.001] * 3
    assert [line["event"] for line in logs] == ["reap_missed", "worker_reaped"]
    assert (logs[1]["worker"], logs[1]["sessions"], logs[1]["leases"]) == ("chromium:a", ["s"], ["l"])
    assert logs[1]["reason"] == "worker lost"


async def test_nobody_is_reaped_just_after_the_wall_clock_has_jumped_ahead() -> None:
    """Every worker looks stale until its next heartbeat."""
    registry = Registry()
    registry.clocks = itertools.chain([0.0, 40.0], itertools.repeat(40.0))
    with capture_logs() as logs:
        reaping = asyncio.create_task(keep_reaping(registry, 0.002))  # type: ignore[arg-type]
        await asyncio.wait_for(registry.is_over.wait(), 20)
        reaping.cancel()
    assert [line["event"] for line in logs] == ["reap_missed", "reap_missed", "worker_reaped"]
    assert logs[0]["error"] == "the wall clock has jumped by 40 s"
