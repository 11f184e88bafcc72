"""`python -m bench.soak --minutes N`: random clients that close, vanish and freeze; then everything is as before.

Prints a table of what was there at the start and at the end. Exit code 1 on any leak, and on any client that did not
get what it should have got.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.harness import memory_kib, progress
from bench.servers import NEVER, driver, eventually, grid_of, settled
from bench.soak_clients import RAW, REAL, Behaviour, Failed, World, works
from tests.support.grid import Grid

PING_TIMEOUT_S = 3.0
SLOTS = 5
RAW_LANES, REAL_LANES = 6, 2
SETTLE_S = 30.0
CELL = 70

Figures = dict[str, str]


@dataclass(slots=True)
class Tally:
    """What the clients did, and what went wrong."""

    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


def lane(world: World, weights: Mapping[Behaviour, int], dice: random.Random, tally: Tally) -> None:
    """One client after the other until the soak is stopped."""
    behaviours, odds = list(weights), list(weights.values())
    while not world.stopped.is_set():
        (behaviour,) = dice.choices(behaviours, odds)
        try:
            behaviour(world, dice)
        except Failed as failure:
            tally.failures[f"{behaviour.__name__}: {failure}"] += 1
        except Exception as error:  # noqa: BLE001 - a lane that ends early would soak less than it says
            tally.failures[f"{behaviour.__name__}: {error!r}"] += 1
        tally.done[behaviour.__name__] += 1


def soak(minutes: float, seed: int, lifetime: str = NEVER, workers: int = 2) -> bool:
    """One soak with its report on stdout. True when nothing leaked and every client was served as it should be."""
    environment = {
        "SESSION_PING_TIMEOUT": str(PING_TIMEOUT_S),
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
        "MAX_LIFETIME_SESSIONS": lifetime,
    }
    tally = Tally()
    with grid_of(workers, environment=environment) as grid:
        world = World(("127.0.0.1", grid.port, "/"), grid.endpoint, driver().version, PING_TIMEOUT_S, threading.Event())
        _warm_up(world, workers)
        settled(grid)
        start, start_memory = eventually(lambda: _steady(grid), "the grid has come to rest"), memory(grid)
        _run_lanes(world, minutes, seed, tally)
        end, end_memory = _figures_once_equal(grid, start), memory(grid)
        ended = sessions_by_end(grid)
    leaks = [name for name in start | end if start.get(name) != end.get(name)]
    rows = [(name, start.get(name, "-"), end.get(name, "-"), "LEAK" if name in leaks else "") for name in start | end]
    rows += [(f"memory, PSS: {name}", start_memory.get(name, "-"), mib, "") for name, mib in end_memory.items()]
    print(f"\nsoak of {minutes:g} min, seed {seed}, {workers} workers of {SLOTS} slots, lifetime {lifetime}\n")
    _print_table([("", "at the start", "at the end", ""), *((n, _cut(a), _cut(b), c) for n, a, b, c in rows)])
    for name in leaks:
        print(f"{name}\n  at the start: {start.get(name)}\n  at the end:   {end.get(name)}\n")
    _print_table([("client", "times", "", ""), *((name, str(n), "", "") for name, n in tally.done.most_common())])
    _print_table([("session record", "times", "", ""), *((name, str(n), "", "") for name, n in ended.most_common())])
    if tally.failures:
        _print_table([("FAILED", "times", "", ""), *((name, str(n), "", "") for name, n in tally.failures.items())])
    unended = [name for name in ended if not name.startswith(("completed", "failed", "expired")) or name.endswith(": ")]
    good = not leaks and not tally.failures and not unended
    print("nothing leaked" if good else f"LEAKS: {', '.join([*leaks, *unended, *tally.failures])}")
    return good


def _warm_up(world: World, workers: int) -> None:
    """What every worker and the proxy open once and keep, they open now: all slots are used at once."""
    for _ in range(3):
        with contextlib.ExitStack() as held:
            for _ in range(SLOTS * workers):
                held.enter_context(world.session())
        works(world, random.Random(0))


def _run_lanes(world: World, minutes: float, seed: int, tally: Tally) -> None:
    weights = [RAW] * RAW_LANES + [REAL] * REAL_LANES
    threads = [
        threading.Thread(target=lane, args=(world, each, random.Random(f"{seed} {number}"), tally))
        for number, each in enumerate(weights)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + minutes * 60
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 15))
        progress(f"  {left / 60:.1f} min left, {tally.done.total()} clients, {tally.failures.total()} failures")
    world.stopped.set()
    for thread in threads:
        thread.join()


# What must be as it was


def figures(grid: Grid) -> Figures:
    """Everything that must be the same at the end as at the start, in words."""
    status = grid.status()
    found: Figures = {
        "active sessions, Redis": str(grid.active()),
        "leases in Redis": str(sum(int(grid.redis("ZCARD", key)) for key in grid.redis("KEYS", "sessions:live:*"))),
        "workers in Redis": str(len(grid.redis("KEYS", "worker:*"))),
        "counters in Redis": f"{grid.redis('HLEN', 'cluster:active_connections')} active, "
        f"{grid.redis('HLEN', 'cluster:lifetime_connections')} lifetime",
        "workers": _counted(worker["status"] for worker in status["workers"]),
        "processes": _counted(_kind(command) for command in _processes(grid).values()),
        "connections to the grid's port": str(_connections(grid.port)),
        "temporary files": _counted(_temporary(grid)),
        "/dev/shm": str(sum("chromium" in name.lower() for name in os.listdir("/dev/shm"))),
    }
    for name, pid in _watched(grid, status).items():
        found[f"open files: {name}"] = _counted(_open_kinds(pid))
    return found


def memory(grid: Grid) -> Figures:
    """PSS of the grid's own processes; told for information."""
    watched = _watched(grid, grid.status())
    return {name: f"{memory_kib(pid)['pss'] / 1024:.1f} MiB" for name, pid in watched.items()}


def sessions_by_end(grid: Grid) -> Counter[str]:
    """How the recorded sessions ended: status and reason."""
    ended: Counter[str] = Counter()
    for session_id in grid.redis("ZRANGE", "sessions:index", 0, -1):
        flat = grid.redis("HMGET", f"session:{_text(session_id)}", "status", "reason")
        ended[": ".join(_text(each) for each in flat)] += 1
    return ended


def _watched(grid: Grid, status: Mapping[str, object]) -> dict[str, int]:
    workers = status["workers"]
    proxy = status["proxy"]
    assert isinstance(workers, list)
    assert isinstance(proxy, dict)
    watched = {"master": grid.process.pid, "proxy": proxy["pid"]}
    for number, worker in enumerate(sorted(workers, key=lambda each: each["pid"]), 1):
        watched[f"worker {number}"] = worker["pid"]
        watched[f"browser server {number}"] = worker["nodePid"]
    return watched


def _steady(grid: Grid) -> Figures | None:
    """The figures, once they are the same twice in a row."""
    before = figures(grid)
    time.sleep(1)
    return before if figures(grid) == before else None


def _figures_once_equal(grid: Grid, start: Figures) -> Figures:
    """The figures at the end: those of the start as soon as they are reached, else what there is after a while."""
    deadline = time.monotonic() + SETTLE_S
    while (end := figures(grid)) != start and time.monotonic() < deadline:
        time.sleep(0.5)
    return end


def _processes(grid: Grid) -> dict[int, str]:
    """All of the grid: what is below its master, and what carries its mark (a browser's own children do not)."""
    found = grid.processes()
    for child in psutil.Process(grid.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid] = " ".join(child.cmdline()) or child.status()
    return found


def _kind(command: str) -> str:
    if "chrom" in command.split(" ", 1)[0]:
        browser_part = re.search(r"--type=(\S+)", command)
        return f"chromium {browser_part[1] if browser_part else 'browser'}"
    for sign, name in (("launcher.cjs", "browser server"), ("redis-server", "redis"), ("grid serve", "grid")):
        if sign in command:
            return name
    return command


def _connections(port: int) -> int:
    """TCP connections on the port that are neither listening nor in TIME_WAIT."""
    states = (psutil.CONN_LISTEN, psutil.CONN_TIME_WAIT)
    found = psutil.net_connections("tcp")
    return sum(each.laddr[1:] == (port,) and each.status not in states for each in found)


def _temporary(grid: Grid) -> Iterator[str]:
    """Files of the grid, without what is inside the browser's own profile; random parts of names are masked."""
    for directory, names, files in os.walk(grid.temporary):
        inside = Path(directory).relative_to(grid.temporary)
        if "profile" in inside.name or "profile" in inside.parent.name:
            names.clear()
            continue
        for name in itertools.chain(names, files):
            path = re.sub(r"\bw/[0-9a-f]{8}\b", "w/ID", str(inside / name))
            yield re.sub(r"-[A-Za-z0-9]{6}$", "-RANDOM", path)


def _open_kinds(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        yield re.sub(r":?\[[^\]]*\]", "", target) if not target.startswith("/") else "file"


def _counted(names: Iterator[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(Counter(names).items()))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _cut(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 2] + " …"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lifetime", default=NEVER, help="sessions after which a worker is recycled")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    return 0 if soak(given.minutes, given.seed, given.lifetime, given.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
