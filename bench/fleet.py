"""Bench: what a grid of thousands of workers costs its Redis, its proxy and its operators.

`python -m bench.fleet [--workers 10,100] [--quick] [--write]` prints the table; with --write it also puts table, curve
and versions into docs/scaling.md and docs/images/scaling.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from bench.client import Client, ClientProcess
from bench.fleet_page import Curve, write_page
from bench.fleet_workers import BROWSER_TYPE, HOSTS, POOL, SLOTS, Fleet, StandIn
from bench.harness import CpuMeter, MachineMeter, Options, Row, T, at_least, cpu_us, every, p99, progress, sizes, table
from bench.servers import driver, grid_of
from pwgrid.settings.model import Settings
from tests.support import raw
from tests.support.grid import NEVER, Grid, eventually
from tests.support.redis import RedisServer

SIZES: Final = (10, 100, 500, 1000, 2000, 5000)
QUICK_SIZES: Final = (10, 100)

MANY: Final = 500
"""Workers of the grid whose rate of connects is compared with that of one."""

AT_ONCE: Final = 8
"""So few that the selections of all clients under way stay below REDIS_TIMEOUT at every size."""

LIVE: Final = 2
"""Sessions of each stand-in, of its SLOTS."""

BUSY: Final = 0.7
"""The share of one core at which a Redis counts as full: it works on one core, and who asks it waits for those before
them, at 0.7 for 0.7 / (1 - 0.7) = 2.3 times the time of the work itself (M/M/1)."""

PER_S: Final = 100
"""The rate of connects at which the table says how busy Redis is."""

PAGE_SESSIONS_PER_S: Final = 2
"""So few that the selections of 5,000 workers keep up with them: else an open page would slow them down, and save more
than it costs."""
STALE_SHARE: Final = 10
"""One of so many workers is dead when the reaper comes."""

TIMEOUT_S: Final = 20
"""Of calls to Redis, so that a busy machine gives figures rather than failures. The default is 1 s."""

BEAT_S: Final = Settings().heartbeat_interval


@dataclass(frozen=True, slots=True)
class InRedis:
    """What the scripts cost with so many workers, in CPU of Redis, which does not grow when the machine has other work;
    `select_p50_ms` and `select_p99_ms` are by the clock."""

    beat_us: float
    select_us: float
    select_p50_ms: float
    """As who asks sees it, one at a time."""
    select_p99_ms: float
    reap_ms: float
    """With nobody to reap."""
    reap_dead_ms: float
    """With every tenth worker dead, each with its sessions."""
    dead: int


@dataclass(frozen=True, slots=True)
class InGrid:
    """What a real proxy does with so many workers registered."""

    connects_per_s: float
    connect_p50_ms: float
    connect_p99_ms: float
    redis_us: float
    """CPU of Redis for each connect, the session's end included, heartbeats left out."""
    workers_ms: float
    workers_kib: float
    ready_ms: float
    status_ms: float
    page: float
    """What an open page costs proxy and Redis, in percent of a core, while sessions come and go."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures of one size."""

    workers: int
    scripts: InRedis
    grid: InGrid

    @property
    def beats(self) -> float:
        """The share of a core that heartbeats take of Redis."""
        return self.workers / BEAT_S * self.scripts.beat_us / 1e6

    def busy(self, connects_per_s: float) -> float:
        """The share of a core that Redis is busy at so many connects per second."""
        return self.beats + connects_per_s * self.grid.redis_us / 1e6

    @property
    def full_at(self) -> float:
        """The connects per second at which Redis is BUSY."""
        return max(0.0, BUSY - self.beats) / (self.grid.redis_us / 1e6)


def run(options: Options) -> list[Row]:
    many = min(MANY, max(options.workers)) if options.workers else MANY
    rows = [_rate(options, many)]
    for found in measure(options.workers or (QUICK_SIZES if options.quick else SIZES), options):
        rows += [
            Row(
                f"{found.workers:,} workers: selection, p50 and p99",
                f"{found.scripts.select_p50_ms:.2f} and {found.scripts.select_p99_ms:.2f} ms",
                f"{found.scripts.select_us:,.0f} µs of CPU of Redis",
            ),
            Row(
                f"{found.workers:,} workers: Redis at {PER_S} connects/s",
                f"{found.busy(PER_S):.1%} of a core",
                f"{found.beats:.1%} without connects",
                f"{BUSY:.0%} at {found.full_at:,.0f} connects/s",
            ),
        ]
    return rows


def measure(sizes: Sequence[int], options: Options) -> list[Measured]:
    """Everything, one size after the other. The largest comes first: if one is too much for the machine, it is that."""
    found: list[Measured] = []
    for workers in sorted(sizes, reverse=True):
        scripts = asyncio.run(_in_redis(workers, options))
        progress(f"  {workers} workers, scripts: {scripts}")
        found.append(Measured(workers, scripts, _in_grid(workers, options)))
        progress(f"  {workers} workers, grid: {found[-1].grid}")
    return found[::-1]


# The scripts alone


async def _in_redis(workers: int, options: Options) -> InRedis:
    with _redis() as server:
        fleet, pid = Fleet(server.url, workers, TIMEOUT_S, LIVE), _pid(server)
        try:
            await fleet.register()
            beats = max(1, -(-options.pick(2000, 300) // workers))
            before = cpu_us(pid)
            for _ in range(beats):
                await fleet.on_each_host(StandIn.beat)
            beat_us = (cpu_us(pid) - before) / (beats * workers)
            taken_ms, select_us = await _selections(fleet, pid, options.pick(300, 60))
            await fleet.on_each_host(StandIn.beat)  # raises if a counter is wrong
            registry = fleet.registries[0]
            before_us = cpu_us(pid)
            for _ in range(3):
                await registry.reap()
            reap_ms = (cpu_us(pid) - before_us) / 3 / 1000
            dead = [*fleet.by_id.values()][::STALE_SHARE]
            with server.client() as client, client.pipeline() as pipeline:
                for each in dead:
                    pipeline.hset(f"worker:{each.field}", "lastHeartbeat", 1)
                pipeline.execute()
            before_us = cpu_us(pid)
            reaped = await registry.reap()
            reap_dead_ms = (cpu_us(pid) - before_us) / 1000
            if reaped.keys() != {each.field for each in dead}:
                raise RuntimeError(f"{len(reaped)} workers were reaped, {len(dead)} are dead")
        finally:
            await fleet.close()
    return InRedis(beat_us, select_us, median(taken_ms), p99(taken_ms), reap_ms, reap_dead_ms, len(dead))


async def _selections(fleet: Fleet, pid: int, number: int) -> tuple[list[float], float]:
    """Takes slots one after the other, uses them and gives them back, a batch at a time. Returns the milliseconds of
    each selection, and the microseconds of CPU that Redis used for one."""
    batch, taken_ms, used_us = min(20, len(fleet.by_id) * (SLOTS - LIVE)), list[float](), 0.0
    renewed_at = time.monotonic()
    while len(taken_ms) < number:
        if time.monotonic() - renewed_at > BEAT_S:
            await fleet.on_each_host(StandIn.beat)
            renewed_at = time.monotonic()
        live, before_us = [], cpu_us(pid)
        for _ in range(batch):
            session_id, began = f"s{len(taken_ms)}", time.perf_counter()
            chosen = await fleet.registries[len(taken_ms) % HOSTS].select(
                BROWSER_TYPE, pool=POOL, max_concurrent=SLOTS, max_lifetime=int(NEVER), session_id=session_id
            )
            taken_ms.append((time.perf_counter() - began) * 1000)
            if chosen is None:
                raise RuntimeError(f"no slot for {session_id}")
            live.append((fleet.by_id[chosen], session_id))
        used_us += cpu_us(pid) - before_us
        for worker, session_id in live:
            await worker.start(session_id)
        for worker, session_id in live:
            await worker.end(session_id)
    return taken_ms, used_us / len(taken_ms)


# A real proxy


@contextlib.contextmanager
def _grid_among(workers: int, client: Client) -> Iterator[tuple[Grid, RedisServer]]:
    """A grid with one worker of its own, whose Redis has so many workers with it. The others have room, too; selections
    take this one, as it is the one with the most sessions in its lifetime."""
    with contextlib.ExitStack() as running:
        server = running.enter_context(_redis())
        environment = {"REDIS_URL": server.url, "MAX_CONCURRENT_SESSIONS": "1000", "REDIS_TIMEOUT": str(TIMEOUT_S)}
        grid = running.enter_context(grid_of(fake=True, environment=environment))
        client.order("burst", target=_target(grid), count=50, at_once=AT_ONCE)  # more than LIVE in its lifetime
        if workers > 1:
            running.enter_context(_others(server, workers - 1))
        yield grid, server


@contextlib.contextmanager
def _others(server: RedisServer, number: int) -> Iterator[None]:
    """Stand-ins in a process of their own. At the end of the block they leave: the grid's counters are looked at."""
    with ClientProcess("fleet_workers", server.url, *map(str, (number, LIVE, BEAT_S, TIMEOUT_S))) as process:
        _heard(process, "registered")
        yield
        process.tell("leave")
        _heard(process, "gone")


def _heard(process: ClientProcess, word: str) -> None:
    if (said := process.said()) != f"{word}\n":
        raise RuntimeError(f"the stand-in workers said {said!r}, not {word}")


def _rate(options: Options, many: int) -> Row:
    """Connects per second among many workers, beside those of a grid with one, in turns."""
    rates: dict[int, list[float]] = {1: [], many: []}
    with Client(driver().version) as client, contextlib.ExitStack() as running:
        grids = {workers: running.enter_context(_grid_among(workers, client))[0] for workers in rates}
        rounds, count = options.pick(10, 2), options.pick(600, 200)
        for number in range(rounds):
            for workers in (1, many) if number % 2 else (many, 1):
                rates[workers].append(_burst(grids[workers], client, count)[0])
            progress(f"  round {number + 1} of {rounds}: " + ", ".join(f"{rates[each][-1]:.0f}/s" for each in rates))
    ratio = median(mine / theirs for mine, theirs in zip(rates[many], rates[1], strict=True))
    return Row(
        f"connects per second, {AT_ONCE} at once, {many:,} workers",
        f"{median(rates[many]):.0f}/s",
        f"{median(rates[1]):.0f}/s with one worker",
        f"{ratio:.2f} ×",
        *at_least(ratio, 0.9, " ×"),
    )


def _burst(grid: Grid, client: Client, count: int) -> tuple[float, list[float]]:
    """Connects per second, and the milliseconds of each. Returns once their sessions have ended."""
    found = client.order("burst", target=_target(grid), count=count, at_once=AT_ONCE)
    (own,) = grid.ask("status")["workers"]
    counter = ("HGET", "cluster:active_connections", f"{BROWSER_TYPE}:{own['id']}")
    eventually(lambda: int(grid.redis(*counter)) == 0, "all slots are free")
    if found["failures"]:
        raise RuntimeError(f"{len(found['failures'])} upgrades failed: {found['failures'][0]}")
    return count / found["seconds"], found["ms"]


def _in_grid(workers: int, options: Options) -> InGrid:
    with Client(driver().version) as client, _grid_among(workers, client) as (grid, server):
        rate, pid = _burst(grid, client, 50)[0], _pid(server)
        count = round(min(2000, max(100, rate * options.pick(4, 1))))
        idle = _cpu_share(pid, float(options.pick(4, 1)))
        began, before_us = time.perf_counter(), cpu_us(pid)
        rate, taken_ms = _burst(grid, client, count)
        redis_us = (cpu_us(pid) - before_us - (time.perf_counter() - began) * idle * 1e6) / count
        asked = options.pick(7, 3)
        workers_ms, (_, _, body) = _asked(lambda: grid.get("/v1/workers"), asked)
        if (listed := len(json.loads(body)["workers"])) != workers:
            raise RuntimeError(f"/v1/workers has {listed} workers of {workers}")
        ready_ms, _ = _asked(lambda: grid.get("/health/ready"), asked)
        status_ms, _ = _asked(grid.status, asked)
        page = _page(grid, server, float(options.pick(5, 1)))
    times_ms = (median(taken_ms), p99(taken_ms))
    return InGrid(rate, *times_ms, redis_us, workers_ms, len(body) / 1024, ready_ms, status_ms, page)


def _asked(ask: Callable[[], T], times: int) -> tuple[float, T]:
    """The median of the milliseconds that an answer takes, and the last answer."""
    taken_ms = []
    for _ in range(times):
        began = time.perf_counter()
        answer = ask()
        taken_ms.append((time.perf_counter() - began) * 1000)
    return median(taken_ms), answer


def _page(grid: Grid, server: RedisServer, window_s: float) -> float:
    """What an open page costs, in percent of a core."""
    pids = {"proxy": grid.status()["proxy"]["pid"], "redis": _pid(server)}
    without, with_page = CpuMeter(pids), CpuMeter(pids)
    with every(1 / PAGE_SESSIONS_PER_S, lambda: raw.session(grid.port).close()):
        _metered(without, window_s)
        with connect(f"ws://127.0.0.1:{grid.port}/v1/live", max_size=None) as socket:
            while '"all":true' not in str(socket.recv()):  # what a page is told first is no cost of its being open
                pass
            reader = threading.Thread(target=_read, args=(socket,))
            reader.start()
            _metered(with_page, window_s)
            socket.close()
            reader.join()
    return (sum(with_page.used.values()) - sum(without.used.values())) / 1e6 / window_s * 100


def _cpu_share(pid: int, window_s: float) -> float:
    """The share of a core that a process uses now."""
    before_us, began = cpu_us(pid), time.perf_counter()
    time.sleep(window_s)
    return (cpu_us(pid) - before_us) / 1e6 / (time.perf_counter() - began)


def _metered(meter: CpuMeter, window_s: float) -> None:
    meter.start()
    time.sleep(window_s)
    meter.stop()


def _read(socket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            socket.recv()


def _target(grid: Grid) -> tuple[str, int, str]:
    return "127.0.0.1", grid.port, "/"


# Redis


@contextlib.contextmanager
def _redis() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        yield server
    finally:
        server.close()


def _pid(server: RedisServer) -> int:
    """Its CPU is read from the kernel: INFO has the same figure, and costs some of it."""
    with server.client() as client:
        return int(client.info("server")["process_id"])


# The table


HEAD: Final = (
    "workers",
    "selection p50, p99 (ms)",
    "a selection (µs)",
    "connects/s",
    "connect p50, p99 (ms)",
    "Redis for a session (µs)",
    "a heartbeat (µs)",
    "heartbeats (% of a core)",
    f"Redis at {PER_S} connects/s (%)",
    f"connects/s with Redis at {BUSY:.0%}",
    "reaper: nobody, a tenth dead (ms of Redis)",
    "GET /v1/workers (ms, KiB)",
    "/health/ready (ms)",
    "status (ms)",
    "a page (% of a core)",
)


def rows_of(found: Sequence[Measured]) -> list[tuple[str, ...]]:
    """The table, its head first."""
    return [HEAD, *map(_cells, found)]


def _cells(found: Measured) -> tuple[str, ...]:
    scripts, grid = found.scripts, found.grid
    return (
        f"{found.workers:,}",
        f"{scripts.select_p50_ms:.2f}, {scripts.select_p99_ms:.2f}",
        f"{scripts.select_us:,.0f}",
        f"{grid.connects_per_s:,.0f}",
        f"{grid.connect_p50_ms:.1f}, {grid.connect_p99_ms:.1f}",
        f"{grid.redis_us:,.0f}",
        f"{scripts.beat_us:.0f}",
        f"{found.beats * 100:.1f}",
        f"{found.busy(PER_S) * 100:.1f}",
        f"{found.full_at:,.0f}",
        f"{scripts.reap_ms:.1f}, {scripts.reap_dead_ms:.1f}",
        f"{grid.workers_ms:.0f}, {grid.workers_kib:,.0f}",
        f"{grid.ready_ms:.0f}",
        f"{grid.status_ms:.0f}",
        f"{grid.page:.1f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--workers", type=sizes, default=SIZES, help="numbers of workers, comma-separated")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast it is")
    parser.add_argument("--write", action="store_true", help="write docs/scaling.md and its curve anew")
    given = parser.parse_args()
    if given.write and len(given.workers) < 2:
        parser.error("a curve takes at least two numbers of workers")
    machine = MachineMeter()
    found = measure(given.workers, Options(given.quick))
    print("\n".join(table(*rows_of(found))))
    if given.write:
        write_page(rows_of(found), curves(found), machine)
    return 0


def curves(found: Sequence[Measured]) -> list[Curve]:
    """What docs/images/scaling.svg shows by the number of workers."""
    through = [(each.workers, each.grid.connects_per_s) for each in found]
    full = [(each.workers, each.full_at) for each in found]
    return [
        Curve("connects per second through one proxy", "#1a7f37", through),
        Curve(f"connects per second with Redis at {BUSY:.0%} of a core: a second one is due", "#bf5700", full),
    ]


COMPARES = (
    f"Stand-in workers of {HOSTS} simulated hosts (names alone: one machine, one Redis), registered and renewed every "
    f"{BEAT_S:g} s by the real scripts. A grid with a real proxy and one fake browser server of its own is one of "
    f"them, and gets all clients, {AT_ONCE} at once; in turns with a grid that is alone. Then by size: selections one "
    f"at a time, with their starts and ends, {LIVE} of {SLOTS} slots taken everywhere; CPU of Redis by the kernel."
)


if __name__ == "__main__":
    sys.exit(main())
