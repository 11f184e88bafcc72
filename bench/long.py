"""Bench: sessions of a person or a slow test, on workers that are used up again and again meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from playwright.async_api import Error, Playwright, async_playwright

from bench.harness import Options, Row, at_most, at_once, every, progress
from bench.servers import grid_of
from pwgrid.settings.model import SETTINGS
from tests.support.grid import Grid

WORKERS = 4
SLOTS = 5
LIFETIME = 10
SEED = 1
SHORTEST_S = 2.0
BEAT_S = 0.5
SAMPLE_INTERVAL_S = 0.25
DRAIN_S = float(SETTINGS["drain_timeout"].default)


@dataclass(slots=True)
class Sessions:
    """What came of them."""

    durations_s: list[float]
    cut: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    served: int = 0


class Watch:
    """What the master says of who is there."""

    def __init__(self, grid: Grid) -> None:
        self.draining_since: dict[str, float] = {}
        """Unix seconds, by worker."""
        self.most = 0
        self.most_mib = 0
        self._grid = grid

    def look(self) -> None:
        workers = self._grid.ask("status")["workers"]
        for worker in workers:
            if worker["status"] == "draining":
                self.draining_since.setdefault(worker["id"], time.time())
        self.most = max(self.most, len(workers))
        self.most_mib = max(self.most_mib, sum(worker["memoryMib"] or worker["rssMib"] or 0 for worker in workers))


def run(options: Options) -> list[Row]:
    count, longest_s = options.pick(200, 60), options.pick(180, 20)
    dice = random.Random(SEED)
    sessions = Sessions([SHORTEST_S * (longest_s / SHORTEST_S) ** dice.random() for _ in range(count)])
    given = {
        "MAX_LIFETIME_SESSIONS": str(LIFETIME),
        "WORKER_SELECT_TIMEOUT": "60",
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
    }
    with grid_of(WORKERS, environment=given) as grid:
        watch = Watch(grid)
        with every(SAMPLE_INTERVAL_S, watch.look):
            asyncio.run(_run(grid.endpoint, sessions))
        outlasted = _outlasted(grid, watch.draining_since)
    lost = sessions.cut.total()
    return [
        Row(
            f"sessions that were cut, of {count} that take {SHORTEST_S:g} to {longest_s} s",
            f"{lost} {'; '.join(sessions.cut)}".strip(),
            f"{outlasted} went on for more than {DRAIN_S:g} s in a worker that was used up",
            str(lost),
            *at_most(lost, 0),
        ),
        Row(
            "connects that failed",
            f"{sessions.refused.total()} {'; '.join(sessions.refused)}".strip(),
            "",
            str(sessions.refused.total()),
            *at_most(sessions.refused.total(), 0),
        ),
        Row(
            "most workers at once: spares, and those that wait for their last sessions, included",
            f"{watch.most}, {watch.most_mib:,} MiB",
            f"{WORKERS} wanted; {len(watch.draining_since)} were used up",
            f"{watch.most - WORKERS:+d}",
        ),
    ]


async def _run(endpoint: str, sessions: Sessions) -> None:
    async with async_playwright() as playwright:
        session = partial(_session, playwright, endpoint, sessions)
        await at_once(WORKERS * SLOTS, sessions.durations_s, session)


async def _session(playwright: Playwright, endpoint: str, sessions: Sessions, duration_s: float) -> None:
    """A page that is read twice a second, until the session's time is over."""
    try:
        browser = await playwright.chromium.connect(endpoint, timeout=90_000)
    except Error as error:
        sessions.refused[str(error).splitlines()[0]] += 1
        return
    until = time.monotonic() + duration_s
    try:
        page = await browser.new_page()
        await page.goto("data:text/html,<h1>bench</h1>")
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(BEAT_S, left_s))
            await page.inner_text("h1")
        await browser.close()
    except Error as error:
        sessions.cut[str(error).splitlines()[0]] += 1
    else:
        sessions.served += 1
        if sessions.served % 20 == 0:
            progress(f"  {sessions.served} of {len(sessions.durations_s)} sessions")


def _outlasted(grid: Grid, draining_since: dict[str, float]) -> int:
    """How many sessions ended more than DRAIN_TIMEOUT after their worker had been used up."""
    found = 0
    for key in grid.redis("KEYS", "session:*"):
        worker, ended = (each.decode() for each in grid.redis("HMGET", key, "workerId", "endedAt"))
        found += float(ended) > draining_since.get(worker, float("inf")) + DRAIN_S
    return found


COMPARES = (
    f"{WORKERS} workers of {SLOTS} slots with real Chromiums, each used up by {LIFETIME} sessions, all slots taken all"
    " the time by sessions of very different length, that read a page twice a second. Default settings for drains."
)
