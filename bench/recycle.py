"""Bench: real sessions while workers are recycled all the time, beside a grid that recycles none."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean, median

from playwright.async_api import Error, Playwright, async_playwright
from redis import Redis

from bench.harness import Options, Row, at_least, at_most, at_once, every, progress
from bench.servers import grid_of
from tests.support.grid import NEVER, Grid, eventually

WORKERS = 3
SLOTS = 5
LIFETIME = 10
AT_ONCE = 6
SAMPLE_S = 0.02
WAIT_MS = 1000.0

_CAPACITY = """
local slots, lifetimes = 0, redis.call('HGETALL', 'cluster:lifetime_connections')
for i = 1, #lifetimes, 2 do
  local worker = redis.call('HMGET', 'worker:' .. lifetimes[i], 'status', 'slots')
  if worker[1] == 'available' and tonumber(lifetimes[i + 1]) < tonumber(ARGV[1]) then
    slots = slots + tonumber(worker[2])
  end
end
return slots
"""
"""The slots, taken ones included, of all workers that the selection may still choose, at one instant."""


@dataclass(slots=True)
class Side:
    """What came of one grid's sessions."""

    endpoint: str
    rates: list[float] = field(default_factory=list)
    connects_ms: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Watch:
    """Samples of a grid: the slots from Redis, the workers from the master."""

    def __init__(self, grid: Grid, redis: Redis) -> None:
        self.slots: Counter[int] = Counter()
        self.available: Counter[int] = Counter()
        self.there: list[int] = []
        self.gone: set[str] = set()
        """Workers that have been used up."""
        self._grid = grid
        self._redis = redis

    def look(self) -> None:
        self.slots[self._redis.eval(_CAPACITY, 0, LIFETIME)] += 1
        workers = self._grid.ask("status")["workers"]
        self.gone |= {worker["id"] for worker in workers if worker["status"] in ("draining", "stopped")}
        self.available[sum(worker["status"] == "available" for worker in workers)] += 1
        self.there.append(len(workers))


def run(options: Options) -> list[Row]:
    rounds, count = options.pick(10, 2), options.pick(100, 50)
    with (
        grid_of(WORKERS, environment={"MAX_LIFETIME_SESSIONS": str(LIFETIME)}) as recycling,
        grid_of(WORKERS, environment={"MAX_LIFETIME_SESSIONS": NEVER}) as steady,
    ):
        sides = {"grid": Side(recycling.endpoint), "direct": Side(steady.endpoint)}
        eventually(lambda: _is_warm(recycling), "the spares are warm")
        with Redis.from_url(recycling.redis_url) as redis:
            watch = Watch(recycling, redis)
            with every(SAMPLE_S, watch.look):
                asyncio.run(_run(sides, rounds, count))
    replaced = len(watch.gone)
    if not replaced:
        raise RuntimeError("no worker was recycled")
    mine, theirs = sides["grid"], sides["direct"]
    return [
        *_connects(mine, theirs, f"{rounds * count} sessions with {replaced} recycles"),
        *_capacity(watch),
        Row(
            f"sessions per second, {AT_ONCE} at once",
            f"{median(mine.rates):.2f}/s",
            f"{median(theirs.rates):.2f}/s without recycling",
            f"{median(mine.rates) / median(theirs.rates):.2f} ×",
        ),
    ]


def _is_warm(grid: Grid) -> bool:
    statuses = {worker["status"] for worker in grid.ask("status")["workers"]}
    return statuses == {"available", "spare"}


def _connects(mine: Side, theirs: Side, what: str) -> list[Row]:
    failed, slowest = sum(mine.failures.values()), max(mine.connects_ms)
    return [
        Row(
            f"connects that failed, of {what}",
            f"{failed} {'; '.join(mine.failures)}".strip(),
            f"{sum(theirs.failures.values())} without recycling",
            str(failed),
            *at_most(failed, 0),
        ),
        Row(
            "slowest connect(), the wait for a slot included",
            f"{slowest:.0f} ms (median {median(mine.connects_ms):.0f} ms)",
            f"{max(theirs.connects_ms):.0f} ms (median {median(theirs.connects_ms):.0f} ms) without recycling",
            f"{slowest - max(theirs.connects_ms):+.0f} ms",
            *at_most(slowest, WAIT_MS, " ms"),
        ),
    ]


def _capacity(watch: Watch) -> list[Row]:
    least, fewest, wanted = min(watch.slots), min(watch.available), WORKERS * SLOTS
    return [
        Row(
            f"fewest slots of workers that can be chosen, of {watch.slots.total()} samples",
            f"{least} ({_histogram(watch.slots)})",
            f"{wanted} wanted",
            f"{least - wanted:+d}",
            *at_least(least, wanted),
        ),
        Row(
            "fewest workers available, as the master has it, in the same samples",
            f"{fewest} ({_histogram(watch.available)})",
            f"{WORKERS} wanted",
            f"{fewest - WORKERS:+d}",
        ),
        Row(
            "most workers at once: spares, and those that drain, included",
            f"{max(watch.there)} ({mean(watch.there):.1f} on average)",
            f"{WORKERS} wanted",
            f"{max(watch.there) - WORKERS:+d}",
        ),
    ]


def _histogram(samples: Counter[int]) -> str:
    return ", ".join(f"{n}: {seen} times" for n, seen in sorted(samples.items()))


async def _run(sides: dict[str, Side], rounds: int, count: int) -> None:
    async with async_playwright() as playwright:
        for number in range(rounds):
            for name in sorted(sides, reverse=number % 2 == 0):
                await _sessions(playwright, sides[name], count)
            progress(f"  round {number + 1} of {rounds}: {sides['grid'].rates[-1]:.1f}/s")


async def _sessions(playwright: Playwright, side: Side, count: int) -> None:
    async def session(_number: int) -> None:
        started = time.perf_counter()
        try:
            browser = await playwright.chromium.connect(side.endpoint)
            side.connects_ms.append((time.perf_counter() - started) * 1000)
            page = await browser.new_page()
            await page.goto("data:text/html,<h1>bench</h1>")
            await browser.close()
        except Error as error:
            side.failures[str(error).splitlines()[0]] += 1

    side.rates.append(count / await at_once(AT_ONCE, range(count), session))


COMPARES = (
    f"{WORKERS} workers of {SLOTS} slots with real Chromiums, each recycled after {LIFETIME} sessions, {AT_ONCE} at"
    " once, beside an equal grid that recycles none; from the first session of a fresh grid on, once its spares are"
    " warm. Every 20 ms a script in Redis adds up the slots of all workers that the selection may still choose, and the"
    " master is asked who is there."
)
