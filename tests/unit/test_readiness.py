"""The one meaning of ready: a table of what there is, and the sentence that says why the grid is not."""

from typing import Any

import pytest

from pwgrid.common.readiness import PoolFigures, why_not_ready
from pwgrid.common.types import BrowserType

FULL, PART, NONE = PoolFigures(2, 2, None), PoolFigures(2, 1, None), PoolFigures(2, 0, None)
SUSPECT, PART_SUSPECT = PoolFigures(2, 2, None, suspect=2), PoolFigures(2, 2, None, suspect=1)
BROKEN, UNWANTED = PoolFigures(1, 0, "firefox did not start: no display"), PoolFigures(0, 0, None)


@pytest.mark.parametrize(
    ("chromium", "firefox", "is_started", "sentence"),
    [
        (FULL, UNWANTED, True, None),
        (PART, UNWANTED, True, None),
        (PART_SUSPECT, UNWANTED, True, None),
        (
            *(SUSPECT, UNWANTED, True),
            "no chromium worker takes clients now: the browser of each may be sick, and is being tried",
        ),
        (FULL, UNWANTED, False, "the grid is starting: 2 of 2 chromium workers are available"),
        (PART, BROKEN, True, "no firefox worker is available: firefox did not start: no display"),
        (PART, BROKEN, False, "no firefox worker is available: firefox did not start: no display"),
        (NONE, UNWANTED, True, "no chromium worker is available"),
        (NONE, UNWANTED, False, "the grid is starting: 0 of 2 chromium workers are available"),
        (UNWANTED, UNWANTED, True, "no pool has workers: scale one up, for example `pwgrid scale chromium=1`"),
    ],
)
def test_the_grid_is_ready_when_each_pool_that_is_wanted_can_take_a_session(
    chromium: PoolFigures, firefox: PoolFigures, is_started: bool, sentence: str | None
) -> None:
    pools: dict[BrowserType, PoolFigures] = {"chromium": chromium, "firefox": firefox}
    assert why_not_ready(pools, is_started=is_started, is_stopping=False, host_guard=None) == sentence


def test_a_grid_that_stops_and_a_host_without_memory_are_not_ready_whatever_the_pools_are() -> None:
    pools: dict[BrowserType, PoolFigures] = {"chromium": FULL}
    guard = "the host is short of memory"
    assert why_not_ready(pools, is_started=True, is_stopping=False, host_guard=guard) == guard
    stopping = why_not_ready(pools, is_started=True, is_stopping=True, host_guard=guard)
    assert stopping == "the grid is shutting down"


@pytest.mark.parametrize(
    ("chromium", "firefox", "elsewhere", "changes", "sentence"),
    [
        (NONE, UNWANTED, {"chromium"}, {}, None),
        (NONE, UNWANTED, {"firefox"}, {}, "no chromium worker is available"),
        (NONE, BROKEN, {"chromium"}, {}, "no firefox worker is available: firefox did not start: no display"),
        (NONE, BROKEN, {"chromium", "firefox"}, {}, None),
        (UNWANTED, UNWANTED, {"webkit"}, {}, None),  # it has no workers, and sends its clients on
        (NONE, UNWANTED, {"chromium"}, {"is_started": False}, None),
        (NONE, UNWANTED, {"chromium"}, {"host_guard": "memory is short"}, None),
        (FULL, FULL, {"chromium"}, {"host_guard": "memory is short"}, "memory is short"),
        (FULL, UNWANTED, {"chromium"}, {"is_stopping": True}, "the grid is shutting down"),
        (
            *(FULL, UNWANTED, {"chromium"}, {"drained": "10.0.0.1:8080"}),
            "an operator has drained this host (10.0.0.1:8080): clients get other hosts",
        ),
    ],
)
def test_a_host_is_ready_whose_clients_another_one_can_serve(
    chromium: PoolFigures, firefox: PoolFigures, elsewhere: set[str], changes: dict[str, Any], sentence: str | None
) -> None:
    pools: dict[BrowserType, PoolFigures] = {"chromium": chromium, "firefox": firefox}
    told: dict[str, Any] = {"is_started": True, "is_stopping": False, "host_guard": None, **changes}
    assert why_not_ready(pools, elsewhere=elsewhere, **told) == sentence
