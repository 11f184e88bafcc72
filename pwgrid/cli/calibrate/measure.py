"""Measures a private grid: memory, processor time, launches, throughput."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from playwright.async_api import async_playwright

from pwgrid.cli.ask_grid import ask
from pwgrid.cli.calibrate import load_generator, plot
from pwgrid.cli.calibrate.load_generator import Session
from pwgrid.cli.calibrate.sizing import Measured, Step, bend, goes_on
from pwgrid.cli.run import PrivateGrid, ReadyReport
from pwgrid.cli.run_defaults import NEVER, as_environment, usable_cores
from pwgrid.common.errors import GridError
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.common.wording import counted
from pwgrid.master.memory_readings import MIB, available_mib, memory_bytes
from pwgrid.settings.model import Settings

TOGETHER: Final = 3
"""So many clients at once are run to measure a session's memory, which is highest when all of them have their pages."""

SETTLE_S: Final = 1.0
"""A browser gives memory back a moment after a session's end; no event says when."""

SHORT_S: Final = 3.0
AVAILABLE_S: Final = 120.0
LOOK_S: Final = 0.02
PER_CORE: Final = 16
"""The most clients at once for each core, without --most; 4 are tried in any case."""


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The options of `pwgrid calibrate`: the page (None: a stand-in) or the script that is a session, how many clients
    at once are tried, for how many `seconds` each number of them, and where the results go."""

    url: str | None
    script: Path | None
    browser_type: BrowserType
    seconds: float
    most: int | None
    svg: Path | None
    write: bool
    as_json: bool

    @property
    def most_clients(self) -> int:
        """The most clients at once."""
        return self.most or max(4, int(usable_cores() * PER_CORE))


def settings_for(asked: CalibrateOptions) -> dict[str, object]:
    """The settings of a grid that recycles no worker, refuses no client and runs no canary while it is measured."""
    return {
        "max_concurrent_sessions": max(asked.most_clients, TOGETHER),
        "max_lifetime_sessions": NEVER,
        "max_worker_memory_mib": 0,
        "max_worker_memory_hard_mib": 0,
        "max_worker_age": 0,
        "canary_interval": 0,
        "log_level": "warning",
        **{f"{each}_workers": int(each == asked.browser_type) for each in BROWSER_TYPES},
        "default_browser_type": asked.browser_type,
    }


def calibrate(
    asked: CalibrateOptions,
    settings: Settings,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> Measured:
    """Measures, in about half a minute and `asked.seconds` for each number of clients. Raises GridError.

    `arguments` are those of the grid's `pwgrid serve`, and have none of `settings_for`, which they would override.
    """
    grid = PrivateGrid(arguments, {**environment, **as_environment(settings_for(asked))})
    try:
        ready = grid.ready()
        if ready is None or ready.reason is not None:
            raise GridError("nothing can be measured: " + (ready.reason or "") if ready else "the grid did not start")
        return asyncio.run(_Calibration(asked, settings, ready, say).run())
    finally:
        grid.stop()


class _Calibration:
    def __init__(
        self, asked: CalibrateOptions, settings: Settings, ready: ReadyReport, say: Callable[[str], None]
    ) -> None:
        self._asked = asked
        self._metric = settings.memory_metric
        self._ready = ready
        self._grid = ready.grid()
        self._say = say
        self._cores = usable_cores()

    async def run(self) -> Measured:
        available = available_mib()
        async with self._session() as session:
            await load_generator.once(session)  # what only the first session takes must not count for each
            worker_mib, session_mib = await self._memory(session)
            cpu_s = await self._cpu(session)
            launch_s, launches_per_s = await self._launches()
            steps = await self._steps(session)
        growth_mib = await self._growth(worker_mib, steps)
        return Measured(
            cores=self._cores,
            available_mib=available,
            metric=self._metric,
            worker_mib=round(worker_mib, 1),
            session_mib=round(session_mib, 1),
            growth_mib=round(growth_mib, 3),
            launch_s=round(launch_s, 2),
            launches_per_s=round(launches_per_s, 2),
            cpu_s=round(cpu_s, 3),
            steps=tuple(steps),
        )

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        asked, ready = self._asked, self._ready
        if asked.script is not None:
            yield partial(load_generator.run_program, load_generator.command(asked.script), ready.variables())
            return
        url = asked.url or load_generator.STAND_IN
        async with async_playwright() as playwright:
            yield partial(load_generator.open_page, getattr(playwright, asked.browser_type), ready.connect, url)

    async def _memory(self, session: Session) -> tuple[float, float]:
        """The MiB of an idle worker, and of each session in it."""
        await asyncio.sleep(SETTLE_S)
        (idle,) = self._worker_mib()
        highest, together = idle, load_generator.measure(session, TOGETHER, max(SETTLE_S, self._asked.seconds))
        sessions = asyncio.create_task(together)
        while not sessions.done():
            highest = max(highest, *await asyncio.to_thread(self._worker_mib))
            await asyncio.sleep(LOOK_S)
        await sessions
        session_mib = max(1.0, (highest - idle) / TOGETHER)
        self._say(f"memory ({self._metric}): {idle:.0f} MiB for an idle worker, {session_mib:.0f} MiB for each session")
        return idle, session_mib

    async def _cpu(self, session: Session) -> float:
        """Processor seconds of one session, without those of its client."""
        before, since, sessions = self._cpu_s(), time.monotonic(), 0
        while time.monotonic() - since < min(self._asked.seconds, SHORT_S) or not sessions:
            await load_generator.once(session)
            sessions += 1
        cpu_s = max(0.001, (self._cpu_s() - before) / sessions)
        self._say(f"processor: {cpu_s:.2f} s of one core for a session, without its client")
        return cpu_s

    async def _launches(self) -> tuple[float, float]:
        """Seconds of a launch, and launches a second, when one for each core starts at once."""
        more = max(1, round(self._cores))
        before = {worker["id"] for worker in self._workers()}
        since = time.monotonic()
        ask(self._grid, "scale", {self._asked.browser_type: 1 + more})
        took: dict[str, float] = {}
        while len(took) < more:
            now = time.monotonic() - since
            took |= {
                each["id"]: took.get(each["id"], now)
                for each in self._workers()
                if each["id"] not in before and each["status"] == "available"
            }
            if now > AVAILABLE_S:
                raise GridError(f"{more - len(took)} of {more} workers are not there after {AVAILABLE_S:g} s")
            await asyncio.sleep(LOOK_S)
        mean, per_s = sum(took.values()) / more, more / max(took.values())
        self._say(f"launches: {mean:.1f} s each, {per_s:.1f} a second with {more} at once")
        return mean, per_s

    async def _steps(self, session: Session) -> list[Step]:
        steps: list[Step] = []
        clients = 1
        while clients <= self._asked.most_clients and goes_on(steps):
            step, failures = await load_generator.measure(session, clients, self._asked.seconds)
            if not step.sessions:
                raise GridError(f"no session of {clients} at once worked: {(failures or ['no reason'])[0]}")
            steps.append(step)
            self._say(f"{clients} at once: {step.per_s:.2f} sessions/s, {step.p50_s:.2f} s each")
            clients *= 2
        return steps

    async def _growth(self, worker_mib: float, steps: Sequence[Step]) -> float:
        """The MiB that each session left behind, on average over all workers."""
        await asyncio.sleep(SETTLE_S)
        sizes = self._worker_mib()
        sessions = sum(step.sessions + step.failed for step in steps)
        return max(0.0, (sum(sizes) - len(sizes) * worker_mib) / max(1, sessions))

    def _workers(self) -> list[dict[str, Any]]:
        """The workers of the measured pool; the configuration may have other pools."""
        return [each for each in ask(self._grid, "status")["workers"] if each["pool"] == self._asked.browser_type]

    def _trees(self) -> list[list[psutil.Process]]:
        """Each worker's processes, with its browser server and its browser."""
        trees = []
        for worker in self._workers():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(worker["pid"])
                trees.append([process, *process.children(recursive=True)])
        return trees

    def _worker_mib(self) -> list[float]:
        return [sum(memory_bytes(each, self._metric) for each in tree) / MIB for tree in self._trees()]

    def _cpu_s(self) -> float:
        """Processor seconds of all workers; those of ended processes count for their parents."""
        return sum(load_generator.cpu_s(each) for tree in self._trees() for each in tree)


def report(found: Measured) -> list[str]:
    """The plot, and where it bends."""
    best, last = bend(found.steps), found.steps[-1]
    at = counted(best.clients, "client")
    lines = [*plot.as_text(found.steps), f"it bends at {at}: {best.per_s:.2f} sessions per second"]
    return (
        [*lines, "it was still rising: --most tries more clients"] if best is last and len(found.steps) > 1 else lines
    )
