"""The sessions that pages show, on a real Redis: whatever happens, those of who reads everything, by reading less."""

import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import HeldAs, SessionStatus
from pwgrid.proxy.dashboard import feed
from pwgrid.proxy.dashboard.feed import ShownSessions
from pwgrid.registry.records import WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.settings.model import Settings
from tests.support.redis import RedisServer

WORKER = WorkerRecord("chromium", "w0", "ws://host:8080/playwright/chromium/w0.secret", slots=3, pool="chromium")
WORKERS = [replace(WORKER, worker_id=f"w{n}", ws_endpoint=WORKER.ws_endpoint.replace("w0", f"w{n}")) for n in range(4)]


@pytest.fixture
async def registry(own_redis: RedisServer) -> AsyncIterator[Registry]:
    clock = itertools.count(1_700_000_000.0, 0.01)  # no two sessions begin at the same time: which is newer is known
    registry = Registry(own_redis.url, Settings(redis_timeout=20), lambda: next(clock))
    for worker in WORKERS:
        await registry.register(worker)
    yield registry
    await registry.close()


class Grid:
    """Workers and clients that do something at random."""

    def __init__(self, registry: Registry, seed: int) -> None:
        self.registry = registry
        self.dice = random.Random(seed)
        self.pending: dict[str, str] = {}
        self.running: dict[str, str] = {}
        self.leases: dict[str, str] = {}
        self.with_lease: set[str] = set()
        self.number = 0
        self.workers = [*WORKERS]

    def _id(self) -> str:
        self.number += 1
        return f"id{self.number}"

    async def select(self, kind: HeldAs = HeldAs.SESSION) -> None:
        new = self._id()
        limits = {"max_concurrent": 3, "max_lifetime": 10_000}
        worker_id = await self.registry.select("chromium", **limits, session_id=new, kind=kind)
        if worker_id is not None:
            (self.pending if kind is HeldAs.SESSION else self.leases)[new] = worker_id

    async def lend(self) -> None:
        await self.select(HeldAs.LEASE)

    async def come_with_lease(self) -> None:
        if self.leases:
            lease, new = self.dice.choice([*self.leases]), self._id()
            self.running[new] = self.leases[lease]
            self.with_lease.add(new)
            await self._write(SessionUpdate(new, self.registry.now(), lease_id=lease), self.leases[lease])

    async def start(self) -> None:
        if self.pending:
            session = self.dice.choice([*self.pending])
            self.running[session] = self.pending.pop(session)
            await self._write(SessionUpdate(session, self.registry.now()), self.running[session])

    async def roll_back(self) -> None:
        if self.pending:
            session = self.dice.choice([*self.pending])
            del self.pending[session]
            await self.registry.rollback(session)

    async def end(self) -> None:
        if self.running:
            session = self.dice.choice([*self.running])
            status = self.dice.choice([SessionStatus.COMPLETED, SessionStatus.FAILED])
            end = SessionEnd(status, Reason(EndReason.OTHER), self.registry.now())
            await self._write(SessionUpdate(session, end=end), self.running.pop(session))

    async def replace_worker(self) -> None:
        """A worker is gone with all that it has, and another one comes."""
        gone, new = self.workers.pop(self.dice.randrange(len(self.workers))), self._id()
        await self.registry.reap_worker("chromium", gone.worker_id, Reason(EndReason.WORKER_LOST))
        for held in (self.pending, self.running, self.leases):
            for each in [each for each, worker_id in held.items() if worker_id == gone.worker_id]:
                del held[each]
        endpoint = gone.ws_endpoint.replace(gone.worker_id, new)
        self.workers.append(replace(gone, worker_id=new, ws_endpoint=endpoint))
        await self.registry.register(self.workers[-1])

    async def step(self) -> None:
        steps = [*[self.select, self.start, self.end] * 3, self.roll_back, self.lend, self.replace_worker]
        await self.dice.choice([*steps, self.come_with_lease])()

    async def _write(self, update: SessionUpdate, worker_id: str) -> None:
        assert await self.registry.write(update, ("chromium", worker_id))


@pytest.mark.parametrize("seed", range(4))
async def test_pages_show_what_who_reads_everything_finds(
    registry: Registry, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "NEWEST_SESSIONS", 3)  # else the newest are all that there are
    grid = Grid(registry, seed)
    shown, live_shown = ShownSessions(registry, lambda _record: None), 0
    for _ in range(60):
        for _ in range(grid.dice.randrange(4)):
            await grid.step()
        activity = await registry.activity()
        await shown.refresh(activity)
        anew = ShownSessions(registry, lambda _record: None)
        await anew.refresh(activity)
        # A session with a lease changes no counter: where so many newer ones have begun before the first look at it, it
        # shows when all workers are read again.
        known = {key: row for key, row in anew.rows.items() if key in shown.rows or key not in grid.with_lease}
        assert dict(shown.rows) == known
        live_shown += len(known.keys() & grid.running.keys())
    assert live_shown > 10


async def test_only_the_workers_at_which_something_has_happened_are_asked_for_their_sessions(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    session_ids = registry.session_ids

    async def noting(fields, **limits):  # type: ignore[no-untyped-def]
        asked.append(fields)
        return await session_ids(fields, **limits)

    monkeypatch.setattr(registry, "session_ids", noting)
    shown, grid = ShownSessions(registry, lambda _record: None), Grid(registry, 1)

    async def look() -> list[str]:
        asked.clear()
        await shown.refresh(await registry.activity())
        return asked[0] if asked else []

    everyone = [f"chromium:{worker.worker_id}" for worker in WORKERS]
    assert await look() == everyone
    await grid.select()
    (worker_id,) = grid.pending.values()
    at_one = [f"chromium:{worker_id}"]
    assert await look() == at_one
    assert await look() == at_one  # it is pending: a selection that is rolled back leaves no trace in counters
    await grid.start()
    assert await look() == at_one
    assert await look() == []
    await grid.end()
    assert await look() == at_one
    monkeypatch.setattr(shown, "_all_again_at", 0.0)
    await grid.select()
    assert await look() == everyone
