"""SIGKILL of a real worker, its browser server or its browser at each step of start and drain: nothing is left of it.

What is killed while it serves is in the kill table.
"""

import contextlib
import os
import signal
from typing import Any

import psutil
from playwright.async_api import Playwright

from tests.conftest import need
from tests.support.census import use_every_slot
from tests.support.grid import Grid, eventually, eventually_async, processes_marked, running_grid
from tests.support.kill_table_row import STEADY, busiest, comes_out_exact, failures, row

HEALTHY_SESSIONS = 5
"""A worker that has served so many was no early death, and its pool does not back off."""

WHOLE_S = 60.0


def workers(grid: Grid) -> dict[str, dict[str, Any]]:
    return {worker["id"]: worker for worker in grid.ask("status")["workers"]}


def parts(worker: dict[str, Any]) -> dict[str, int]:
    """What a worker that starts consists of by now: pids by step."""
    found = {"worker": worker["pid"]}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(worker["pid"]).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(child.cmdline())
                if "launcher.cjs" in command:
                    found["browser server"] = child.pid
                elif "--remote-debugging-pipe" in command:
                    found["page" if "--type=renderer" in command else "browser"] = child.pid
    return found


def one_that_starts(grid: Grid) -> dict[str, Any]:
    """The only worker is drained; returns its replacement."""
    use_every_slot(grid)
    ((old, _),) = workers(grid).items()
    eventually(lambda: workers(grid)[old]["lifetime"] >= HEALTHY_SESSIONS, "the master knows that it has served")
    grid.ask("drain", {"worker": old})
    found: dict[str, Any] = eventually(
        lambda: next((each for name, each in workers(grid).items() if name != old), None), "the next one starts"
    )
    return found


def came_to(step: str, worker: dict[str, Any], grid: Grid) -> dict[str, int]:
    """The worker's parts as soon as it has come so far, or has become available: the last step is a short one."""
    while step not in (found := parts(worker)) and workers(grid)[worker["id"]]["status"] == "starting":
        pass
    return found


def nothing_is_left_of(grid: Grid, worker_id: str) -> bool:
    directory = grid.runtime / "w" / worker_id
    return not directory.exists() and not processes_marked(str(directory))


def another_serves(grid: Grid, worker_id: str) -> bool:
    found = workers(grid)
    return worker_id not in found and [each["status"] for each in found.values()] == ["available"]


def test_whatever_is_killed_while_a_worker_starts_it_is_replaced_and_leaves_nothing() -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment=STEADY) as grid, comes_out_exact(grid):
        for step, target in (
            ("worker", "worker"),
            ("browser server", "browser server"),
            ("browser server", "worker"),
            ("browser", "browser"),
            ("browser", "worker"),
            ("page", "worker"),
        ):
            victim = one_that_starts(grid)
            os.kill(came_to(step, victim, grid)[target], signal.SIGKILL)
            eventually(
                lambda victim=victim: another_serves(grid, victim["id"]), f"{target} at {step}: replaced", WHOLE_S
            )
            eventually(lambda victim=victim: nothing_is_left_of(grid, victim["id"]), f"{target} at {step}: gone", 5)


async def test_a_worker_and_its_browser_server_that_are_killed_while_they_drain_leave_nothing(
    playwright: Playwright,
) -> None:
    async with row(playwright) as (grid, load):
        victim = busiest(grid)
        grid.ask("drain", {"worker": victim["id"]})
        await eventually_async(lambda: workers(grid)[victim["id"]]["status"] == "draining", "it drains")
        os.kill(victim["pid"], signal.SIGKILL)
        await eventually_async(lambda: workers(grid)[victim["id"]]["pid"] != victim["pid"], "it is succeeded")
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])

        os.kill(victim["nodePid"], signal.SIGKILL)
        await eventually_async(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)
        await load.goes_on()
        assert 1 <= len(load.lost) <= victim["active"]
        assert load.refused == []
        await load.ends()
        await eventually_async(lambda: failures(grid).total() >= len(load.lost), "all that were lost are on record")
        assert failures(grid) == {"browser server lost": len(load.lost)}
