"""What the kernel does not let SIGKILL end holds up neither a pool nor the end of the grid, and is named in the log."""

import os
import signal
from typing import Any

from tests.support.freezer import needs_freezer, unkillable
from tests.support.master_grid import PATIENCE_S, MasterGrid

KILL_S = 0.5
"""Instead of 5 s."""


def wait_logged(grid: MasterGrid, event: str) -> dict[str, Any]:
    while True:
        for each in grid.events():
            if each["event"] == event:
                return each
        grid.status()


@needs_freezer
def test_a_browser_that_cannot_be_killed_holds_up_neither_its_pool_nor_the_end() -> None:
    with MasterGrid(kill_s=KILL_S) as grid:
        grid.expect("ready")
        victim, at = grid.expect("available"), grid.mark()
        node, browser = victim["tree"]
        with unkillable(browser):
            os.kill(victim["pid"], signal.SIGSTOP)
            os.kill(node, signal.SIGKILL)
            os.kill(victim["pid"], signal.SIGKILL)
            second = grid.expect("available", at)
            told = wait_logged(grid, "processes_not_killed")
            assert (told["worker"], told["pids"]) == (victim["worker"], [browser])
            assert [worker["id"] for worker in grid.status()["workers"]] == [second["worker"]]
            at = grid.mark()
            grid.ask("drain", {"worker": second["worker"]})
            grid.expect("available", at)
            grid.send(signal.SIGTERM)
            grid.read_to_end()
            assert grid.process.wait(PATIENCE_S) == 0
            events = grid.events()
            assert [each["pids"] for each in events if each["event"] == "processes_left"] == [[browser]]
            assert len([each for each in events if each.get("worker") == victim["worker"]]) < 12


@needs_freezer
def test_what_can_be_killed_at_last_is_cleaned_up() -> None:
    with MasterGrid(kill_s=KILL_S) as grid:
        grid.expect("ready")
        victim, at = grid.expect("available"), grid.mark()
        with unkillable(victim["tree"][1]):
            os.kill(victim["pid"], signal.SIGSTOP)
            os.kill(victim["tree"][0], signal.SIGKILL)
            os.kill(victim["pid"], signal.SIGKILL)
            wait_logged(grid, "processes_not_killed")
        wait_logged(grid, "processes_ended_after_all")
        assert not os.path.exists(victim["directory"])
        grid.expect("available", at)
        grid.end()


@needs_freezer
def test_a_grid_ends_although_a_worker_cannot_be_killed() -> None:
    with MasterGrid(kill_s=KILL_S) as grid:
        grid.expect("ready")
        worker = grid.expect("available")
        with unkillable(worker["pid"]):
            grid.ask("stop", {"now": True})
            assert grid.process.wait(PATIENCE_S) == 0
            events = grid.events()
            assert [each["pid"] for each in events if each["event"] == "process_not_killed"] == [worker["pid"]]
            assert [each["pids"] for each in events if each["event"] == "processes_left"] == [[worker["pid"]]]
