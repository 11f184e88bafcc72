"""`python -m bench.soak --minutes N`: random clients that close, vanish and freeze; then everything is as before.

Prints a table of what was there at the start and at the end. Exit code 1 on any leak, and on any client that did not
get what it should have got.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.harness import memory_kib, progress, side_by_side, table
from bench.servers import driver, grid_of, makes_windows, settled
from bench.soak_clients import CDP, RAW, REAL, WITH_WINDOWS, Behaviour, Failed, World, works
from tests.support.census import Census, at_rest, differences, once_equal, use_every_slot, watched
from tests.support.grid import NEVER, Grid

PING_TIMEOUT_S = 3.0
SLOTS = 5
RAW_LANES, REAL_LANES = 6, 2
CELL = 70
REST_S = 300.0
LOOKS, BETWEEN_S = 10, 1.0
"""A pool is at rest if it looks so as often, so many seconds apart."""


@dataclass(slots=True)
class EventCounts:
    """What the clients did, and what went wrong."""

    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def failed(self, what: str) -> None:
        """One more failure, which is told at once: a run that does not come to its end says so, too."""
        self.failures[what] += 1
        progress(f"  FAILED {what}")


def lane(world: World, weights: Mapping[Behaviour, int], dice: random.Random, tally: EventCounts) -> None:
    """One client after the other until the soak is stopped."""
    behaviours, odds = list(weights), list(weights.values())
    while not world.stopped.is_set():
        (behaviour,) = dice.choices(behaviours, odds)
        try:
            behaviour(world, dice)
        except Failed as failure:
            tally.failed(f"{behaviour.__name__}: {failure}")
        except Exception as error:  # noqa: BLE001 - a lane that ends early would soak less than it says
            tally.failed(f"{behaviour.__name__}: {error!r}")
        tally.done[behaviour.__name__] += 1


def soak(
    minutes: float,
    seed: int,
    lifetime: str = NEVER,
    workers: int = 2,
    isolation: str = "context",
    *,
    cdp: bool = False,
) -> bool:
    """One soak with its report on stdout. True when nothing leaked and every client was served as it should be."""
    with tempfile.TemporaryDirectory(prefix="pgs-", dir="/tmp") as directory:
        return _soak(minutes, seed, lifetime, workers, isolation, cdp=cdp, directory=Path(directory))


def _soak(
    minutes: float, seed: int, lifetime: str, workers: int, isolation: str, *, cdp: bool, directory: Path
) -> bool:
    profiles = directory / "profiles"
    environment = {
        "PROFILES": "on",
        "PROFILES_DIR": str(profiles),
        "SESSION_PING_TIMEOUT": str(PING_TIMEOUT_S),
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
        "MAX_LIFETIME_SESSIONS": lifetime,
        "MAX_LAUNCHES": "0" if lifetime == NEVER else lifetime,
        "ISOLATION": isolation,
    }
    tally = EventCounts()
    with grid_of(workers, environment=environment) as grid:
        path = "/cdp" if cdp else "/"
        endpoint = grid.endpoint + path.rstrip("/")
        target = ("127.0.0.1", grid.port, path)
        world = World(target, endpoint, driver().version, PING_TIMEOUT_S, threading.Event(), directory)
        _warm_up(world, workers)
        settled(grid)
        start, start_memory = at_rest(grid), memory(grid)
        real = WITH_WINDOWS if makes_windows() and not cdp else REAL
        _run_lanes(world, minutes, seed, tally, [CDP if cdp else RAW] * RAW_LANES + [real] * REAL_LANES)
        _come_to_rest(grid, workers, lifetime)
        end, end_memory = once_equal(grid, start), memory(grid)
        ended = sessions_by_end(grid)
    start["profiles that are none"], end["profiles that are none"] = "", _no_profiles(profiles)
    leaks = differences(start, end)
    rows = [(name, start.get(name, "-"), end.get(name, "-"), "LEAK" if name in leaks else "") for name in start | end]
    rows += [(f"memory, PSS: {name}", start_memory.get(name, "-"), mib, "") for name, mib in end_memory.items()]
    print(f"\nsoak of {minutes:g} min, seed {seed}, {workers} workers of {SLOTS} slots")
    print(f"lifetime {lifetime}, isolation {isolation}{', over CDP' if cdp else ''}\n")
    _print_table(("", "at the start", "at the end", ""), *((n, _cut(a), _cut(b), c) for n, a, b, c in rows))
    for name in leaks:
        print(f"{name}\n  at the start: {start.get(name)}\n  at the end:   {end.get(name)}\n")
    _print_table(("client", "times"), *((name, str(n)) for name, n in tally.done.most_common()))
    _print_table(("session record", "times"), *((name, str(n)) for name, n in ended.most_common()))
    if tally.failures:
        _print_table(("FAILED", "times"), *((name, str(n)) for name, n in tally.failures.items()))
    unended = [
        name
        for name in ended
        if name.endswith(": ")
        or not name.removeprefix("never started, ").startswith(("completed", "ended", "failed", "expired"))
    ]
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


def _run_lanes(
    world: World, minutes: float, seed: int, tally: EventCounts, weights: Sequence[Mapping[Behaviour, int]]
) -> None:
    lanes = [
        partial(lane, world, each, random.Random(f"{seed} {number}"), tally) for number, each in enumerate(weights)
    ]
    until = time.monotonic() + minutes * 60
    with side_by_side(lanes, world.stopped):
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 15))
            progress(f"  {left / 60:.1f} min left, {tally.done.total()} clients, {tally.failures.total()} failures")


def _come_to_rest(grid: Grid, workers: int, lifetime: str) -> None:
    """Returns once the pool has its workers again, without spares, and each has opened what it opens once. A spare
    stands by while a worker is nearly used up, so workers in the second half of their lifetimes are replaced first; and
    for half a minute after the last session."""
    deadline = time.monotonic() + REST_S
    while time.monotonic() < deadline:
        used = [
            each["id"]
            for each in grid.status()["workers"]
            if each["status"] == "available" and each["lifetime"] > int(lifetime) // 2
        ]
        if used:
            grid.command("drain", used[0], "--wait")
        elif _is_at_rest(grid, workers):
            use_every_slot(grid)
            if all(_is_at_rest(grid, workers) for _ in range(LOOKS)):
                return
        time.sleep(BETWEEN_S)
    progress("  the pool does not come to rest")


def _is_at_rest(grid: Grid, workers: int) -> bool:
    time.sleep(BETWEEN_S)
    return [worker["status"] for worker in grid.status()["workers"]] == ["available"] * workers


def _no_profiles(directory: Path) -> str:
    """The files among saved profiles that are something else: half a file, the mark of a session that has one."""
    return ", ".join(str(each) for each in directory.rglob("*") if each.is_file() and each.suffix != ".tar")


def memory(grid: Grid) -> Census:
    """PSS of the grid's own processes; told for information."""
    return {name: f"{memory_kib(pid)['pss'] / 1024:.1f} MiB" for name, pid in watched(grid).items()}


def sessions_by_end(grid: Grid) -> Counter[str]:
    """How the recorded sessions ended: status and reason, and whether they ever ran."""
    ended: Counter[str] = Counter()
    for key in grid.redis("KEYS", "session:*"):
        status, reason, started = (
            each.decode() if each else "" for each in grid.redis("HMGET", key, "status", "reason", "startedAt")
        )
        never = "" if started or status == "completed" else "never started, "
        ended[f"{never}{status}: {reason}"] += 1
    return ended


def _cut(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 2] + " …"


def _print_table(*rows: tuple[str, ...]) -> None:
    print("\n".join(table(*rows)), end="\n\n")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lifetime", default=NEVER, help="sessions, or own browsers, after which a worker is recycled")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--isolation", default="", help="what sessions have for themselves: context (default) or browser"
    )
    parser.add_argument(
        "--cdp",
        action="store_true",
        help="clients speak CDP: some come back to kept sessions, share one, or have a profile; isolation is "
        "browser, so that each worker has as many warm browsers before and after",
    )
    given = parser.parse_args()
    given.isolation = given.isolation or ("browser" if given.cdp else "context")
    good = soak(given.minutes, given.seed, given.lifetime, given.workers, given.isolation, cdp=given.cdp)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
