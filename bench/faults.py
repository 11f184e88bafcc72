"""`python -m bench.faults [--rounds N] [rows]`: the kill table of docs/faults.md in figures.

Each round of each row is a fresh grid of two workers with five live sessions in real browsers, that click and read ten
times a second, a Playwright client that connects all the time, and one that asks for /health every 20 ms. Prints a
Markdown table; exit code 1 when somebody lost what the table says is kept. tests/faults looks at the counters.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import shlex
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from playwright.async_api import Playwright, async_playwright

from bench.fault_rows import FAULTS, SESSIONS, WORKERS, Fault, Scene, come_to_rest, surroundings, until_whole
from bench.harness import MachineMeter, progress, versions
from tests.support.disk import NoDiskError
from tests.support.grid import running_grid
from tests.support.load import under_load

LOOK_S = 0.5


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
            scene = Scene(grid, load, redis, disk)
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


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    heads = ("what", "sessions lost", "refused", "longest connect", "whole again", "target")
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


async def _measure(names: list[str], rounds: int, busy: list[float]) -> tuple[list[tuple[str, ...]], list[str]]:
    rows, bad = [], []
    async with async_playwright() as playwright:
        for name in names:
            fault, found = FAULTS[name], Found()
            try:
                for number in range(rounds):
                    machine = MachineMeter()  # of ours nothing runs now; later some of it is not our child any more
                    await asyncio.sleep(LOOK_S)
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
    print(f"{statistics.mean(busy):.2f} of {os.cpu_count()} cores busy.\n\n{_table(rows)}")
    for each in bad:
        print(f"BAD {each}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
