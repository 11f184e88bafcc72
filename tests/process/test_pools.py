"""Pools as the master runs them, with tiny roles: each for itself, also where two have the same browser."""

from typing import Any

from tests.support.master_grid import MasterGrid

POOLS = [
    {"name": "good", "browser": "chromium", "slots": 7, "args": ["--mine"]},
    {"name": "bad", "browser": "chromium", "workers": 1},
]


def by_name(status: dict[str, Any]) -> dict[str, Any]:
    return {pool["name"]: pool for pool in status["pools"]}


def test_two_pools_of_one_browser_have_settings_backoff_scale_and_drains_of_their_own() -> None:
    settings = {"pools": POOLS, "chromium_workers": 0, "max_concurrent_sessions": 3}
    with MasterGrid(settings=settings, behaviour={"bad": "crash"}) as grid:
        found = grid.expect("not_ready")["status"]
        assert found["reason"].partition(": ")[0] == "no bad worker is available"
        assert by_name(found)["good"]["reason"] is None
        assert by_name(found)["bad"]["reason"] == "worker ended with code 70 (3 early deaths in a row)"
        assert grid.expect("forked", pool="good")["settings"] == {"slots": 7, "args": ["--mine"]}
        assert grid.expect("forked", pool="bad")["settings"] == {"slots": 3, "args": []}

        state = grid.expect_state(
            lambda state: state["pools"]["bad"]["reason"] and state["pools"]["good"]["available"]
        )["state"]
        assert [*state["pools"]] == ["good", "bad"]
        good = state["pools"]["good"]
        assert (good["browserType"], good["slots"], good["wanted"], good["available"]) == ("chromium", 7, 1, 1)
        assert {worker["pool"] for worker in state["workers"] if worker["status"] == "available"} == {"good"}

        at = grid.mark()
        assert grid.ask("scale", {"good": 2, "bad": 0})["data"] == {"wanted": {"good": 2, "bad": 0}}
        grid.expect_state(lambda state: state["pools"]["good"]["available"] == 2, at)
        error = grid.ask("scale", {"chromium": 1})["error"]
        assert error == "there is no pool 'chromium'; pools are good, bad"
        assert grid.ask("scale", {"good": 0})["error"] == "one of the pools must keep a worker: good, bad"
        first, second = (line["worker"] for line in grid.lines if line["what"] == "available")
        assert sorted(grid.ask("drain", {"pool": "good"})["data"]["draining"]) == sorted([first, second])
        assert grid.ask("drain", {"pool": "nope"})["error"] == "there is no pool 'nope'; pools are good, bad"
        grid.expect_state(lambda state: state["pools"]["good"]["available"] == 2, grid.mark())
        grid.end()
