"""Bench: real sessions while workers are recycled all the time, beside a grid that recycles none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from playwright.async_api import Error, Playwright, async_playwright

from bench.harness import Bench, Options, Row, at_least, median, progress, within
from bench.servers import NEVER, ask, grid_of
from tests.support.grid import Grid

WORKERS = 3
LIFETIME = 10
AT_ONCE = 6
SAMPLE_S = 0.02


@dataclass(slots=True)
class Side:
    """What came of one grid's sessions."""

    endpoint: str
    rates: list[float] = field(default_factory=list)
    connects_ms: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Watch:
    """Samples how many workers are available, from the master, in a thread of its own."""

    def __init__(self, grid: Grid) -> None:
        self.available: Counter[int] = Counter()
        self.workers: set[str] = set()
        self._grid = grid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            workers = ask(self._grid, "status")["workers"]
            self.workers |= {worker["id"] for worker in workers}
            self.available[sum(worker["status"] == "available" for worker in workers)] += 1


def run(options: Options) -> list[Row]:
    """All rows of this bench."""
    rounds, count = options.pick(8, 2), options.pick(50, 25)
    with (
        grid_of(WORKERS, environment={"MAX_LIFETIME_SESSIONS": str(LIFETIME)}) as recycling,
        grid_of(WORKERS, environment={"MAX_LIFETIME_SESSIONS": NEVER}) as steady,
    ):
        sides = {"grid": Side(recycling.endpoint), "direct": Side(steady.endpoint)}
        with Watch(recycling) as watch:
            asyncio.run(_run(sides, rounds, count))
        replaced = len(watch.workers) - WORKERS
    if not replaced:
        raise RuntimeError("no worker was recycled")
    mine, theirs = sides["grid"], sides["direct"]
    failed, least = sum(mine.failures.values()), min(watch.available)
    return [
        Row(
            f"connects that failed, of {rounds * count} sessions with {replaced} recycles",
            f"{failed} {'; '.join(mine.failures)}".strip(),
            f"{sum(theirs.failures.values())} without recycling",
            str(failed),
            "0",
            within(failed, 0),
        ),
        Row(
            "slowest connect()",
            f"{max(mine.connects_ms):.0f} ms (median {median(mine.connects_ms):.0f} ms)",
            f"{max(theirs.connects_ms):.0f} ms (median {median(theirs.connects_ms):.0f} ms) without recycling",
            f"{max(mine.connects_ms) - max(theirs.connects_ms):+.0f} ms",
            "at most 1,000 ms",
            within(max(mine.connects_ms), 1000),
        ),
        Row(
            f"fewest workers available, of {watch.available.total()} samples",
            f"{least} (" + ", ".join(f"{n}: {seen} times" for n, seen in sorted(watch.available.items())) + ")",
            f"{WORKERS} wanted",
            f"{least - WORKERS:+d}",
            f"at least {WORKERS}",
            at_least(least, WORKERS),
        ),
        Row(
            f"sessions per second, {AT_ONCE} at once",
            f"{median(mine.rates):.2f}/s",
            f"{median(theirs.rates):.2f}/s without recycling",
            f"{median(mine.rates) / median(theirs.rates):.2f} ×",
        ),
    ]


async def _run(sides: dict[str, Side], rounds: int, count: int) -> None:
    async with async_playwright() as playwright:
        for number in range(rounds):
            for name in ("direct", "grid") if number % 2 else ("grid", "direct"):
                await _sessions(playwright, sides[name], count)
            progress(f"  round {number + 1} of {rounds}: {sides['grid'].rates[-1]:.1f}/s")


async def _sessions(playwright: Playwright, side: Side, count: int) -> None:
    numbers: Iterator[int] = iter(range(count))

    async def runner() -> None:
        for _ in numbers:
            started = time.perf_counter()
            try:
                browser = await playwright.chromium.connect(side.endpoint)
                side.connects_ms.append((time.perf_counter() - started) * 1000)
                page = await browser.new_page()
                await page.goto("data:text/html,<h1>bench</h1>")
                await browser.close()
            except Error as error:
                side.failures[str(error).splitlines()[0]] += 1

    started = time.perf_counter()
    await asyncio.gather(*(runner() for _ in range(AT_ONCE)))
    side.rates.append(count / (time.perf_counter() - started))


BENCH = Bench(
    "recycle",
    f"{WORKERS} workers with real Chromiums, each recycled after {LIFETIME} sessions, {AT_ONCE} sessions at once, "
    "beside an equal grid that recycles none. The master is asked every 20 ms how many workers are available.",
    run,
)
