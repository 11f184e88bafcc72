"""Bench: what it costs the master to meter the memory of 20 workers of 8 processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.harness import Bench, CpuMeter, Options, Row, within
from bench.servers import ask, grid_of

WORKERS = 20
PROCESSES = 8
"""Of each worker: its own, the browser server, and six below that (herd_launcher.cjs)."""

HERD = Path(__file__).with_name("herd_launcher.cjs")
NO_METERING_S = 86_400


def run(options: Options) -> list[Row]:
    """All rows of this bench."""
    seconds = options.pick(45, 15)
    common = {"PWGRID_LAUNCHER": str(HERD), "FAKE_HERD_PYTHON": sys.executable}
    metered = {**common, "RSS_CHECK_INTERVAL": "5", "MAX_WORKER_RSS_MIB": "4000"}
    unmetered = {**common, "RSS_CHECK_INTERVAL": str(NO_METERING_S)}
    with grid_of(WORKERS, environment=metered) as grid, grid_of(WORKERS, environment=unmetered) as other:
        time.sleep(6)  # one period: both have metered once, or never will
        if all(worker.get("rssMib") is None for worker in ask(grid, "status")["workers"]):
            raise RuntimeError("the master does not meter memory")
        meter = CpuMeter({"metered": grid.process.pid, "unmetered": other.process.pid})
        meter.start()
        time.sleep(seconds)
        meter.stop()
        share = {name: used / seconds / 1e4 for name, used in meter.used.items()}
    cost = share["metered"] - share["unmetered"]
    return [
        Row(
            f"the master's CPU, {WORKERS} workers of {PROCESSES} processes, every 5 s",
            f"{share['metered']:.2f} % of a core",
            f"{share['unmetered']:.2f} % without metering",
            f"{cost:+.2f} %",
            "at most 1 %",
            within(cost, 1.0),
        )
    ]


BENCH = Bench(
    "meter",
    f"Two grids side by side with {WORKERS} fake browser servers, each with six more processes of 8 MiB below it; "
    "one meters every 5 s, the other once a day. CPU is that of the master over the same time.",
    run,
)
