"""Which pools start on demand, and how many workers such a pool should have, by what its clients do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.on_demand import GROWS_AFTER_S, Answer, Demand, answer, pools_of_versions
from pwgrid.master.workers.pool import Pool
from pwgrid.settings.model import Settings
from pwgrid.settings.own_playwright import own_minor
from pwgrid.settings.pools import PoolSettings, PoolTable

NOW, IDLE_S = 1000.0, 600.0
ENDED = Demand(wanted=0, available=0, starting=0, most=3, slots=5, waiting=0, active=0, used_at=0.0, room=3)
STARTING = replace(ENDED, wanted=1, starting=1, used_at=NOW)
SERVES = replace(ENDED, wanted=1, available=1, used_at=NOW)
FAILED = replace(ENDED, wanted=1, failure="no display", not_before=NOW + 4)
WELL = NOW - 1


@pytest.mark.parametrize(
    ("pool", "workers", "refusal", "look_at"),
    [
        (ENDED, 0, None, math.inf),
        (replace(ENDED, waiting=1), 1, None, NOW + IDLE_S),
        (replace(ENDED, waiting=6), 2, None, NOW + IDLE_S),
        (replace(ENDED, waiting=60, room=9), 3, None, NOW + IDLE_S),
        (replace(ENDED, waiting=6, most=0), 0, None, NOW + IDLE_S),  # a pool of no workers, or one that was removed
        (replace(STARTING, waiting=3), 1, None, NOW + IDLE_S),
        (replace(STARTING, waiting=30, room=1), 2, None, NOW + IDLE_S),
        # It serves: who has just been served may still be in the figure.
        (replace(SERVES, waiting=5), 1, None, NOW + GROWS_AFTER_S),
        (replace(SERVES, waiting=1, waits_since=NOW - GROWS_AFTER_S), 2, None, NOW + GROWS_AFTER_S),
        (replace(SERVES, waiting=1, waits_since=NOW - GROWS_AFTER_S, room=0, hindrance="short"), 1, None, None),
        (replace(SERVES, waiting=1, active=5), 2, None, NOW + GROWS_AFTER_S),
        (replace(SERVES, active=5), 1, None, NOW + IDLE_S),
        # Nobody uses it.
        (replace(SERVES, used_at=NOW - IDLE_S + 1), 1, None, NOW + 1),
        (replace(SERVES, used_at=NOW - IDLE_S), 0, None, math.inf),
        (replace(SERVES, used_at=NOW - IDLE_S, active=1), 1, None, NOW + IDLE_S),
        (replace(SERVES, used_at=NOW - IDLE_S, waiting=1), 1, None, NOW + GROWS_AFTER_S),
        # It cannot start.
        (replace(ENDED, waiting=1, room=0, hindrance="short of memory"), 0, "short of memory", math.inf),
        (replace(ENDED, room=0, hindrance="short of memory"), 0, None, math.inf),  # nobody asks
        (replace(FAILED, waiting=1), 0, "no display", NOW + 4),
        (FAILED, 0, "no display", NOW + 4),  # the next client hears it, too
        (replace(FAILED, waiting=1, not_before=WELL), 1, None, NOW + IDLE_S),
        (replace(FAILED, waiting=1, available=1), 1, None, None),  # another worker serves
        (replace(FAILED, waiting=1, starting=1), 1, None, NOW + IDLE_S),
    ],
)
def test_what_a_pool_gets(pool: Demand, workers: int, refusal: str | None, look_at: float | None) -> None:
    found = answer(pool, NOW, IDLE_S)
    assert (found.workers, found.refusal) == (workers, refusal)
    if look_at is not None:
        assert found.look_at == look_at


FIGURES = st.builds(
    Demand,
    wanted=st.integers(0, 4),
    available=st.integers(0, 4),
    starting=st.integers(0, 4),
    most=st.integers(0, 4),
    slots=st.integers(1, 5),
    waiting=st.integers(0, 30),
    active=st.integers(0, 30),
    used_at=st.floats(0, NOW),
    waits_since=st.none() | st.floats(0, NOW),
    failure=st.none() | st.just("broken"),
    not_before=st.floats(NOW - 9, NOW + 9),
    room=st.integers(0, 4),
    hindrance=st.none() | st.just("short"),
)


@given(FIGURES)
def test_whatever_happens_it_stays_within_its_workers_and_nobody_waits_in_vain(pool: Demand) -> None:
    found = answer(pool, NOW, IDLE_S)
    assert 0 <= found.workers <= pool.most or found.workers <= pool.wanted
    assert found.used_at >= pool.used_at
    if pool.waiting and pool.most and not found.workers:
        assert found.refusal or not pool.room  # who waits gets a worker, or hears why not
    if pool.active and pool.available and pool.most >= pool.wanted > 0:
        assert found.workers >= pool.wanted  # nobody's worker is taken away
    assert found == answer(pool, NOW, IDLE_S)


@given(st.lists(st.tuples(st.floats(0.01, IDLE_S), st.integers(0, 12), st.integers(0, 12)), max_size=30))
def test_it_ends_only_when_nobody_has_used_it_for_so_long_and_then_it_does(story: list[tuple[float, int, int]]) -> None:
    """Its workers start at once; in each step so many clients wait and so many have slots, after so many seconds."""
    pool, now, used_at = replace(ENDED, room=9), NOW, -math.inf
    for after_s, waiting, active in [*story, (IDLE_S, 0, 0), (IDLE_S, 0, 0)]:
        now += after_s
        active = min(active, pool.wanted * pool.slots)
        found = answer(replace(pool, waiting=waiting, active=active), now, IDLE_S)
        used_at = now if waiting or active else used_at
        assert bool(found.workers) == (now < used_at + IDLE_S)
        pool = replace(
            pool,
            wanted=found.workers,
            available=found.workers,
            used_at=found.used_at,
            waits_since=found.waits_since,
        )
    assert pool.wanted == 0


def test_who_has_an_own_browser_uses_the_pool_although_the_lifetime_does_not_count_it() -> None:
    workers: dict[str, Any] = {}
    pool = Pool(PoolSettings("old", "chromium", workers=2, slots=1, lifetime=10, on_demand=True), 0.0, workers)
    workers["a"] = worker = SimpleNamespace(
        **{"pool": pool, "life": SimpleNamespace(status=WorkerStatus.AVAILABLE), "active": 0},
        **{"lifetime": 0, "launches": 0, "counted_at": 0.0},
    )
    pool.scale(1)
    pool.count_sessions(worker, 0, 3, IDLE_S - 1)
    assert pool.rate.last_at == 0.0  # it calls for no spare
    assert pool.follow_demand(IDLE_S, 0, IDLE_S, 1, None) == 2 * IDLE_S - 1
    pool.count_sessions(worker, 0, 3, 2 * IDLE_S - 2)  # nobody has come since
    assert pool.workers == 1
    pool.follow_demand(2 * IDLE_S - 1, 0, IDLE_S, 1, None)
    assert pool.workers == 0


@pytest.mark.parametrize(("lifetime", "launches", "deaths"), [(0, 4, 1), (0, 5, 0), (2, 3, 0)])
def test_a_worker_that_has_had_sessions_with_own_browsers_did_not_die_early(
    lifetime: int, launches: int, deaths: int
) -> None:
    pool = Pool(PoolSettings("chromium", "chromium", workers=1, slots=5, lifetime=50), 0.0, {})
    reason = Reason(WorkerEnd.BROWSER_ENDED)
    worker: Any = SimpleNamespace(
        **{"life": SimpleNamespace(reason=reason), "warm_since": NOW - 9, "forked_at": NOW - 10},
        **{"lifetime": lifetime, "launches": launches},
    )
    pool.failed(worker, NOW)
    assert pool.backoff.deaths == deaths


def test_two_masters_that_see_the_same_line_come_to_the_same() -> None:
    """What the dead one had begun, a worker that starts, is in the figures of the next one."""
    first = answer(replace(ENDED, waiting=2), NOW, IDLE_S)
    assert first == Answer(1, NOW, look_at=NOW + IDLE_S)
    assert answer(replace(ENDED, waiting=2, wanted=first.workers, starting=1), NOW + 1, IDLE_S).workers == 1


def settings_of(*tables: dict[str, object], **given: object) -> dict[str, PoolSettings]:
    pools = tuple(PoolTable.model_validate(table) for table in tables)
    return Settings.model_validate({"pools": pools, **given}).pools_wanted()


def test_each_installed_version_that_no_pool_names_gets_a_pool_like_the_default_one() -> None:
    appa = {"name": "appa", "browser": "chromium", "playwright": "1.62", "slots": 2, "labels": ["A:Chromium"]}
    configured = settings_of(appa, chromium_workers=3, firefox_workers=1, max_concurrent_sessions=4)
    made = {pool.name: pool for pool in pools_of_versions(configured, ("1.58", "1.62", own_minor()))}
    assert [*made] == ["chromium-1.58", "firefox-1.58", "firefox-1.62"]
    pool = made["chromium-1.58"]
    assert (pool.playwright, pool.workers, pool.slots, pool.labels) == ("1.58", 3, 4, ())
    assert (pool.like, pool.on_demand, pool.is_short_form) == ("chromium", True, False)
    assert Counter(each.like for each in made.values()) == {"chromium": 1, "firefox": 2}


def test_where_all_pools_name_another_version_the_grid_s_own_starts_on_demand() -> None:
    tables = [
        {"name": name, "browser": "chromium", "playwright": "1.58", "slots": slots, "labels": [f"{name}:Chromium"]}
        for slots, name in enumerate(["appa", "appb"], 2)
    ]
    made = [*pools_of_versions(settings_of(*tables, chromium_workers=0), ("1.58", own_minor()))]
    assert [(pool.name, pool.like, pool.slots) for pool in made] == [(f"chromium-{own_minor()}", "appa", 2)]


def test_a_table_may_say_that_its_pool_starts_on_demand() -> None:
    table = {"name": "old", "browser": "chromium", "playwright": "1.58", "workers": 2, "on_demand": True}
    configured = settings_of(table, chromium_workers=1)
    assert (configured["old"].on_demand, configured["old"].workers, configured["old"].like) == (True, 2, "")
    assert [*pools_of_versions(configured, ("1.58", own_minor()))] == []


def test_names_of_pools_on_demand_are_none_of_a_configuration() -> None:
    for pool in pools_of_versions(settings_of(chromium_workers=1), ("1.58",)):
        with pytest.raises(ValueError, match="name"):
            PoolTable.model_validate({"name": pool.name, "browser": "chromium"})
