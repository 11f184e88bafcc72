"""Bench: what it costs the master to meter the memory of 20 workers of 8 processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import CpuMeter, Options, Row, at_most
from bench.servers import grid_of
from tests.support.grid import Grid

WORKERS = 20
PROCESSES = 8
"""Of each worker: its own, the browser server, and six below that (fake_launcher_with_children.cjs)."""

OTHERS = 2000
HERD = Path(__file__).with_name("fake_launcher_with_children.cjs")
NEVER_S = 86_400

_SLEEPERS = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if not os.fork():
        signal.pause()
print("there", flush=True)
signal.pause()
"""


def run(options: Options) -> list[Row]:
    seconds = options.pick(120, 15)  # all that happens once in a minute happens twice
    # It starts Python and reads files of the tests.
    common = {"FAKE_LAUNCHER": str(HERD), "FAKE_HERD_PYTHON": sys.executable, "CONFINE": "off"}
    metered = {**common, "MEMORY_CHECK_INTERVAL": "5"}
    unmetered = {**common, "MEMORY_CHECK_INTERVAL": str(NEVER_S)}
    with (
        grid_of(WORKERS, fake=True, environment=metered) as grid,
        grid_of(WORKERS, fake=True, environment=unmetered) as other,
    ):
        alone = _share(grid, other, seconds)
        with _sleeping(OTHERS):
            among_many = _share(grid, other, seconds)
        if any(worker["memoryMib"] is None for worker in grid.ask("status")["workers"]) and not options.quick:
            raise RuntimeError("the master does not meter memory")
    what = f"the master's CPU, {WORKERS} workers of {PROCESSES} processes, every 5 s"
    return [_row(what, alone), _row(f"the same on a host with {OTHERS:,} other processes", among_many)]


def _share(grid: Grid, other: Grid, seconds: float) -> dict[str, float]:
    """Per cent of a core."""
    time.sleep(6)  # one period: both have seen what is new, or never will
    meter = CpuMeter({"metered": grid.process.pid, "unmetered": other.process.pid})
    meter.start()
    time.sleep(seconds)
    meter.stop()
    return {name: used / seconds / 1e4 for name, used in meter.used.items()}


def _row(what: str, share: dict[str, float]) -> Row:
    cost = share["metered"] - share["unmetered"]
    return Row(
        what,
        f"{share['metered']:.2f} % of a core",
        f"{share['unmetered']:.2f} % without metering",
        f"{cost:+.2f} %",
        *at_most(cost, 1, " %"),
    )


@contextlib.contextmanager
def _sleeping(count: int) -> Iterator[None]:
    """So many processes that do nothing."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SLEEPERS, str(count)], stdout=subprocess.PIPE, start_new_session=True
    ) as sleepers:
        assert sleepers.stdout is not None
        try:
            assert sleepers.stdout.readline() == b"there\n"
            yield
        finally:
            os.killpg(sleepers.pid, signal.SIGKILL)


COMPARES = (
    f"Two grids side by side with {WORKERS} fake browser servers, each with six more processes of 8 MiB below it; "
    "one meters every 5 s, the other once a day. CPU is that of the master over the same time."
)
