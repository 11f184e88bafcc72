"""Bench: how long `pwgrid status` takes, and what a worker weighs beside its browser server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import psutil
from playwright.sync_api import sync_playwright

from bench.harness import Bench, Options, Row, median, memory_kib, within
from bench.servers import grid_of

WORKERS = 2


def run(options: Options) -> list[Row]:
    """All rows of this bench."""
    with grid_of(WORKERS) as grid:
        with sync_playwright() as playwright:
            for _ in range(options.pick(20, 4)):  # workers that have worked
                browser = playwright.chromium.connect(grid.endpoint)
                browser.new_page()
                browser.close()
        asked, nothing = [], []
        for _ in range(options.pick(20, 4)):
            asked.append(_seconds(lambda: grid.command("status")))
            nothing.append(_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        status = grid.status()
        pids = [worker["pid"] for worker in status["workers"]]
        own = [memory_kib(pid)["pss"] / 1024 for pid in pids]
        beside = [_tree_pss_mib(worker["nodePid"]) for worker in status["workers"]]
        others = {name: memory_kib(status[name]["pid"])["pss"] / 1024 for name in ("master", "proxy", "redis")}
    worst = max(asked)
    return [
        Row(
            "pwgrid status, slowest",
            f"{worst:.3f} s (median {median(asked):.3f} s)",
            f"{max(nothing):.3f} s for an empty Python (median {median(nothing):.3f} s)",
            f"{worst:.3f} s",
            "under 0.5 s",
            within(worst, 0.5),
        ),
        Row(
            "worker, PSS beside its browser server",
            f"{max(own):.1f} MiB",
            f"{min(beside):.0f} MiB browser server and browser",
            f"{max(own):.1f} MiB",
            "at most 22 MiB",
            within(max(own), 22.0),
        ),
        Row("master, proxy, Redis, PSS", ", ".join(f"{mib:.1f} MiB" for mib in others.values())),
    ]


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


BENCH = Bench(
    "status",
    f"{WORKERS} workers with real Chromiums after 20 sessions. The command is run as a user runs it, in turns with "
    "a Python that does nothing.",
    run,
)
