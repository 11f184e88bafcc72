"""Bench: how long `pwgrid status` takes, and what a worker weighs beside its browser server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from bench.harness import Options, Row, at_most, memory_kib
from bench.servers import grid_of
from tests.support.grid import Grid

WORKERS = 2
MORE_WORKERS = 4


def run(options: Options) -> list[Row]:
    with grid_of(WORKERS) as grid:
        _use(grid, options.pick(20, 4))
        asked, nothing = [], []
        for _ in range(options.pick(20, 4)):
            asked.append(_seconds(lambda: grid.command("status")))
            nothing.append(_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        status = grid.status()
        weighs = _weight(status, WORKERS)
        others = {name: memory_kib(status[name]["pid"])["pss"] / 1024 for name in ("master", "proxy", "redis")}
    with grid_of(MORE_WORKERS) as grid:
        _use(grid, options.pick(20, 4))
        weighs_of_more = _weight(grid.status(), MORE_WORKERS)
    worst = max(asked)
    return [
        Row(
            "pwgrid status, slowest",
            f"{worst:.3f} s (median {median(asked):.3f} s)",
            f"{max(nothing):.3f} s for an empty Python (median {median(nothing):.3f} s)",
            f"{worst:.3f} s",
            *at_most(worst, 0.5, " s"),
        ),
        weighs,
        weighs_of_more,
        Row("master, proxy, Redis, PSS", ", ".join(f"{mib:.1f} MiB" for mib in others.values())),
    ]


def _use(grid: Grid, sessions: int) -> None:
    """Workers are weighed that have worked."""
    with sync_playwright() as playwright:
        for _ in range(sessions):
            browser = playwright.chromium.connect(grid.endpoint)
            browser.new_page()
            browser.close()


def _weight(status: dict[str, Any], workers: int) -> Row:
    own = max(memory_kib(worker["pid"])["pss"] / 1024 for worker in status["workers"])
    beside = min(_tree_pss_mib(worker["nodePid"]) for worker in status["workers"])
    return Row(
        f"worker, PSS beside its browser server, one of {workers}",
        f"{own:.1f} MiB",
        f"{beside:.0f} MiB browser server and browser",
        f"{own:.1f} MiB",
        *at_most(own, 22, " MiB"),
    )


def _seconds(work: object) -> float:
    assert callable(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _tree_pss_mib(pid: int) -> float:
    """PSS of a process and all below it."""
    process = psutil.Process(pid)
    found = memory_kib(pid)["pss"]
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a renderer of a session that has just ended
            found += memory_kib(each.pid)["pss"]
    return found / 1024


COMPARES = (
    f"{WORKERS} workers with real Chromiums after 20 sessions. The command is run as a user runs it, in turns with a "
    f"Python that does nothing. Then a worker of a grid of {MORE_WORKERS}: what all processes of a grid share counts "
    "in each one's PSS by its part."
)
