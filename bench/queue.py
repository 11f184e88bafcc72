"""Bench: from a slot that comes free to the 101 of the next client in line."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from functools import partial

from bench.client import load_client
from bench.harness import Bench, Options, Row, median, p99, within
from bench.servers import driver, eventually, grid_of
from tests.support.grid import Grid
from tests.support.runs import sessions_by_run

LENGTHS = (10, 1000)
SLOTS = 5
RUNS = {"few": 4, "some": 10, "many": 40}
PAUSES_MS = [15.0, 40.0]
"""Longer than what a worker puts off until its client has had its first answer."""


def run(options: Options) -> list[Row]:
    """All rows of this bench."""
    count = options.pick(400, 20)
    environment = {"MAX_CONCURRENT_SESSIONS": str(SLOTS), "MAX_QUEUE": "2000", "WORKER_SELECT_TIMEOUT": "600"}
    with ExitStack() as stack:
        grids = [stack.enter_context(grid_of(fake=True, environment=environment)) for _ in (*LENGTHS, None)]
        client = stack.enter_context(load_client(driver().version))
        targets = [("127.0.0.1", grid.port, "/") for grid in grids]
        for grid, target, length in zip(grids, targets, LENGTHS, strict=False):
            client.order("join", target=target, served=SLOTS, waiting=length)
            eventually(partial(_all_wait, grid, length), f"{length} wait")
        *in_line, free = client.order(
            "free", targets=targets[:-1], free_target=targets[-1], count=count, pauses_ms=PAUSES_MS
        )
    return [
        Row(
            f"slot freed to the next client's 101, {length} waiting",
            f"{median(found):.2f} ms (p99 {p99(found):.2f} ms)",
            f"{median(free):.2f} ms (p99 {p99(free):.2f} ms) for a connect to a free slot",
            f"{median(found):.2f} ms",
            "at most 2 ms",
            within(median(found), 2.0),
        )
        for length, found in zip(LENGTHS, in_line, strict=True)
    ] + _shares(options)


def _shares(options: Options) -> list[Row]:
    """What share of the sessions each run gets."""
    total = options.pick(3000, 300)
    environment = {"MAX_CONCURRENT_SESSIONS": "6", "WORKER_SELECT_TIMEOUT": "600"}
    with grid_of(fake=True, environment=environment) as grid:
        had = asyncio.run(sessions_by_run(grid.port, RUNS, total))
    shares = {run: had[run] * len(RUNS) / had.total() for run in RUNS}
    worst = max(abs(share - 1) for share in shares.values())
    return [
        Row(
            f"sessions of three runs with {', '.join(map(str, RUNS.values()))} clients on 6 slots, of {had.total()}",
            " / ".join(str(had[run]) for run in RUNS),
            f"{had.total() / len(RUNS):.0f} each",
            f"at most {worst:.1%} off",
            "at most 10 % off",
            within(worst, 0.1),
        )
    ]


def _all_wait(grid: Grid, clients: int) -> bool:
    waiting: int = json.loads(grid.get("/v1/status")[2])["waiting"]
    return waiting == clients


BENCH = Bench(
    "queue",
    f"Two grids with one fake browser server of {SLOTS} slots each, all taken, one with {LENGTHS[0]} and one with "
    f"{LENGTHS[1]:,} clients in line; in turns a client with a session closes its socket, and the clock stops when the "
    "next one has read its 101. The baseline is a connect to a third grid with free slots. Then clients of three runs "
    "connect again and again: counted are the sessions of each run.",
    run,
)
