"""Bench: borrow, connect, return, while workers are recycled and the proxy is killed; and what is left over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from playwright.sync_api import Error, sync_playwright

from bench.harness import Options, Row, at_least, at_most
from tests.conftest import counters_are_exact
from tests.support.grid import Grid, eventually, running_grid
from tests.support.leases import CHROMIUM, Cycles, borrow, cycles, give_back
from tests.support.raw import session

WORKERS = 2
CLIENTS = 6
LIFETIME = 50
"""So that a worker is recycled every few seconds."""

ENVIRONMENT = {
    "POOL_CONFIG": f"{CHROMIUM}={WORKERS}",
    "HEARTBEAT_INTERVAL": "1",
    "CANARY_INTERVAL": "600",
    "BORROW_RECONNECT_GRACE": "60",
}


def run(options: Options) -> list[Row]:
    many, real = options.pick(1000, 100), options.pick(60, 12)
    rows: list[Row] = []
    with running_grid(environment={**ENVIRONMENT, "MAX_LIFETIME_SESSIONS": str(LIFETIME)}, fake=True) as grid:
        rows += _rows(grid, f"{many} cycles, fake browser server", lambda: _killing(grid, many))
    with running_grid(environment={**ENVIRONMENT, "MAX_LIFETIME_SESSIONS": str(real // 3)}) as grid:
        rows += _rows(grid, f"{real} cycles, Chromium", lambda: _killing(grid, real, clients=3, use=_use_chromium))
    with running_grid(environment=ENVIRONMENT, fake=True) as grid:
        rows.append(_speed(grid, options.pick(300, 30)))
    return rows


def _killing(
    grid: Grid, number: int, clients: int = CLIENTS, use: Callable[[dict[str, Any]], None] | None = None
) -> Cycles:
    proxy = grid.status()["proxy"]["pid"]
    return cycles(grid, number, clients, at_half=lambda: os.kill(proxy, signal.SIGKILL), use=use)


def _rows(grid: Grid, what: str, work: Callable[[], Cycles]) -> list[Row]:
    done = work()
    counters_are_exact(grid)  # raises for a slot, counter or record that is left over
    eventually(lambda: _directories(grid) == _workers(grid), "no directory is left of a worker that has gone")
    recycled = len(_workers(grid) - done.first_workers)
    ended = [int(grid.redis("HGET", "leases:outcomes", each) or 0) for each in ("expired", "failed")]
    failed = len(done.failed)
    orphans = sum(ended) - failed
    return [
        Row(f"whole, of {what}", str(done.cycles), "", f"{done.broken} requests met the killed proxy"),
        Row("leases that nobody heard of, and that came back", str(orphans), "", "", *at_most(orphans, CLIENTS)),
        Row("leases of clients that failed", str(failed), "", "", *at_most(failed, 0)),
        Row("workers that are others than at the start", str(recycled), "", "", *at_least(recycled, 1)),
    ]


def _workers(grid: Grid) -> set[str]:
    return {worker["id"] for worker in grid.status()["workers"]}


def _directories(grid: Grid) -> set[str]:
    return {path.name for path in (grid.runtime / "w").iterdir()}


def _speed(grid: Grid, rounds: int) -> Row:
    """A borrow with a connect and a return, beside a plain connect."""
    mine, theirs = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        lease = borrow(grid)
        with session(grid.port, lease["target"]):
            pass
        give_back(grid, lease)
        mine.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        with session(grid.port):
            pass
        theirs.append((time.perf_counter() - began) * 1000)
    return Row(
        "borrow, connect, return; one client",
        f"{median(mine):.1f} ms",
        f"{median(theirs):.1f} ms for a connect without a lease",
        f"{median(mine) - median(theirs):+.1f} ms",
    )


def _use_chromium(lease: dict[str, Any]) -> None:
    """A page in the browser of the lease. Raises OSError when the connect fails: the proxy may have been killed."""
    with sync_playwright() as playwright:  # one for each thread and use: its API may not be shared
        try:
            browser = playwright.chromium.connect(lease["webSocketEndpoint"])
        except Error as error:
            raise OSError(str(error)) from None
        page = browser.new_page()
        page.set_content("<h1>mine</h1>")
        assert page.text_content("h1") == "mine"
        browser.close()


COMPARES = (
    "Many clients borrow, connect and return at once; workers are recycled meanwhile, the proxy is killed half-way. "
    "Afterwards slots and counters are exact, and nothing is left of workers that have gone."
)
