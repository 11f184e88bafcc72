"""Why no worker of a pool could be chosen: word by word what an operator reads."""

from dataclasses import replace
from typing import Any

import pytest

from pwgrid.proxy.roster import PoolView
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord
from pwgrid.registry.selectable_workers import why_cannot_serve

NOW = 1000.5
GOOD = WorkerRecord("firefox", "a", "ws://x", status="available", pool="foxes", last_heartbeat=NOW - 30), 49


def why(*workers: tuple[WorkerRecord, int]) -> str | None:
    """Each worker is given with its sessions until now."""
    by_field = {f"firefox:{number}": worker for number, (worker, _) in enumerate(workers)}
    lifetime = {f"firefox:{number}": lived for number, (_, lived) in enumerate(workers)}
    pool = PoolView(1, 1, None, "foxes", "firefox", lifetime=50)
    return why_cannot_serve(RegistrySnapshot({}, lifetime, by_field, {}, 0), [pool], NOW, stale_s=30.0).get("foxes")


def but(lifetime: int = 49, **changes: Any) -> tuple[WorkerRecord, int]:
    return replace(GOOD[0], **changes), lifetime


def test_one_that_can_be_chosen_is_enough() -> None:
    assert why(but(lifetime=50), GOOD) is None


@pytest.mark.parametrize(
    ("workers", "obstacles"),
    [
        ([], "none is registered"),
        ([but(status="draining")], "1 draining"),
        ([but(status="spare"), but(status="")], "1 spare, 1 without a status"),
        ([but(last_heartbeat=NOW - 31)], "1 without a heartbeat for over 30 s"),
        (
            [but(lifetime=50), but(lifetime=1_000_000)],
            "2 used up (cluster:lifetime_connections says 50 sessions or more)",
        ),
        ([but(ws_endpoint="")], "1 without an endpoint"),
        ([but(pool="other"), but(browser_type="webkit")], "none is registered"),
    ],
)
def test_else_each_obstacle_is_named_and_counted(workers: list[tuple[WorkerRecord, int]], obstacles: str) -> None:
    assert why(*workers) == f"no foxes worker can be chosen: in Redis {obstacles}"
