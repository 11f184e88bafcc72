"""Spares: the master starts them in time, lets them serve when they are needed, and ends them when they are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.support.master_grid import MasterGrid, wait_gone

Line = dict[str, Any]

LIFETIME = 1000
"""When 99 in a hundred of these come at once, the rest leaves no time for a worker to start."""


def grid_of_two(**settings: int) -> MasterGrid:
    return MasterGrid(settings={"chromium_workers": 2, "max_lifetime_sessions": LIFETIME, **settings})


def first_two(grid: MasterGrid) -> list[Line]:
    grid.expect("ready")
    return [line for line in grid.lines if line["what"] == "available"]


def nearly_used_up(grid: MasterGrid, worker: Line) -> Line:
    """Have the worker tell of many sessions; the spare that waits for its end then."""
    at = grid.mark()
    os.kill(worker["pid"], signal.SIGUSR1)
    spare = grid.expect("forked", at)
    assert spare["spare"] is True
    grid.expect("spare", at, worker=spare["worker"])
    while status_of(grid)[spare["worker"]] != "spare":
        pass
    return spare


def status_of(grid: MasterGrid) -> dict[str, str]:
    return {worker["id"]: worker["status"] for worker in grid.status()["workers"]}


def test_a_worker_that_is_used_up_soon_has_a_spare_which_serves_when_it_goes() -> None:
    with grid_of_two() as grid:
        worker, other = first_two(grid)
        spare = nearly_used_up(grid, worker)
        assert sorted(status_of(grid).values()) == ["available", "available", "spare"]
        at = grid.mark()
        os.kill(worker["pid"], signal.SIGUSR2)
        assert grid.expect("command", at, name="serve")["worker"] == spare["worker"]
        grid.expect("available", at, worker=spare["worker"])
        wait_gone(worker["pid"])
        grid.expect_state(lambda state: state["pools"]["chromium"]["available"] == 2, at)
        assert status_of(grid).keys() >= {other["worker"], spare["worker"]}
        grid.end()


def test_the_heir_of_a_used_up_worker_is_available_in_the_very_step_in_which_that_one_is_not() -> None:
    with grid_of_two() as grid:
        worker, other = first_two(grid)
        spare = nearly_used_up(grid, worker)
        (Path(grid.start["directory"]) / "replacement").write_text(spare["worker"])
        at = grid.mark()
        os.kill(worker["pid"], signal.SIGUSR2)
        grid.expect("available", at, worker=spare["worker"])
        wait_gone(worker["pid"])
        grid.expect_state(lambda state: worker["worker"] not in [each["id"] for each in state["workers"]], at)
        rosters = [line["state"] for line in grid.lines[at:] if line["what"] == "state"]
        assert {roster["pools"]["chromium"]["available"] for roster in rosters} == {2}
        assert grid.expect("command", at, name="serve")["worker"] == spare["worker"]
        assert status_of(grid)[other["worker"]] == "available"
        (Path(grid.start["directory"]) / "replacement").unlink()
        grid.end()


def test_a_spare_serves_for_a_worker_that_was_killed() -> None:
    with grid_of_two() as grid:
        worker, other = first_two(grid)
        spare = nearly_used_up(grid, worker)
        at = grid.mark()
        os.kill(other["pid"], signal.SIGKILL)
        assert grid.expect("command", at, name="serve")["worker"] == spare["worker"]
        grid.expect("available", at, worker=spare["worker"])
        grid.end()


def test_a_spare_that_dies_is_replaced_by_another_spare() -> None:
    with grid_of_two() as grid:
        worker, _ = first_two(grid)
        spare = nearly_used_up(grid, worker)
        at = grid.mark()
        os.kill(spare["pid"], signal.SIGKILL)
        assert grid.expect("forked", at)["spare"] is True
        grid.end()


def test_there_is_no_spare_beyond_the_surge() -> None:
    with grid_of_two(max_surge=1) as grid:
        worker, other = first_two(grid)
        spare = nearly_used_up(grid, worker)
        os.kill(other["pid"], signal.SIGUSR1)
        while {each["lifetime"] for each in grid.status()["workers"]} != {0, LIFETIME * 99 // 100}:
            pass
        assert status_of(grid).keys() == {worker["worker"], other["worker"], spare["worker"]}
        grid.end()


def test_a_spare_is_no_capacity_and_goes_with_the_grid() -> None:
    with grid_of_two() as grid:
        worker, _ = first_two(grid)
        spare = nearly_used_up(grid, worker)
        pool = next(each for each in grid.status()["pools"] if each["browserType"] == "chromium")
        assert (pool["available"], pool["spare"], pool["slots"]) == (2, 1, 10)
        grid.end()
        wait_gone(spare["pid"])


def test_a_pool_that_is_scaled_to_nothing_keeps_no_spare() -> None:
    with grid_of_two() as grid:
        worker, _ = first_two(grid)
        spare = nearly_used_up(grid, worker)
        grid.ask("scale", {"chromium": 0, "firefox": 1})
        wait_gone(spare["pid"])
        grid.end()
