"""Measures a private grid with real sessions: memory, processor time, launches, throughput."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Final

import psutil
from playwright.async_api import BrowserType as PlaywrightBrowserType
from playwright.async_api import Error, async_playwright

from pwgrid.cli.ask_grid import ask
from pwgrid.cli.calibrate.sizing import Measured, Step, goes_on
from pwgrid.cli.run import NEVER, PrivateGrid, ReadyReport, as_environment, usable_cores
from pwgrid.common.errors import GridError
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.master.memory_readings import MIB, available_mib, memory_bytes
from pwgrid.settings.model import Settings

TOGETHER: Final = 3
"""So many clients at once are run to measure a session's memory, which is highest when all of them have their pages."""

SETTLE_S: Final = 1.0
"""A browser gives memory back a moment after a session's end; no event says when."""

SHORT_S: Final = 3.0
AVAILABLE_S: Final = 120.0
SAMPLE_INTERVAL_S: Final = 0.02
PER_CORE: Final = 16
"""The most clients at once for each core, without --most; 4 are tried in any case."""

SESSION_S: Final = 120.0
"""A session that takes longer has failed."""

STAND_IN: Final = (
    "data:text/html,<title>stand-in</title><script>"
    "for (let i = 0; i < 2000; i++) { const row = document.createElement('p'); row.textContent = 'row ' + i;"
    " document.body ? document.body.append(row) : document.documentElement.append(row) }</script>"
)
"""The page that sessions open without --url and --script: 2,000 rows."""

NO_POOLS: Final = ","
"""A list without an entry, which takes the place of the pools that the configuration file has."""

Session = Callable[[], Awaitable[None]]
"""Runs one session from connect to close. Raises SessionFailed."""


class SessionFailed(Exception):
    """A session failed; `str()` says why."""


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
    """The settings of a grid that has one pool, recycles no worker, refuses no client and runs no canary while it is
    measured."""
    return {
        "pools": NO_POOLS,
        "max_concurrent_sessions": max(asked.most_clients, TOGETHER),
        "max_lifetime_sessions": NEVER,
        "max_launches": 0,
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
            await once(session)  # what only the first session takes must not count for each
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
            yield partial(run_program, command(asked.script), ready.variables())
            return
        url = asked.url or STAND_IN
        async with async_playwright() as playwright:
            yield partial(open_page, getattr(playwright, asked.browser_type), ready.connect, url)

    async def _memory(self, session: Session) -> tuple[float, float]:
        """The MiB of an idle worker, and of each session in it."""
        await asyncio.sleep(SETTLE_S)
        (idle,) = self._worker_mib()
        highest, together = idle, run_clients(session, TOGETHER, max(SETTLE_S, self._asked.seconds))
        sessions = asyncio.create_task(together)
        while not sessions.done():
            highest = max(highest, *await asyncio.to_thread(self._worker_mib))
            await asyncio.sleep(SAMPLE_INTERVAL_S)
        await sessions
        session_mib = max(1.0, (highest - idle) / TOGETHER)
        self._say(f"memory ({self._metric}): {idle:.0f} MiB for an idle worker, {session_mib:.0f} MiB for each session")
        return idle, session_mib

    async def _cpu(self, session: Session) -> float:
        """Processor seconds of one session, without those of its client."""
        before, since, sessions = self._cpu_s(), time.monotonic(), 0
        while time.monotonic() - since < min(self._asked.seconds, SHORT_S) or not sessions:
            await once(session)
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
            await asyncio.sleep(SAMPLE_INTERVAL_S)
        mean, per_s = sum(took.values()) / more, more / max(took.values())
        self._say(f"launches: {mean:.1f} s each, {per_s:.1f} a second with {more} at once")
        return mean, per_s

    async def _steps(self, session: Session) -> list[Step]:
        steps: list[Step] = []
        clients = 1
        while clients <= self._asked.most_clients and goes_on(steps):
            step, failures = await run_clients(session, clients, self._asked.seconds)
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
        """The workers of the measured pool."""
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
        total = 0.0
        for tree in self._trees():
            for each in tree:
                with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                    total += sum(each.cpu_times()[:4])
        return total


async def open_page(browser_type: PlaywrightBrowserType, endpoint: str, url: str) -> None:
    """A session that opens a page by Playwright's own client, in a context of its own."""
    try:
        browser = await browser_type.connect(endpoint)
        try:
            page = await browser.new_page()
            await page.goto(url)
            await page.title()
        finally:
            await browser.close()
    except Error as error:
        raise SessionFailed(str(error).partition("\n")[0]) from None


async def run_program(argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """A session that is a program, which finds the grid by `variables`, as under `pwgrid run`."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise SessionFailed(f"{argv[-1]} ended with {process.returncode}: {last}")


def command(path: Path) -> list[str]:
    """The command that runs a script. Raises GridError for a file that cannot be run."""
    if not path.is_file():
        raise GridError(f"--script {path}: there is no such file")
    absolute = str(path.resolve())
    if path.suffix == ".py":
        return [sys.executable, absolute]
    if path.suffix in (".js", ".cjs", ".mjs"):
        return ["node", absolute]
    if not os.access(path, os.X_OK):
        raise GridError(f"--script {path}: it is neither .py nor .js, and not executable")
    return [absolute]


async def run_clients(session: Session, clients: int, seconds: float) -> tuple[Step, list[str]]:
    """Run sessions in `clients` loops, which begin none after `seconds`, and wait for the last ones. Returns the
    figures, and the sentence of each session that failed."""
    durations: list[float] = []
    failures: list[str] = []
    until = time.monotonic() + seconds

    async def loop() -> None:
        while (since := time.monotonic()) < until:
            try:
                async with asyncio.timeout(SESSION_S):
                    await session()
            except SessionFailed as failed:
                failures.append(str(failed))
            except TimeoutError:
                failures.append(f"it took more than {SESSION_S:g} s")
            else:
                durations.append(time.monotonic() - since)

    psutil.cpu_percent()  # the next call tells of the time since this one
    since = time.monotonic()
    await asyncio.gather(*(loop() for _ in range(clients)))
    took_s = time.monotonic() - since
    busy_cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
    ordered = sorted(durations) or [0.0]
    step = Step(
        clients,
        len(durations),
        len(failures),
        round(took_s, 3),
        round(_quantile(ordered, 0.5), 4),
        round(_quantile(ordered, 0.95), 4),
        round(busy_cores, 2),
    )
    return step, failures


async def once(session: Session) -> None:
    """Run one session that has to work. Raises GridError when it fails."""
    try:
        async with asyncio.timeout(SESSION_S):
            await session()
    except SessionFailed as failed:
        raise GridError(f"the session that is to be measured fails: {failed}") from None
    except TimeoutError:
        raise GridError(f"the session that is to be measured takes more than {SESSION_S:g} s") from None


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
