"""How many workers the next sessions can use up, from literal pools; and whole pools in simulated time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pwgrid.master.policy.spare_workers import (
    HALF_LIFE_S,
    QUIET_S,
    UNKNOWN_START_S,
    SessionRate,
    expected_rate,
    sessions_to_come,
    spares,
)
from pwgrid.master.policy.worker_plan import Limits
from pwgrid.master.workers.pool import Pool
from pwgrid.settings.pools import PoolSettings
from tests.support.pool_model import PoolModel, Rules


@pytest.mark.parametrize(
    ("max_lifetime", "slots", "rate", "start_s", "sessions"),
    [
        (50, 5, 0.0, 9.0, 5),
        (10, 5, 0.0, 9.0, 2),
        (10, 1, 0.0, 9.0, 1),
        (1, 5, 0.0, 9.0, 1),
        (10, 5, 0.05, 2.0, 2),
        (10, 5, 12.0, 0.1, 4),
        (10, 5, 12.0, 1.1, 16),
        (1000, 5, 12.0, 1.1, 19),
    ],
)
def test_sessions_come_at_the_rate_and_some_at_once(
    max_lifetime: int, slots: int, rate: float, start_s: float, sessions: int
) -> None:
    assert sessions_to_come(rate, start_s, max_lifetime, slots) == sessions


IDLE = sessions_to_come(rate=0.0, start_s=1.0, max_lifetime=10, slots=5)  # 2
SLOW = sessions_to_come(rate=3.0, start_s=1.0, max_lifetime=10, slots=5)  # 5
BUSY = sessions_to_come(rate=12.0, start_s=1.0, max_lifetime=10, slots=5)  # 14, until a browser that starts now is warm


@pytest.mark.parametrize(
    ("sessions", "lifetimes", "number"),
    [
        (IDLE, [], 0),
        (IDLE, [0, 0, 0], 0),
        (IDLE, [7, 7, 7], 0),
        (IDLE, [7, 8, 7], 1),
        (IDLE, [9, 9, 9], 2),
        (SLOW, [0, 8, 7], 2),
        (SLOW, [0, 8, 6], 1),
        (SLOW, [9, 9, 9], 3),
        (BUSY, [0, 0, 0], 1),
        (BUSY, [0, 6, 0], 2),
        (BUSY, [0, 6, 1], 2),
        (BUSY, [0, 7, 2], 2),
        (BUSY, [7, 7, 7], 3),
        (BUSY, [7, 7, 7, 0, 0, 0], 3),
        (BUSY, [9, 9, 8, 0, 0, 0], 4),
        (BUSY, [10, 11], 2),
    ],
)
def test_there_are_as_many_spares_as_workers_that_can_be_used_up(
    sessions: int, lifetimes: list[int], number: int
) -> None:
    assert spares(sessions, 10, lifetimes) == number


def test_a_rate_is_that_of_the_busiest_second() -> None:
    rate = SessionRate(0.0)
    for at in (10.0, 10.5, 10.9, 11.2, 11.4, 20.0):
        rate.count(1, at, at)
    assert round(rate.per_s(20.0), 1) == 3.9  # four, held up for nearly nine seconds


@pytest.mark.parametrize(
    ("workers", "slots", "max_lifetime", "rate", "fresh_spares"),
    [
        (3, 5, 10, 15.0, 1),
        (3, 5, 50, 15.0, 0),
        (1, 5, 2, 1.0, 1),
        (1, 5, 1, 0.5, 2),
        (20, 5, 50, 100.0, 2),
        (0, 5, 50, 0, 0),
    ],
)
def test_a_pool_expects_short_sessions_but_not_to_be_used_up(
    workers: int, slots: int, max_lifetime: int, rate: float, fresh_spares: int
) -> None:
    assert expected_rate(workers, slots, max_lifetime) == rate
    sessions = sessions_to_come(rate, 1.0, max_lifetime, slots)
    assert spares(sessions, max_lifetime, [0] * (workers + 8)) == fresh_spares


def test_before_anything_is_known_a_rate_is_expected_and_forgotten_with_time() -> None:
    rate = SessionRate(100.0, expected=16.0)
    assert rate.per_s(100.0) == 16.0
    rate.count(1, 100.5, 100.5)
    assert rate.per_s(100.0 + HALF_LIFE_S) == 8.0
    rate.count(9, 100.0 + HALF_LIFE_S, 100.0 + HALF_LIFE_S)
    assert rate.per_s(100.0 + HALF_LIFE_S) == 9.0


def test_sessions_that_were_counted_late_are_spread_over_the_time_they_came_in() -> None:
    rate = SessionRate(0.0)
    rate.count(100, 10.0, 20.0)
    assert rate.per_s(20.0) == 10.0


def test_a_rate_is_held_up_and_halves_with_time() -> None:
    rate = SessionRate(0.0)
    rate.count(12, 10.0, 10.0)
    rate.count(1, 10.0 + HALF_LIFE_S, 10.0 + HALF_LIFE_S)
    assert rate.per_s(10.0 + HALF_LIFE_S) == 6.0
    assert rate.per_s(10.0 + 2 * HALF_LIFE_S) == 3.0
    rate.count(4, 10.0 + 2 * HALF_LIFE_S, 10.0 + 2 * HALF_LIFE_S)
    assert rate.per_s(10.0 + 2 * HALF_LIFE_S) == 4.0


def test_a_pool_is_quiet_some_time_after_its_last_session() -> None:
    rate = SessionRate(5.0)
    assert not rate.is_quiet(4.9 + QUIET_S)
    assert rate.is_quiet(5.0 + QUIET_S)
    rate.count(1, 40.0, 41.0)
    assert not rate.is_quiet(40.9 + QUIET_S)
    assert rate.is_quiet(41.0 + QUIET_S)


def test_the_next_start_is_expected_to_take_as_long_as_the_slowest_of_the_last_five() -> None:
    pool = Pool(PoolSettings("chromium", "chromium", workers=1, slots=1, lifetime=10), 0.0, {})
    assert pool.start_s == UNKNOWN_START_S
    for seconds, expected in [(0.5, 0.5), (3.0, 3.0), *[(1.0, 3.0)] * 4, (1.0, 1.0)]:
        pool.starts_s.append(seconds)
        assert pool.start_s == expected


# Whole pools


def steady(number: int, rate: float, duration_s: float) -> list[tuple[float, float]]:
    return [(n / rate, duration_s) for n in range(number)]


def test_no_worker_is_missing_while_a_thousand_sessions_use_a_hundred_workers_up() -> None:
    grid = PoolModel(Rules(workers=3, max_lifetime=10, start_s=lambda: 1.0))
    grid.run(steady(1000, rate=12, duration_s=0.5))
    assert grid.least == 3
    assert grid.longest_wait_s == 0.0
    assert set(grid.lifetimes) == {10}
    assert len(grid.lifetimes) >= 95


def test_with_a_surge_of_one_the_same_pool_has_too_few_workers() -> None:
    grid = PoolModel(Rules(workers=3, limits=Limits(max_starting=4, max_surge=1)))
    grid.run(steady(1000, rate=12, duration_s=0.5))
    assert grid.least < 3


def test_a_load_that_comes_out_of_nothing_finds_spares() -> None:
    grid = PoolModel(Rules(workers=3, max_lifetime=10, start_s=lambda: 1.2))
    grid.run([(0.0, 0.1), *((5.0 + at, duration_s) for at, duration_s in steady(200, rate=20, duration_s=0.45))])
    assert grid.least == 3
    assert grid.longest_wait_s == 0.0


@pytest.mark.parametrize("lingers", [True, False])
def test_long_sessions_in_used_up_workers_take_no_place_of_spares(lingers: bool) -> None:
    """200 sessions of 2 s to 3 min. If those workers counted against the surge, there would be no spare in time."""
    chance = random.Random(1)
    grid = PoolModel(Rules(workers=4, lingers=lingers, limits=Limits(max_starting=4, max_surge=3)))
    grid.run([(2.0 * n, 2.0 * 90.0 ** chance.random()) for n in range(200)])
    assert grid.most > 4 + 3
    assert (grid.least == 4) is lingers


def test_an_idle_pool_goes_back_to_what_is_wanted_and_a_spare_for_the_one_that_is_nearly_used_up() -> None:
    grid = PoolModel(Rules(workers=3))
    grid.run(steady(298, rate=12, duration_s=0.5), then_s=20 * HALF_LIFE_S)
    statuses = Counter(each.status.value for each in grid.members)
    assert statuses["available"] == 3
    assert statuses["spare"] == sum(each.lifetime >= 8 for each in grid.available()) <= 1
    assert statuses.total() == 3 + statuses["spare"]


@pytest.mark.parametrize(("fits", "least"), [(5, 4), (4, 3)])
@pytest.mark.parametrize("start_s", [0.1, 3.0])
def test_an_upgrade_under_load_takes_no_worker_or_one_where_the_host_has_no_memory_for_another(
    fits: int, least: int, start_s: float
) -> None:
    grid = PoolModel(Rules(workers=4, max_lifetime=10_000, start_s=lambda: start_s, fits=fits))
    old = list(grid.members)
    grid.upgrade(at=5.0)
    grid.run(steady(1000, rate=5, duration_s=0.5))
    assert grid.least == least
    assert grid.most <= fits
    assert len(grid.available()) == 4
    assert not set(old) & set(grid.members)


@settings(max_examples=25)
@given(
    workers=st.integers(2, 6),
    max_lifetime=st.sampled_from([10, 15, 25, 50]),
    start_s=st.floats(0.3, 3.0),
    share=st.floats(0.05, 0.5),
    duration_s=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**32),
)
def test_no_pool_has_too_few_workers_where_starts_can_keep_up(
    workers: int, max_lifetime: int, start_s: float, share: float, duration_s: float, seed: int
) -> None:
    chance = random.Random(seed)
    starting = 4
    # What so many starts at a time can replace, and what the slots of the wanted workers can carry.
    highest = share * min(starting * max_lifetime / start_s, workers * 5 / duration_s)
    at, sessions = 0.0, []
    for _ in range(12 * max_lifetime):
        rate = highest * min(1.0, 0.1 + at / (10 * start_s))  # nobody can foresee the first second of a load
        at += chance.uniform(0.5, 1.5) / rate
        sessions.append((at, duration_s * chance.uniform(0.5, 1.5)))
    grid = PoolModel(
        Rules(
            workers=workers,
            max_lifetime=max_lifetime,
            start_s=lambda: start_s * chance.uniform(0.9, 1.0),
            limits=Limits(max_starting=starting, max_surge=50),
        )
    )
    grid.run(sessions)
    assert grid.least >= workers
    assert set(grid.lifetimes) <= {max_lifetime}
