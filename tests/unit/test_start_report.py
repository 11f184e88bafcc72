"""When the grid is called ready: a table of what the pools and the proxy are, and whether it is told."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pwgrid.master.config import MasterConfig
from pwgrid.master.start_report import StartReport
from pwgrid.master.workers.pool import Pool


def report(pool: SimpleNamespace, told: list[Any]) -> StartReport:
    config = SimpleNamespace(on_ready=told.append, on_progress=lambda _: None)
    return StartReport(cast(MasterConfig, config), [cast(Pool, pool)], lambda: {"pid": 7})


def pool(*, workers: int = 2, complete: bool = True, guard: str | None = None, fails: bool = False) -> SimpleNamespace:
    backoff = SimpleNamespace(reason="it fails" if fails else None)
    return SimpleNamespace(
        browser_type="chromium",
        workers=workers,
        is_complete=complete,
        host_guard=guard,
        cannot_start=fails,
        backoff=backoff,
    )


@pytest.mark.parametrize(
    ("found", "listens", "ready", "told"),
    [
        (pool(complete=False), True, False, False),
        (pool(complete=False), True, True, False),
        (pool(), False, False, False),
        (pool(), True, False, False),  # the proxy would still answer 503
        (pool(), True, True, True),
        (pool(complete=False, fails=True), False, False, False),
        (pool(complete=False, fails=True), True, False, True),
        (pool(complete=False, guard="the host is short of memory"), True, False, True),
        (pool(guard="the host is short of memory"), True, False, True),
        (pool(workers=0), True, False, True),
    ],
)
def test_the_grid_is_called_ready_once_the_proxy_would_say_the_same(
    found: SimpleNamespace, listens: bool, ready: bool, told: bool
) -> None:
    heard: list[Any] = []
    start = report(found, heard)
    for _ in range(2):
        start.tell([], listens=listens, ready=ready)
    assert heard == [{"pid": 7}] * told
