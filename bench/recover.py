"""Bench: from the SIGKILL of a worker, or of its browser server, to a slot that is served again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.client import Target, head, served
from bench.harness import Options, Row, at_most, progress
from bench.servers import DirectServer, chromium, driver, grid_of, settled
from tests.support.grid import Grid, eventually

FULL = Path("/usr/lib/chromium/chromium")
HEALTHY_SESSIONS = 6
"""More than the master wants to see before it counts a worker's end as no early death (master/policy/backoff.py)."""


def run(options: Options) -> list[Row]:
    executable = str(FULL) if FULL.exists() else chromium()
    rounds = options.pick(7, 1)
    worker, server, direct = [], [], []
    with grid_of(environment={"CHROMIUM_EXECUTABLE": executable}) as grid:
        for number in range(rounds):
            worker.append(_after_kill_of(grid, browser_server=False))
            server.append(_after_kill_of(grid, browser_server=True))
            direct.append(_direct(executable))
            found = f"worker {worker[-1]:.2f} s, browser server {server[-1]:.2f} s, direct {direct[-1]:.2f} s"
            progress(f"  round {number + 1} of {rounds}: {found}")
    rows = []
    for what, seconds in (("worker", worker), ("browser server", server)):
        rows.append(
            Row(
                f"SIGKILL of a {what} to a slot served again ({Path(executable).name}), median",
                f"{median(seconds):.2f} s (slowest {max(seconds):.2f} s)",
                f"{median(direct):.2f} s for a launchServer() started by hand",
                f"{median(seconds) / median(direct):.2f} ×",
                *at_most(median(seconds), 2, " s"),
            )
        )
    return rows


def _after_kill_of(grid: Grid, *, browser_server: bool) -> float:
    """Seconds from the kill to the next session that a real browser server serves: it answers `initialize`."""
    target: Target = ("127.0.0.1", grid.port, "/")
    request = head(target, driver().version)
    for _ in range(HEALTHY_SESSIONS):
        served(target, request).close()
    settled(grid)
    worker = eventually(lambda: _healthy_worker(grid), "the master has seen the worker's sessions")
    os.kill(worker["nodePid" if browser_server else "pid"], signal.SIGKILL)
    started = time.perf_counter()
    while True:
        try:
            sock = served(target, request)
        except OSError:  # refused with a reason; a client would try again too
            continue
        taken = time.perf_counter() - started
        sock.close()
        return taken


def _healthy_worker(grid: Grid) -> dict[str, Any] | None:
    """The one worker, once the master knows of enough sessions of it."""
    workers = grid.ask("status")["workers"]
    ready = [each for each in workers if each["status"] == "available" and each["lifetime"] >= HEALTHY_SESSIONS]
    return ready[0] if len(ready) == len(workers) == 1 else None


def _direct(executable: str) -> float:
    """Seconds from the start of a fresh launchServer() to its first upgrade: no supervisor can be faster."""
    started = time.perf_counter()
    with DirectServer(executable) as server:
        served(server.target, head(server.target, driver().version)).close()
        return time.perf_counter() - started


COMPARES = (
    "One worker with a full Chromium. A raw client connects again from the moment of the kill on; the baseline "
    "starts a launchServer() of the same executable with the same warm-up in the same rounds."
)
