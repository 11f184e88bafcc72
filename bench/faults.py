"""`python -m bench.faults [--rounds N] [rows]`: the kill table of docs/faults.md in figures.

Each round of each row is a fresh grid of two workers with five live sessions in real browsers, that click and read
twice a second, a Playwright client that connects all the time, and one that asks for /health every 20 ms. Prints a
Markdown table; exit code 1 when somebody lost what the table says is kept. tests/faults looks at the counters.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Playwright, async_playwright
from redis.exceptions import RedisError

from bench.harness import MachineMeter, progress, table, versions
from pwgrid.common.errors import GridError
from tests.support.disk import NoDiskError, fill, small_disk
from tests.support.grid import NEVER, Grid, eventually, eventually_async, running_grid
from tests.support.load import Load, under_load
from tests.support.redis import RedisServer

WORKERS = 2
SESSIONS = 5
LOST_S = 5
HEARTBEAT_S = 1
AWAY_S = 6.0
"""Longer than a key in Redis lives."""

FROZEN_S = 3.0
"""What a service manager's watchdog waits."""

LONGEST = "'x'.repeat(2 ** 29 - 24)"
"""The longest string of JavaScript. The answer that holds it is longer."""

POLL_S = 0.01
LIMIT_S = 60.0
IDLE_S = 0.5
KEPT = {"MAX_LIFETIME_SESSIONS": NEVER, "CANARY_INTERVAL": "600"}
ROOM = {**KEPT, "MAX_CONCURRENT_SESSIONS": "8"}
HANGS = {**KEPT, "WORKER_LOST_THRESHOLD": str(LOST_S)}
BEATS = {**KEPT, "HEARTBEAT_INTERVAL": str(HEARTBEAT_S), "REDIS_KEY_TTL": "4"}


@dataclass
class Scene:
    """One round: the grid, its clients, and what is broken."""

    grid: Grid
    load: Load
    playwright: Playwright
    redis: RedisServer | None = None
    disk: Path | None = None
    own: int = 0
    """Sessions that may be lost: those of what was killed."""
    hurt: set[int] = field(default_factory=set)
    """Pids that cannot be part of a whole grid any more."""
    since: float = 0.0

    def status(self) -> dict[str, Any]:
        return self.grid.ask("status")

    async def busiest(self) -> dict[str, Any]:
        """The worker with the most sessions, once all of them are known: workers tell their counts every 3 s.

        The clients live in this process: they go on meanwhile, or a connect seems to take as long as this does.
        """

        def told() -> list[dict[str, Any]]:
            workers: list[dict[str, Any]] = self.status()["workers"]
            return workers if sum(each["active"] for each in workers) >= SESSIONS else []

        workers = await eventually_async(told, "all sessions are told")
        worker: dict[str, Any] = max(workers, key=lambda each: each["active"])
        return worker

    def strike(self, pid: int, signum: int, own: int = 0) -> None:
        """From now on it counts."""
        self.hurt.add(pid)
        self.own = own
        self.begin()
        os.kill(pid, signum)

    def begin(self) -> None:
        self.since = time.monotonic()
        self.load.longest_connect_s = self.load.longest_knock_s = 0.0


# What each row breaks

Act = Callable[[Scene], Awaitable[None]]


async def nothing(scene: Scene) -> None:
    scene.begin()
    await scene.load.goes_on(beats=8, connects=10)


async def proxy(scene: Scene) -> None:
    scene.strike(scene.status()["proxy"]["pid"], signal.SIGKILL)


async def frozen_proxy(scene: Scene) -> None:
    scene.strike(scene.status()["proxy"]["pid"], signal.SIGSTOP)


async def master(scene: Scene) -> None:
    scene.begin()
    scene.grid.kill_master()
    await _start_again(scene)


async def frozen_master(scene: Scene) -> None:
    scene.begin()
    scene.grid.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    scene.grid.kill_master()
    await _start_again(scene)


async def detached(scene: Scene) -> None:
    scene.begin()
    scene.grid.process.send_signal(signal.SIGUSR1)
    await asyncio.to_thread(scene.grid.process.wait)
    await _start_again(scene)


async def worker(scene: Scene) -> None:
    scene.strike((await scene.busiest())["pid"], signal.SIGKILL)


async def frozen_worker(scene: Scene) -> None:
    scene.strike((await scene.busiest())["pid"], signal.SIGSTOP)


async def browser_server(scene: Scene) -> None:
    victim = await scene.busiest()
    scene.strike(victim["nodePid"], signal.SIGKILL, victim["active"])


async def browser(scene: Scene) -> None:
    victim = await scene.busiest()
    (pid,) = (child.pid for child in psutil.Process(victim["nodePid"]).children())
    scene.hurt.add(victim["nodePid"])  # goes with its browser
    scene.strike(pid, signal.SIGKILL, victim["active"])


async def frozen_browser_server(scene: Scene) -> None:
    victim = await scene.busiest()
    scene.strike(victim["nodePid"], signal.SIGSTOP, victim["active"])


async def frozen_browser(scene: Scene) -> None:
    victim = await scene.busiest()
    (pid,) = (child.pid for child in psutil.Process(victim["nodePid"]).children())
    scene.hurt.add(victim["nodePid"])
    scene.strike(pid, signal.SIGSTOP, victim["active"])


async def zygotes(scene: Scene) -> None:
    """The browser can start no page any more; a client asks it for one, and all after that client get one elsewhere."""
    victim = await scene.busiest()
    scene.hurt.add(victim["nodePid"])
    scene.begin()
    for process in psutil.Process(victim["nodePid"]).children(recursive=True):
        if "--type=zygote" in process.cmdline():
            process.kill()
    with contextlib.suppress(PlaywrightError):
        while True:
            await _opens_page(scene)
    for _ in range(5):
        await _opens_page(scene)


async def long_answer(scene: Scene) -> None:
    page = await (await scene.playwright.chromium.connect(scene.grid.endpoint)).new_page()
    scene.begin()
    try:
        await page.evaluate(LONGEST)
    except PlaywrightError as error:
        if "no message may have more than" not in str(error):
            raise
    await page.context.browser.close()  # type: ignore[union-attr]


async def long_event(scene: Scene) -> None:
    page = await (await scene.playwright.chromium.connect(scene.grid.endpoint)).new_page()
    scene.begin()
    await page.evaluate(f"console.log({LONGEST})")
    await page.context.browser.close()  # type: ignore[union-attr]


async def _opens_page(scene: Scene) -> None:
    """A new client, as one more session: it may get the victim, or the well one."""
    browser = await scene.playwright.chromium.connect(scene.grid.endpoint)
    try:
        page = await browser.new_page()
        if await page.evaluate("6 * 7") != 42:
            raise AssertionError("a browser cannot compute 6 * 7")
    finally:
        await browser.close()


async def embedded_redis(scene: Scene) -> None:
    scene.strike(scene.status()["redis"]["pid"], signal.SIGKILL)


async def frozen_redis(scene: Scene) -> None:
    assert scene.redis is not None
    scene.begin()
    scene.redis.signal(signal.SIGSTOP)
    await asyncio.sleep(AWAY_S)
    scene.redis.signal(signal.SIGCONT)
    scene.since = time.monotonic()


async def emptied_redis(scene: Scene) -> None:
    assert scene.redis is not None
    scene.begin()
    scene.redis.kill()
    await asyncio.sleep(AWAY_S)
    scene.redis.start()
    scene.since = time.monotonic()


async def full_disk(scene: Scene) -> None:
    assert scene.disk is not None
    scene.begin()
    filler = fill(scene.disk)
    await scene.load.goes_on(beats=8, connects=10)
    if not scene.status()["problems"]:
        raise AssertionError("a full disk does not show in the status")
    filler.unlink()
    scene.since = time.monotonic()


async def everything(scene: Scene) -> None:
    pids = {scene.grid.process.pid, *scene.grid.processes()}
    pids |= {child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)}
    scene.hurt, scene.own = pids, SESSIONS
    scene.begin()
    for pid in (scene.grid.process.pid, *pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    scene.grid.process.wait()
    await scene.load.all_lost()
    await _start_again(scene)
    scene.load.refused.clear()  # while nobody listened
    scene.load.longest_connect_s = 0.0


async def _start_again(scene: Scene) -> None:
    scene.since = time.monotonic()
    await asyncio.to_thread(scene.grid.start_again)


@dataclass(frozen=True)
class Fault:
    """One row. `in_hand`: so many clients may be refused, who were in the hands of what was killed."""

    name: str
    act: Act
    environment: dict[str, str]
    whole: str = ""
    target_s: float | None = None
    in_hand: int = 0
    needs: str = ""


FAULTS = {
    "nothing": Fault("nothing, for comparison", nothing, KEPT),
    "proxy": Fault("proxy, SIGKILL", proxy, KEPT, "since the kill", 1.0, in_hand=2),
    "frozen-proxy": Fault(
        "proxy, SIGSTOP", frozen_proxy, HANGS, f"since SIGSTOP, {LOST_S} s of it the threshold", in_hand=2
    ),
    "master": Fault("master, SIGKILL, then started again", master, KEPT, "since the start", 3.0),
    "frozen-master": Fault(
        f"master, SIGSTOP, after {FROZEN_S:g} s killed and started again", frozen_master, KEPT, "since the start", 3.0
    ),
    "detached": Fault(
        "master, SIGUSR1, then started again", detached, {**KEPT, "DETACH_GRACE": "60"}, "since the start", 3.0
    ),
    "worker": Fault("worker, SIGKILL", worker, KEPT, "since the kill"),
    "frozen-worker": Fault("worker, SIGSTOP", frozen_worker, HANGS, f"since SIGSTOP, {LOST_S} s of it the threshold"),
    "browser-server": Fault("browser server, SIGKILL", browser_server, KEPT, "since the kill"),
    "browser": Fault("browser, SIGKILL", browser, KEPT, "since the kill"),
    "frozen-browser-server": Fault(
        "browser server, SIGSTOP", frozen_browser_server, HANGS, f"since SIGSTOP, {LOST_S} s of it the threshold"
    ),
    "frozen-browser": Fault(
        "browser, SIGSTOP", frozen_browser, HANGS, f"since SIGSTOP, {LOST_S} s of it the threshold"
    ),
    "zygotes": Fault("the browser's zygotes, SIGKILL", zygotes, ROOM, "since the kill"),
    "long-answer": Fault("`evaluate` of 512 MiB", long_answer, ROOM, "since the call"),
    "long-event": Fault("`console.log` of 512 MiB", long_event, ROOM, "since the call"),
    "redis": Fault("embedded Redis, SIGKILL", embedded_redis, BEATS, "since the kill, counters too"),
    "frozen-redis": Fault(
        f"external Redis, SIGSTOP for {AWAY_S:g} s", frozen_redis, BEATS, "since SIGCONT, counters too", needs="redis"
    ),
    "emptied-redis": Fault(
        f"external Redis, away for {AWAY_S:g} s, back empty",
        emptied_redis,
        BEATS,
        "since its start, counters too",
        needs="redis",
    ),
    "full-disk": Fault("disk full", full_disk, KEPT, "since there is room", needs="disk"),
    "everything": Fault("everything, SIGKILL, then started again", everything, KEPT, "since the start"),
}


@contextlib.contextmanager
def surroundings(fault: Fault) -> Iterator[tuple[dict[str, str], RedisServer | None, Path | None]]:
    """The environment of the row's grid, and what is outside of it."""
    if fault.needs == "redis":
        redis = RedisServer()
        try:
            yield {**fault.environment, "REDIS_URL": redis.url}, redis, None
        finally:
            redis.close()
    elif fault.needs == "disk":
        with small_disk() as disk:
            yield {**fault.environment, "PWGRID_RUNTIME_DIR": str(disk)}, None, disk
    else:
        yield fault.environment, None, None


async def until_whole(scene: Scene, *, counters: bool) -> float:
    """Seconds since what counts until everything that is wanted is there again, and answers."""
    deadline = scene.since + LIMIT_S
    while not (_is_whole(scene) and (not counters or _counters_are_true(scene))):
        if time.monotonic() > deadline:
            raise AssertionError(f"not whole after {LIMIT_S:g} s: {scene.status()}")
        await asyncio.sleep(POLL_S)
    await asyncio.to_thread(scene.grid.get, "/health")
    return time.monotonic() - scene.since


def _is_whole(scene: Scene) -> bool:
    try:
        status = scene.status()
    except GridError:
        return False
    serving = [
        each
        for each in status["workers"]
        if each["status"] == "available" and each["slots"] and not {each["pid"], each["nodePid"]} & scene.hurt
    ]
    others = {status["proxy"]["pid"], status["redis"]["pid"] if scene.redis is None else -1}
    return len(serving) == WORKERS and None not in others and not others & scene.hurt


def _counters_are_true(scene: Scene) -> bool:
    with contextlib.suppress(OSError, GridError, RedisError):  # its process is there before its socket
        return scene.grid.active() >= SESSIONS and len(scene.grid.redis("KEYS", "worker:*")) == WORKERS
    return False


def come_to_rest(grid: Grid) -> None:
    """Returns when the successor of a dead worker has left, and so have all sessions."""
    eventually(lambda: not grid.active() and len(grid.ask("status")["workers"]) == WORKERS, "it is at rest", LIMIT_S)


# Rounds


@dataclass
class Found:
    """What one row came to, over its rounds. Durations in seconds."""

    lost: int = 0
    own: int = 0
    asked: int = 0
    refused: list[str] = field(default_factory=list)
    connect_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


async def round_of(fault: Fault, playwright: Playwright, found: Found) -> None:
    """One round, added to what was found."""
    with (
        surroundings(fault) as (environment, redis, disk),
        running_grid("--chromium", str(WORKERS), environment=environment) as grid,
    ):
        async with under_load(grid, playwright, SESSIONS) as load:
            scene = Scene(grid, load, playwright, redis, disk)
            await fault.act(scene)
            if fault.whole:
                found.whole_s.append(await until_whole(scene, counters="REDIS_KEY_TTL" in environment))
            await load.goes_on(connects=5)
        await asyncio.to_thread(come_to_rest, grid)
    found.lost += len(load.lost)
    found.own += scene.own
    found.asked += load.connects + load.knocks + len(load.refused)
    found.refused += load.refused
    found.connect_s.append(max(load.longest_connect_s, load.longest_knock_s))
    if len(load.lost) > scene.own:
        found.bad.append(f"{len(load.lost)} sessions lost where {scene.own} may be: {list(load.lost.values())[:2]}")
    if len(load.refused) > fault.in_hand:
        found.bad.append(f"refused: {load.refused[:3]}")


# The report

_HEADS = ("what", "sessions lost", "refused", "longest connect", "whole again", "target")


def _row(fault: Fault, found: Found, rounds: int) -> tuple[str, ...]:
    live = SESSIONS * rounds
    own = f", its own {found.own}" if found.own else ""
    whole = f"{_spread(found.whole_s)} {fault.whole}" if found.whole_s else "–"
    target = f"{fault.target_s:g} s" if fault.target_s else ""
    if fault.target_s and statistics.median(found.whole_s) > fault.target_s:
        target += " MISSED"
    return (
        fault.name,
        f"{found.lost} of {live}{own}",
        f"{len(found.refused)} of {found.asked}",
        _spread(found.connect_s),
        whole,
        target,
    )


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({max(seconds):.2f})"


async def _measure(names: list[str], rounds: int, busy: list[float]) -> tuple[list[tuple[str, ...]], list[str]]:
    rows, bad = [], []
    async with async_playwright() as playwright:
        for name in names:
            fault, found = FAULTS[name], Found()
            try:
                for number in range(rounds):
                    machine = MachineMeter()  # of ours nothing runs now; later some of it is not our child any more
                    await asyncio.sleep(IDLE_S)
                    busy.append(machine.by_others())
                    await round_of(fault, playwright, found)
                    progress(f"{fault.name}: round {number + 1} of {rounds}: {_row(fault, found, number + 1)[1:]}")
            except NoDiskError as reason:
                progress(f"{fault.name}: left out, no file system can be mounted: {reason}")
                continue
            rows.append(_row(fault, found, rounds))
            bad += [f"{fault.name}: {each}" for each in found.bad]
    return rows, bad


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="row", help=f"which (all): {', '.join(FAULTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if unknown := set(given.names) - FAULTS.keys():
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    busy: list[float] = []
    rows, bad = asyncio.run(_measure(given.names or list(FAULTS), given.rounds, busy))
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d")
    print(f"`{shlex.join(['python', '-m', 'bench.faults', *sys.argv[1:]])}`, {today}, {found}.")
    print(f"Medians of {given.rounds} rounds, and the slowest. Before the rounds other programs kept", end=" ")
    print(f"{statistics.mean(busy):.2f} of {os.cpu_count()} cores busy.\n")
    print("\n".join(table(_HEADS, *rows)))
    for each in bad:
        print(f"BAD {each}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
