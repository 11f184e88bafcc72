"""One row of the kill table: a fresh grid under load, in which a test breaks something, and exact counters after it."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psutil
from playwright.async_api import Playwright

from tests.conftest import counters_are_exact, need
from tests.support.census import Census, at_rest, census, once_equal, told, use_every_slot
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, once_answered, running_grid
from tests.support.load import Load, under_load

WHOLE_S = 60.0

REST_S = 1.0
"""So much less often a client comes that gets a browser of its own, as long as nobody waits for it."""

STEADY = {**WITHOUT_SPARES, "CANARY_INTERVAL": "600"}
"""No worker is recycled, and no canary is just at work when something is counted. Nor has a pool spares."""


@contextlib.asynccontextmanager
async def row(
    playwright: Playwright,
    *arguments: str,
    environment: dict[str, str] | None = None,
    repaired: bool = False,
    cdp: bool = False,
    sessions: int = 3,
    first: Callable[[Grid], None] = lambda _: None,
) -> AsyncIterator[tuple[Grid, Load]]:
    """Two workers, live sessions, clients that connect all the time. When the load is over, counters, processes,
    open files and temporary files are exactly as they were before it. `repaired`: Redis was lost meanwhile, so that
    counters had to be repaired. `cdp`: the clients speak CDP. `first` is done before anything is counted: what leaves
    something for good."""
    need("chromium")
    # None of the live sessions is cut while it outlives its worker.
    ours = {**STEADY, "DRAIN_TIMEOUT": "120"}
    environment = ours | (environment or {})
    arguments = arguments or ("--chromium", "2")
    with running_grid(*arguments, environment=environment) as grid:
        first(grid)
        with comes_out_exact(grid, repaired=repaired):
            rest_s = REST_S if environment.get("ISOLATION") == "browser" else 0.0
            async with under_load(grid, playwright, sessions, cdp=cdp, rest_s=rest_s) as load:
                yield grid, load


@contextlib.contextmanager
def comes_out_exact(grid: Grid, *, repaired: bool = False, before: Census | None = None) -> Iterator[Census]:
    """Whatever happens to the grid in this block, it has nothing more and nothing less afterwards. It has no spares.
    `before`: what it had at rest, where that has been counted already, as the last such block has proved it again."""
    before = before or at_rest(grid)
    yield before
    counters_are_exact(grid, repaired=repaired)
    for what in ("workers", "processes"):
        eventually(lambda what=what: census(grid)[what] == before[what], f"{before[what]}", WHOLE_S)
    use_every_slot(grid)  # what has been replaced opens what it opens once and keeps, too
    if differences := told(before, once_equal(grid, before)):
        raise AssertionError(f"not as before:\n{differences}")


def workers(grid: Grid) -> dict[str, dict[str, Any]]:
    """The workers by their ids, as the master has them now."""
    return {worker["id"]: worker for worker in grid.status()["workers"]}


def busiest(grid: Grid) -> dict[str, Any]:
    """The worker that has most of the live sessions."""
    workers: list[dict[str, Any]] = grid.status()["workers"]
    return max(workers, key=lambda worker: worker["active"])


def busiest_that_serves(grid: Grid) -> dict[str, Any]:
    """Of the workers that take new sessions; it has at least one. An old one, which drains, may have more."""
    serve = [each for each in workers(grid).values() if each["status"] == "available"]
    found = max(serve, key=lambda each: int(each["active"]))
    assert found["active"] >= 1
    return found


async def all_serve(grid: Grid, wanted: int = 2) -> None:
    """Returns once as many workers as wanted are available."""

    def complete() -> bool:
        pools = once_answered(lambda: grid.ask("status"))["pools"]
        return [pool["available"] for pool in pools if pool["wanted"]] == [wanted]

    await eventually_async(complete, "the pool is complete", WHOLE_S)


async def is_gone(pid: int) -> None:
    """Returns once the process has been killed and reaped."""
    await eventually_async(lambda: not psutil.pid_exists(pid), f"process {pid} is gone", WHOLE_S)


def no_counter_was_repaired(grid: Grid) -> bool:
    """So far: whoever asks goes on to break what is repaired."""
    return int(grid.redis("GET", "cluster:counter_repairs") or 0) == 0


def failures(grid: Grid) -> Counter[str]:
    """The recorded sessions that failed, by reason."""
    records = [grid.redis("HMGET", key, "status", "reason") for key in grid.redis("KEYS", "session:*")]
    return Counter(reason.decode() for status, reason in records if status == b"failed")


__all__ = [
    "STEADY",
    "all_serve",
    "busiest",
    "busiest_that_serves",
    "comes_out_exact",
    "failures",
    "is_gone",
    "no_counter_was_repaired",
    "row",
    "workers",
]
