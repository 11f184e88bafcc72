"""What ends where memory is short, from literal figures."""

from __future__ import annotations

import pytest

from pwgrid.master.policy.end_for_memory import GOING_S, EndBrowser, Otherwise, ends_of_worker, oldest_kept

NOW = 100.0


def test_the_session_that_was_kept_longest_ends_first() -> None:
    assert oldest_kept({"a": 20.0, "b": 10.0}) == "b"
    assert oldest_kept({}) is None


@pytest.mark.parametrize(
    ("sizes", "shared", "told_at", "ends"),
    [
        pytest.param({7: 10, 8: 30, 9: 20}, None, {}, EndBrowser(8), id="the largest"),
        pytest.param({7: 10, 8: 30}, 7, {}, EndBrowser(8), id="the largest, beside a shared one"),
        pytest.param({7: 40, 8: 30}, 7, {}, Otherwise.END_WORKER, id="the shared one is the largest"),
        pytest.param({}, None, {}, Otherwise.END_WORKER, id="no browser"),
        pytest.param({7: 10, 8: 30}, None, {7: NOW}, Otherwise.WAIT, id="another one is ending"),
        pytest.param({7: 10}, None, {7: NOW - GOING_S}, Otherwise.END_WORKER, id="it has not ended in time"),
        pytest.param({8: 30}, None, {7: NOW - GOING_S}, EndBrowser(8), id="the one that was told to has ended"),
    ],
)
def test_of_a_worker_that_takes_too_much_one_browser_ends_if_that_can_help(
    sizes: dict[int, int], shared: int | None, told_at: dict[int, float], ends: EndBrowser | Otherwise
) -> None:
    assert ends_of_worker(sizes, shared, told_at, NOW) == ends
