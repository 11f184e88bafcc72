"""What the master starts and drains, from literal pools."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from grid.core.lifecycle import WorkerStatus
from grid.core.plan import Action, Drain, Limits, Spawn, Wanted, WorkerView, next_start, plan
from grid.core.types import BrowserType

S = WorkerStatus
MANY = Limits(max_starting=100)


def views(*statuses: WorkerStatus) -> list[WorkerView]:
    return [WorkerView(f"w{n}", "chromium", status, started_at=float(n)) for n, status in enumerate(statuses)]


def decide(workers: int, there: list[WorkerView], limits: Limits = MANY) -> list[Action]:
    return plan({"chromium": Wanted(workers)}, there, 100.0, limits)


def spawns(actions: list[Action]) -> int:
    return sum(isinstance(action, Spawn) for action in actions)


def test_an_empty_pool_is_filled() -> None:
    assert decide(3, []) == [Spawn("chromium")] * 3


def test_a_complete_pool_needs_nothing() -> None:
    assert decide(2, views(S.AVAILABLE, S.STARTING)) == []


def test_a_draining_worker_is_no_capacity_its_replacement_starts_at_once() -> None:
    assert decide(2, views(S.AVAILABLE, S.DRAINING)) == [Spawn("chromium")]


def test_a_lost_worker_is_replaced_before_its_process_is_gone() -> None:
    assert decide(1, views(S.LOST)) == [Spawn("chromium")]


def test_no_more_start_in_parallel_than_allowed() -> None:
    assert decide(9, views(S.STARTING), Limits(max_starting=3)) == [Spawn("chromium")] * 2


def test_the_parallel_starts_are_shared_between_the_pools() -> None:
    wanted: dict[BrowserType, Wanted] = {"chromium": Wanted(5), "firefox": Wanted(5)}
    assert plan(wanted, [], 0.0, Limits(max_starting=2)) == [Spawn("chromium"), Spawn("firefox")]


def test_a_pool_in_backoff_waits_and_the_others_go_on() -> None:
    wanted: dict[BrowserType, Wanted] = {"chromium": Wanted(1, not_before=100.5), "firefox": Wanted(1)}
    assert plan(wanted, [], 100.0, MANY) == [Spawn("firefox")]
    assert next_start(wanted, 100.0) == 100.5
    assert plan(wanted, [], 100.5, MANY) == [Spawn("chromium"), Spawn("firefox")]


def test_the_host_guard_lets_nothing_start() -> None:
    assert decide(2, views(S.DRAINING), Limits(no_spawns="memory is short")) == []


def test_a_pool_that_drains_as_a_whole_is_replaced_as_a_whole_where_there_is_memory() -> None:
    drained = views(S.DRAINING, S.DRAINING, S.DRAINING)
    assert spawns(decide(3, drained, Limits(max_starting=9, max_surge=1))) == 3


def test_extra_workers_start_only_where_there_is_memory() -> None:
    drained = views(S.DRAINING, S.DRAINING, S.DRAINING)
    assert spawns(decide(3, drained, Limits(max_starting=9, memory_for=2))) == 2
    assert spawns(decide(3, drained, Limits(max_starting=9, memory_for=0))) == 0


def test_memory_holds_back_no_worker_that_is_not_extra() -> None:
    assert spawns(decide(2, [], Limits(max_starting=9, memory_for=0))) == 2


def test_without_surge_a_replacement_waits_for_its_place() -> None:
    limits = Limits(max_starting=9, max_surge=0)
    assert decide(2, views(S.AVAILABLE, S.DRAINING), limits) == []
    assert decide(2, views(S.AVAILABLE), limits) == [Spawn("chromium")]


def test_scaling_down_drains_starting_ones_then_idle_ones_then_the_least_busy() -> None:
    there = [
        WorkerView("busy", "chromium", S.AVAILABLE, active=4, started_at=1.0),
        WorkerView("idle", "chromium", S.AVAILABLE, active=0, started_at=2.0),
        WorkerView("half", "chromium", S.AVAILABLE, active=2, started_at=3.0),
        WorkerView("new", "chromium", S.STARTING, started_at=4.0),
    ]
    assert [action.worker_id for action in decide(3, there) if isinstance(action, Drain)] == ["new"]
    assert [action.worker_id for action in decide(1, there) if isinstance(action, Drain)] == ["new", "idle", "half"]
    assert len(decide(0, there)) == 4


def test_scaling_down_drains_nothing_twice() -> None:
    assert decide(1, views(S.AVAILABLE, S.DRAINING, S.STOPPED, S.LOST)) == []


def recycled(*statuses: WorkerStatus, due: int = 1) -> list[WorkerView]:
    return [
        WorkerView(f"w{n}", "chromium", status, started_at=float(n), recycle="memory" if n < due else None)
        for n, status in enumerate(statuses)
    ]


def test_a_recycle_starts_the_replacement_first() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE)) == [Spawn("chromium")]
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, S.STARTING)) == []
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, S.AVAILABLE)) == [Drain("w0", "memory")]
    assert decide(2, recycled(S.DRAINING, S.AVAILABLE, S.AVAILABLE)) == []


def test_recycles_of_a_pool_go_one_at_a_time() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, due=2)) == [Spawn("chromium")]
    assert decide(2, recycled(S.DRAINING, S.AVAILABLE, S.AVAILABLE, due=2)) == []
    assert decide(2, recycled(S.STOPPED, S.AVAILABLE, S.AVAILABLE, due=2)) == []


def test_a_recycle_waits_while_the_surge_is_used_up() -> None:
    there = [*recycled(S.AVAILABLE), *views(S.AVAILABLE, S.DRAINING)[1:]]
    assert decide(1, there) == []


def test_a_recycle_that_can_have_no_replacement_drains_first() -> None:
    there = recycled(S.AVAILABLE, S.AVAILABLE)
    for limits in (Limits(max_surge=0), Limits(memory_for=0), Limits(no_spawns="memory is short")):
        assert decide(2, there, limits) == [Drain("w0", "memory")]


def test_a_pool_in_backoff_recycles_nothing() -> None:
    there = recycled(S.AVAILABLE, S.AVAILABLE)
    assert plan({"chromium": Wanted(2, not_before=200.0)}, there, 100.0, MANY) == []


VIEWS = st.lists(
    st.builds(
        WorkerView,
        worker_id=st.uuids().map(str),
        browser_type=st.sampled_from(["chromium", "firefox"]),
        status=st.sampled_from(WorkerStatus),
        active=st.integers(0, 5),
        started_at=st.floats(0, 100),
        recycle=st.sampled_from([None, None, "memory"]),
    ),
    max_size=8,
)


@given(VIEWS, st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 5), st.integers(1, 4))
def test_no_plan_breaks_a_bound(
    there: list[WorkerView], chromium: int, firefox: int, surge: int, memory: int, starting: int
) -> None:
    limits = Limits(max_starting=starting, max_surge=surge, memory_for=memory)
    wanted: dict[BrowserType, Wanted] = {"chromium": Wanted(chromium), "firefox": Wanted(firefox)}
    actions = plan(wanted, there, 100.0, limits)
    already = sum(view.status is S.STARTING for view in there)
    assert spawns(actions) <= max(0, starting - already)
    drained = [action.worker_id for action in actions if isinstance(action, Drain)]
    assert len(drained) == len(set(drained))
    starts = Counter(action.browser_type for action in actions if isinstance(action, Spawn))
    for name, wish in wanted.items():
        mine = [view for view in there if view.browser_type == name]
        live = [view for view in mine if view.status in (S.STARTING, S.AVAILABLE)]
        gone = len(mine) - len(live)
        kept = [view for view in live if view.worker_id not in drained]
        # Never more than wanted, but for one replacement that is started ahead.
        assert not starts[name] or len(kept) + starts[name] <= wish.workers + 1
        assert len(mine) + starts[name] <= max(len(mine), wish.workers + (max(surge, gone) if surge else 0))
        if surge == 0 or memory == 0:
            assert len(mine) + starts[name] <= max(len(mine), wish.workers)
        # What serves without a reason to go is never drained below the wanted number.
        healthy = [view for view in kept if view.recycle is None]
        lost_healthy = [view for view in live if view.recycle is None and view.worker_id in drained]
        assert not lost_healthy or len(kept) >= wish.workers or len(healthy) >= wish.workers


@given(VIEWS, st.integers(0, 4))
def test_following_the_plan_comes_to_rest_with_what_is_wanted(there: list[WorkerView], workers: int) -> None:
    now = {view.worker_id: view for view in there if view.browser_type == "chromium"}
    for turn in range(60):
        actions = plan({"chromium": Wanted(workers)}, now.values(), 100.0, Limits(max_starting=2))
        if not actions and all(view.status is S.AVAILABLE for view in now.values()):
            break
        for n, action in enumerate(actions):
            if isinstance(action, Spawn):
                now[f"{turn}-{n}"] = WorkerView(f"{turn}-{n}", "chromium", S.STARTING)
            else:
                del now[action.worker_id]
        for worker_id, view in list(now.items()):
            if view.status is S.STARTING:
                now[worker_id] = WorkerView(worker_id, "chromium", S.AVAILABLE, recycle=view.recycle)
            elif view.status is not S.AVAILABLE:
                del now[worker_id]
    assert [view.recycle for view in now.values()] == [None] * workers


def test_the_replacement_of_a_worker_that_leaves_soon_starts_before_it_drains() -> None:
    soon = WorkerView("a", "chromium", WorkerStatus.AVAILABLE, leaves_soon=True)
    fresh = WorkerView("b", "chromium", WorkerStatus.AVAILABLE)
    wanted = {"chromium": Wanted(2)}
    assert plan(wanted, [soon, fresh], 0, Limits()) == [Spawn("chromium")]
    spare = WorkerView("c", "chromium", WorkerStatus.AVAILABLE)
    assert plan(wanted, [soon, fresh, spare], 0, Limits()) == []


def test_only_max_surge_spares_wait_at_once() -> None:
    views = [WorkerView(name, "chromium", WorkerStatus.AVAILABLE, leaves_soon=True) for name in "ab"]
    assert plan({"chromium": Wanted(2)}, views, 0, Limits(max_surge=1)) == [Spawn("chromium")]


def test_a_pool_that_is_scaled_to_nothing_keeps_nobody_who_leaves_soon() -> None:
    soon = WorkerView("a", "chromium", WorkerStatus.AVAILABLE, leaves_soon=True)
    assert plan({"chromium": Wanted(0)}, [soon], 0, Limits()) == [Drain("a", "scaled down")]
