"""When a worker is recycled or killed, from literal figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.types import Isolation
from pwgrid.master.policy.worker_limits import (
    Footprint,
    expires_at,
    over_hard,
    recycle_reason,
    renewed_after,
)
from pwgrid.settings.model import Settings

SOFT = Settings.model_construct(max_worker_memory_mib=1000)
BOTH = Settings.model_construct(max_worker_memory_mib=1000, max_worker_memory_hard_mib=2000)
OFF = Settings.model_construct(max_launches=0)


def walk(limits: Settings, *samples: tuple[int, int | None]) -> Footprint:
    """The footprint after samples of (RSS, reading of the metric or None)."""
    memory = Footprint()
    for rss_mib, memory_mib in samples:
        memory = memory.sampled(limits, rss_mib, memory_mib)
    return memory


def reason(limits: Settings, memory: Footprint, age_s: float = 0.0, launches: int = 0) -> Reason | None:
    return recycle_reason(limits, 100.0, memory, launches, 100.0 + age_s)


@pytest.mark.parametrize(
    ("samples", "is_recycled"),
    [
        ([], False),
        ([(1500, 1001)], False),
        ([(1500, 1001), (1500, 1001)], True),
        ([(1500, 1000), (1500, 1000)], False),
        ([(1500, 1001), (1500, 999), (1500, 1001)], False),
        ([(1500, 1001), (900, None), (1500, 1001)], False),
        ([(1500, 1001), (1500, None), (1500, 1001)], False),
        ([(1500, 999), (1500, 1001), (1500, 1200)], True),
    ],
)
def test_two_samples_running_over_the_soft_limit_recycle(
    samples: list[tuple[int, int | None]], is_recycled: bool
) -> None:
    assert (reason(SOFT, walk(SOFT, *samples)) is not None) == is_recycled


def test_the_reason_names_the_figure_and_the_limit() -> None:
    found = reason(SOFT, walk(SOFT, (1500, 1100), (1600, 1234)))
    assert found == Reason(WorkerEnd.MEMORY, "1234 MiB, the limit is 1000 MiB")
    assert str(found) == "memory: 1234 MiB, the limit is 1000 MiB"


def test_a_worker_that_is_too_old_is_recycled_and_memory_comes_first() -> None:
    limits = Settings.model_construct(max_worker_memory_mib=1000, max_worker_age=60.0)
    assert reason(limits, Footprint(), 59.9) is None
    assert reason(limits, Footprint(), 60.0) == Reason(WorkerEnd.AGE, "older than 60 s")
    both = reason(limits, walk(limits, (1500, 1100), (1500, 1100)), 60.0)
    assert both is not None
    assert both.kind is WorkerEnd.MEMORY


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 1000),
        ({"max_launches": 30}, 30),
        ({"max_launches": 30, "max_lifetime_sessions": 7}, 30),
        ({"max_launches": 30, "isolation": Isolation.PROCESS}, 30),
        # There the lifetime is a number of launches itself, which sessions of one lease must not get round.
        ({"max_launches": 30, "max_lifetime_sessions": 7, "isolation": Isolation.BROWSER}, 7),
        ({"max_launches": 0, "max_lifetime_sessions": 7, "isolation": Isolation.BROWSER}, 7),
    ],
)
def test_so_many_own_browsers_beside_the_lifetime_recycle_a_worker(settings: dict[str, Any], most: int) -> None:
    limits = Settings.model_construct(**settings)
    assert reason(limits, Footprint(), launches=most - 1) is None
    found = reason(limits, Footprint(), launches=most)
    assert found == Reason(WorkerEnd.LAUNCHES, f"{most} own browsers, the limit is {most}")
    assert str(found) == f"launches: {most} own browsers, the limit is {most}"


def test_without_limits_nothing_is_recycled_killed_or_read() -> None:
    memory = walk(OFF, (50_000, 40_000), (50_000, 40_000))
    assert reason(OFF, memory, 1e9, launches=1_000_000) is None
    assert not over_hard(OFF, memory)
    assert not Footprint().needs_reading(OFF, 50_000)
    assert expires_at(OFF, 5.0) == math.inf


@pytest.mark.parametrize(("memory_mib", "is_over"), [(None, False), (2000, False), (2001, True)])
def test_one_sample_over_the_hard_limit_is_enough(memory_mib: int | None, is_over: bool) -> None:
    assert over_hard(BOTH, walk(BOTH, (3000, memory_mib))) == is_over


@pytest.mark.parametrize(
    ("samples", "rss_mib", "is_needed"),
    [
        ([], 1000, False),  # RSS within the limit: the metric is too
        ([], 1001, True),
        ([(1500, 400)], 2099, False),  # 600 MiB more would still be within the limit
        ([(1500, 400)], 2101, True),
        ([(1500, 400), (1200, None)], 1799, False),
        ([(1500, 400), (1200, None)], 1801, True),  # what was given back may have been shared: growth counts from there
        ([(1500, 1100)], 1500, True),  # over the limit it is always looked at
        ([(1500, 400), (900, None)], 1001, True),
    ],
)
def test_the_metric_is_read_only_when_it_could_be_over_a_limit(
    samples: list[tuple[int, int | None]], rss_mib: int, is_needed: bool
) -> None:
    assert walk(SOFT, *samples).needs_reading(SOFT, rss_mib) == is_needed


def test_an_old_reading_is_renewed() -> None:
    memory = walk(SOFT, (1500, 400), *[(1500, None)] * 10)
    assert not memory.is_due(12)
    assert memory.sampled(SOFT, 1500, None).is_due(12)  # it is the twelfth after the reading that is due
    assert not memory.sampled(SOFT, 1500, 410).is_due(12)
    assert walk(SOFT, (1500, 400)).is_due(1)


def test_the_first_reading_waits_for_its_turn() -> None:
    assert not Footprint().is_due(1)
    assert not walk(OFF, *[(1500, None)] * 20).is_due(12)


@pytest.mark.parametrize(("interval_s", "samples"), [(0.1, 12), (5.0, 12), (7.0, 8), (30.0, 2), (45.0, 1), (600.0, 1)])
def test_a_reading_is_renewed_within_a_minute_where_there_are_samples_for_it(interval_s: float, samples: int) -> None:
    assert renewed_after(interval_s) == samples


@pytest.mark.parametrize("limits", [SOFT, OFF])
def test_what_was_read_is_shown_until_the_next_reading_but_never_more_than_the_rss(limits: Settings) -> None:
    assert walk(limits, (1500, 400), (1600, None), (900, None)).memory_mib == 400
    assert walk(limits, (1500, 400), (300, None)).memory_mib == 300
    assert walk(limits, (900, None)).memory_mib is None


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), max_size=30))
def test_private_growth_over_the_limit_is_never_missed(sizes: list[tuple[int, int]]) -> None:
    """A tree with constant shared memory and any private memory: whenever PSS is over the limit, it is read."""
    memory = Footprint()
    shared = 500
    for private, _ in sizes:
        rss, pss = private + shared, private + shared // 2
        is_read = memory.needs_reading(SOFT, rss)
        assert is_read or pss <= SOFT.max_worker_memory_mib
        memory = memory.sampled(SOFT, rss, pss if is_read else None)
