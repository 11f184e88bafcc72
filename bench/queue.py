"""Bench: from a slot that comes free to the 101 of the next client in line."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench.client import Client
from bench.harness import Options, Row, at_most, p99
from bench.servers import driver, grid_of
from tests.support.grid import Grid, eventually
from tests.support.runs import sessions_by_run

LENGTHS = (10, 1000)
SLOTS = 5
RUNS = {"few": 4, "some": 10, "many": 40}
PAUSES_MS = [15.0, 40.0]
"""Longer than what a worker puts off until its client has had its first answer."""


def run(options: Options) -> list[Row]:
    count = options.pick(400, 20)
    environment = {"MAX_CONCURRENT_SESSIONS": str(SLOTS), "MAX_QUEUE": "2000", "WORKER_SELECT_TIMEOUT": "600"}
    with ExitStack() as stack:
        grids = [stack.enter_context(grid_of(fake=True, environment=environment)) for _ in (*LENGTHS, None)]
        client = stack.enter_context(Client(driver().version))
        targets = [("127.0.0.1", grid.port, "/") for grid in grids]
        for grid, target, length in zip(grids, targets, LENGTHS, strict=False):
            client.order("join", target=target, served=SLOTS, waiting=length)
            eventually(partial(_all_wait, grid, length), f"{length} wait")
        *in_line, free = client.order(
            "free", targets=targets[:-1], free_target=targets[-1], count=count, pauses_ms=PAUSES_MS
        )
        freed_at = [_freed_at(grid, count) for grid in grids[: len(LENGTHS)]]
    connect = _figures([ms for ms, _ in free])
    rows: list[Row] = []
    for length, found, freed in zip(LENGTHS, in_line, freed_at, strict=True):
        waits = [(served_at - at) * 1000 for (_, served_at), at in zip(found, freed, strict=True)]
        rows.append(
            Row(
                f"slot freed to the next client's 101, {length} waiting",
                _figures(waits),
                f"{connect} for a connect to a free slot",
                f"{median(waits):.2f} ms",
                *at_most(median(waits), 2, " ms"),
            )
        )
        closed = [ms for ms, _ in found]
        rows.append(Row(f"the same from the close of the client before, {length} waiting", _figures(closed), "", ""))
    return rows + _shares(options)


def _figures(values: list[float]) -> str:
    return f"{median(values):.2f} ms (p99 {p99(values):.2f} ms)"


def _freed_at(grid: Grid, number: int) -> list[float]:
    """When each of so many slots was free again, in Unix seconds by the worker, to the millisecond, in order."""

    def ends() -> list[float]:
        ids = [each.decode() for each in grid.redis("ZRANGE", "sessions:index", 0, -1)]
        return sorted(float(at) for each in ids if (at := grid.redis("HGET", f"session:{each}", "endedAt")))

    eventually(lambda: len(ends()) == number, f"{number} ends are on record")
    return ends()


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
            *at_most(worst * 100, 10, " % off"),
        )
    ]


def _all_wait(grid: Grid, clients: int) -> bool:
    waiting: int = json.loads(grid.get("/v1/status")[2])["waiting"]
    return waiting == clients


COMPARES = (
    f"Two grids with one fake browser server of {SLOTS} slots each, all taken, one with {LENGTHS[0]} and one with "
    f"{LENGTHS[1]:,} clients in line; in turns a client with a session closes its socket. A slot is free when its "
    "worker says so on the session's record (`endedAt`), 0.5 to 0.7 ms after the close. The clock stops when the next "
    "client has read its 101. The baseline is a connect to a third grid with free slots. Then clients of three runs "
    "connect again and again: counted are the sessions of each run."
)
