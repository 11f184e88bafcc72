"""What the master starts and drains, from literal pools."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.worker_plan import (
    Drain,
    Limits,
    PlannedWorker,
    PlanStep,
    PoolTarget,
    Serve,
    ShortenDrain,
    Spawn,
    next_start,
    plan,
)

S = WorkerStatus
MANY = Limits(max_starting=100)

MEMORY = Reason(WorkerEnd.MEMORY, "900 MiB, the limit is 800 MiB")
UPGRADE = Reason(WorkerEnd.UPGRADE)
SPARE = Reason(WorkerEnd.SPARE)
SHORT_OF_MEMORY = Reason(WorkerEnd.SHORT_OF_MEMORY)


def views(*statuses: WorkerStatus) -> list[PlannedWorker]:
    return [PlannedWorker(f"w{n}", "chromium", status, started_at=float(n)) for n, status in enumerate(statuses)]


def decide(workers: int, there: list[PlannedWorker], limits: Limits = MANY) -> list[PlanStep]:
    return plan({"chromium": PoolTarget(workers)}, there, 100.0, limits)


def spawns(actions: list[PlanStep]) -> int:
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
    wanted: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(5), "firefox": PoolTarget(5)}
    assert plan(wanted, [], 0.0, Limits(max_starting=2)) == [Spawn("chromium"), Spawn("firefox")]


def test_a_pool_in_backoff_waits_and_the_others_go_on() -> None:
    wanted: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(1, not_before=100.5), "firefox": PoolTarget(1)}
    assert plan(wanted, [], 100.0, MANY) == [Spawn("firefox")]
    assert next_start((each.not_before for each in wanted.values()), 100.0) == 100.5
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


def test_scaling_down_drains_starting_ones_then_idle_ones_then_the_least_busy() -> None:
    there = [
        PlannedWorker("busy", "chromium", S.AVAILABLE, active=4, started_at=1.0),
        PlannedWorker("idle", "chromium", S.AVAILABLE, active=0, started_at=2.0),
        PlannedWorker("half", "chromium", S.AVAILABLE, active=2, started_at=3.0),
        PlannedWorker("new", "chromium", S.STARTING, started_at=4.0),
    ]
    assert [action.worker_id for action in decide(3, there) if isinstance(action, Drain)] == ["new"]
    assert [action.worker_id for action in decide(1, there) if isinstance(action, Drain)] == ["new", "idle", "half"]
    assert len(decide(0, there)) == 4


def test_scaling_down_drains_nothing_twice() -> None:
    assert decide(1, views(S.AVAILABLE, S.DRAINING, S.STOPPED, S.LOST)) == []


def recycled(*statuses: WorkerStatus, due: int = 1) -> list[PlannedWorker]:
    return [
        PlannedWorker(f"w{n}", "chromium", status, started_at=float(n), recycle=MEMORY if n < due else None)
        for n, status in enumerate(statuses)
    ]


def test_a_recycle_starts_the_replacement_first() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE)) == [Spawn("chromium")]
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, S.STARTING)) == []
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, S.AVAILABLE)) == [Drain("w0", MEMORY)]
    assert decide(2, recycled(S.DRAINING, S.AVAILABLE, S.AVAILABLE)) == []


def test_recycles_of_a_pool_go_one_at_a_time() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, due=2)) == [Spawn("chromium")]
    assert decide(2, recycled(S.DRAINING, S.AVAILABLE, S.AVAILABLE, due=2)) == []
    assert decide(2, recycled(S.STOPPED, S.AVAILABLE, S.AVAILABLE, due=2)) == []


def test_a_recycle_waits_while_the_surge_is_used_up() -> None:
    there = [*recycled(S.AVAILABLE), *views(S.AVAILABLE, S.DRAINING)[1:]]
    assert decide(1, there) == []


NO_ROOM = Limits(memory_for=0)
CLOSED = Limits(no_spawns="memory is short")
NO_MEMORY = (NO_ROOM, CLOSED)


def test_a_recycle_that_can_have_no_replacement_drains_first() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE), NO_ROOM) == [Drain("w0", MEMORY)]
    assert decide(1, recycled(S.AVAILABLE), NO_ROOM) == [Drain("w0", MEMORY)]


def test_a_recycle_waits_for_the_replacement_that_took_the_last_memory() -> None:
    assert decide(2, recycled(S.AVAILABLE, S.AVAILABLE, S.STARTING), NO_ROOM) == []
    assert decide(1, recycled(S.AVAILABLE, S.STARTING), NO_ROOM) == []


def test_no_recycle_takes_a_second_worker_from_a_pool_without_memory() -> None:
    assert decide(4, recycled(S.AVAILABLE, S.AVAILABLE, S.AVAILABLE, due=3), NO_ROOM) == [Spawn("chromium")]
    assert decide(4, recycled(S.AVAILABLE, S.AVAILABLE, S.AVAILABLE, S.STARTING, due=3), NO_ROOM) == []
    assert decide(3, recycled(S.AVAILABLE, S.AVAILABLE, due=2), CLOSED) == []


def test_a_recycle_without_memory_waits_for_what_other_pools_may_give_back() -> None:
    for status, foxes in ((S.STARTING, 1), (S.DRAINING, 0), (S.STOPPED, 0), (S.LOST, 0)):
        wanted = {"chromium": PoolTarget(1), "firefox": PoolTarget(foxes)}
        there = [*recycled(S.AVAILABLE), PlannedWorker("fox", "firefox", status)]
        assert plan(wanted, there, 100.0, NO_ROOM) == []


def test_without_memory_one_pool_after_the_other_recycles_the_oldest_worker_first() -> None:
    wanted = {"chromium": PoolTarget(1), "firefox": PoolTarget(1)}
    fox = PlannedWorker("fox", "firefox", S.AVAILABLE, started_at=-1.0, recycle=UPGRADE)
    assert plan(wanted, [*recycled(S.AVAILABLE), fox], 100.0, NO_ROOM) == [Drain("fox", UPGRADE)]


def test_while_the_host_guard_is_closed_only_a_worker_that_takes_too_much_memory_is_recycled() -> None:
    def there(reason: Reason) -> list[PlannedWorker]:
        return [PlannedWorker("w0", "chromium", S.AVAILABLE, recycle=reason), *views(S.AVAILABLE, S.AVAILABLE)[1:]]

    assert decide(2, there(UPGRADE), CLOSED) == []
    assert decide(2, there(MEMORY), CLOSED) == [Drain("w0", MEMORY)]


def test_a_pool_in_backoff_recycles_nothing() -> None:
    there = recycled(S.AVAILABLE, S.AVAILABLE)
    for limits in (MANY, *NO_MEMORY):
        assert plan({"chromium": PoolTarget(2, not_before=200.0)}, there, 100.0, limits) == []


def as_it_can_be(view: PlannedWorker) -> PlannedWorker:
    if view.status is not S.DRAINING:
        view = replace(view, lingers_until=None)
    if view.status in (S.STARTING, S.SPARE):
        return replace(view, active=0)
    return view if view.status is S.AVAILABLE else replace(view, spare=False)


VIEWS = st.lists(
    st.builds(
        PlannedWorker,
        worker_id=st.uuids().map(str),
        pool=st.sampled_from(["chromium", "firefox"]),
        status=st.sampled_from(WorkerStatus),
        active=st.integers(0, 5),
        started_at=st.floats(0, 100),
        recycle=st.sampled_from([None, None, MEMORY]),
        spare=st.booleans(),
        lingers_until=st.sampled_from([None, 3000.0, 4000.0]),
    ).map(as_it_can_be),
    max_size=8,
)


WISHES = st.builds(
    PoolTarget,
    workers=st.integers(0, 4),
    not_before=st.sampled_from([0.0, 0.0, 200.0]),
    spares=st.integers(0, 3),
    is_quiet=st.booleans(),
)
LIMITS = st.builds(
    Limits,
    max_starting=st.integers(1, 4),
    max_surge=st.integers(1, 3),
    memory_for=st.sampled_from([0, 0, 1, 2, 5]),
    no_spawns=st.sampled_from([None, None, "memory is short"]),
)


@given(VIEWS, WISHES, WISHES, LIMITS)
def test_no_plan_breaks_a_bound(
    there: list[PlannedWorker], chromium: PoolTarget, firefox: PoolTarget, limits: Limits
) -> None:
    surge, memory, starting = limits.max_surge, limits.memory_for, limits.max_starting
    wanted: dict[BrowserType, PoolTarget] = {"chromium": chromium, "firefox": firefox}
    actions = plan(wanted, there, 100.0, limits)
    already = sum(view.status is S.STARTING for view in there)
    assert spawns(actions) <= max(0, starting - already)
    drained = [action.worker_id for action in actions if isinstance(action, Drain)]
    served = [action.worker_id for action in actions if isinstance(action, Serve)]
    hurried = [action.worker_id for action in actions if isinstance(action, ShortenDrain)]
    assert len(drained + served + hurried) == len({*drained, *served, *hurried})
    assert hurried in ([], *([view.worker_id] for view in there if view.lingers_until is not None))
    assert not hurried or not limits.has_room
    starts = Counter(action.pool for action in actions if isinstance(action, Spawn))
    spares = Counter(action.pool for action in actions if isinstance(action, Spawn) and action.spare)
    for name, wish in wanted.items():
        mine = [view for view in there if view.pool == name]
        live = [view for view in mine if view.status in (S.STARTING, S.SPARE, S.AVAILABLE) and not view.spare]
        lingering = sum(view.lingers_until is not None for view in mine)
        gone = sum(view.status not in (S.STARTING, S.SPARE, S.AVAILABLE) for view in mine) - lingering
        kept = [view for view in live if view.worker_id not in drained]
        called = sum(view.worker_id in served for view in mine)
        # Never more than wanted, but for one replacement that serves ahead.
        serving = len(kept) + called
        coming = starts[name] - spares[name]
        assert not coming or serving + coming <= wish.workers + 1
        assert spares[name] <= wish.spares
        assert not called or serving <= wish.workers + 1
        assert len(mine) + starts[name] <= max(len(mine), wish.workers + lingering + max(surge, gone))
        if limits.no_spawns or wish.not_before > 100.0:
            assert not starts[name]
        if memory == 0:
            assert len(mine) + starts[name] <= max(len(mine), wish.workers)
        # What serves without a reason to go is never drained below the wanted number.
        healthy = [view for view in kept if view.recycle is None]
        lost_healthy = [view for view in live if view.recycle is None and view.worker_id in drained]
        assert not lost_healthy or len(kept) >= wish.workers or len(healthy) >= wish.workers
        # Capacity falls below the wanted number only where a replacement can have no place, and then by one worker.
        capacity = sum(view.status is S.AVAILABLE for view in live)
        left = sum(view.status is S.AVAILABLE for view in kept)
        if left < min(capacity, wish.workers):
            assert not limits.has_room
            assert wish.not_before <= 100.0
            assert (left, capacity) == (wish.workers - 1, wish.workers)
            assert len(actions) == 1  # so no other pool loses one, and nothing starts
            assert all(map(_is_settled, there))


def _is_settled(view: PlannedWorker) -> bool:
    return view.status is S.AVAILABLE or (view.status is S.SPARE and view.spare)


@given(VIEWS, st.integers(0, 4), st.integers(0, 3))
def test_following_the_plan_comes_to_rest_with_what_is_wanted(
    there: list[PlannedWorker], workers: int, spares: int
) -> None:
    limits = Limits(max_starting=2, max_surge=4)
    now = {view.worker_id: view for view in there if view.pool == "chromium"}
    for turn in range(60):
        actions = plan(wanting(workers, spares, is_quiet=True), now.values(), 100.0, limits)
        if not actions and all(_is_settled(view) for view in now.values()):
            break
        follow(actions, now, turn)
        let_time_pass(now)
    assert [view.recycle for view in now.values() if not view.spare] == [None] * workers
    waiting = [view for view in now.values() if view.spare]
    busy = sum(view.active > 0 for view in waiting)  # these serve, unasked, and are not cut off
    assert (max(spares, busy) if workers else 0) <= len(waiting) <= (spares + busy if workers else 0)


def follow(actions: list[PlanStep], now: dict[str, PlannedWorker], turn: int) -> None:
    for n, action in enumerate(actions):
        if isinstance(action, Spawn):
            now[f"{turn}-{n}"] = PlannedWorker(f"{turn}-{n}", action.pool, S.STARTING, spare=action.spare)
        elif isinstance(action, ShortenDrain):
            now[action.worker_id] = replace(now[action.worker_id], lingers_until=None)
        elif isinstance(action, Serve):
            now[action.worker_id] = replace(now[action.worker_id], spare=False)
        else:
            now[action.worker_id] = replace(now[action.worker_id], status=S.DRAINING)


def let_time_pass(now: dict[str, PlannedWorker]) -> None:
    for worker_id, view in list(now.items()):
        if view.spare and view.status is S.STARTING:
            now[worker_id] = replace(view, status=S.SPARE)
        elif not view.spare and view.status in (S.STARTING, S.SPARE):
            now[worker_id] = replace(view, status=S.AVAILABLE)
        elif view.status not in (S.SPARE, S.AVAILABLE):
            del now[worker_id]


@given(
    chromium=st.integers(1, 4),
    firefox=st.integers(1, 4),
    spares=st.integers(0, 2),
    room=st.integers(0, 2),
    passes=st.lists(st.booleans(), max_size=30),
)
def test_an_upgrade_on_a_full_host_replaces_all_and_capacity_dips_by_one_worker_at_the_most(
    chromium: int, firefox: int, spares: int, room: int, passes: list[bool]
) -> None:
    """`room`: how many more workers fit into memory than serve. `passes`: whether there is time between two turns."""
    wanted = {"chromium": PoolTarget(chromium, spares=spares, is_quiet=True), "firefox": PoolTarget(firefox)}
    pools = ["chromium"] * chromium + ["firefox"] * firefox
    now = {
        f"old{n}": PlannedWorker(f"old{n}", pool, S.AVAILABLE, started_at=-n, recycle=UPGRADE)
        for n, pool in enumerate(pools)
    }
    for turn in range(200):
        limits = Limits(max_starting=2, max_surge=4, memory_for=max(0, len(pools) + room - len(now)))
        actions = plan(wanted, now.values(), 100.0, limits)
        if not actions and all(_is_settled(view) for view in now.values()):
            break
        follow(actions, now, turn)
        serving = [view.pool for view in now.values() if view.status is S.AVAILABLE and not view.spare]
        assert len(serving) >= len(pools) - (room <= spares)  # spares may take all the room
        if turn >= len(passes) or passes[turn]:
            let_time_pass(now)
    assert [view.recycle for view in now.values()] == [None] * len(now)
    assert sorted(view.pool for view in now.values() if not view.spare) == pools


def spare(
    name: str, status: WorkerStatus = S.SPARE, started_at: float = 0.0, recycle: str | None = None
) -> PlannedWorker:
    return PlannedWorker(name, "chromium", status, started_at=started_at, recycle=recycle, spare=True)


def wanting(workers: int, spares: int, *, is_quiet: bool = False) -> dict[BrowserType, PoolTarget]:
    return {"chromium": PoolTarget(workers, spares=spares, is_quiet=is_quiet)}


def test_spares_start_beside_what_serves() -> None:
    assert plan(wanting(2, 2), views(S.AVAILABLE, S.AVAILABLE), 100.0, Limits(max_starting=9, max_surge=4)) == [
        Spawn("chromium", spare=True),
        Spawn("chromium", spare=True),
    ]


def test_a_spare_that_starts_or_waits_is_one() -> None:
    there = [*views(S.AVAILABLE, S.AVAILABLE), spare("x"), spare("y", S.STARTING)]
    assert plan(wanting(2, 2), there, 100.0, Limits(max_starting=9, max_surge=4)) == []


def test_what_must_serve_starts_before_spares() -> None:
    assert plan(wanting(2, 2), views(S.AVAILABLE), 100.0, Limits(max_starting=2, max_surge=4)) == [
        Spawn("chromium"),
        Spawn("chromium", spare=True),
    ]


def test_spares_count_against_the_surge_and_the_memory_and_the_starts() -> None:
    there = views(S.AVAILABLE, S.AVAILABLE)
    for limits in (
        Limits(max_starting=9, max_surge=1),
        Limits(max_starting=9, max_surge=4, memory_for=1),
        Limits(max_starting=1, max_surge=4),
    ):
        assert plan(wanting(2, 3), there, 100.0, limits) == [Spawn("chromium", spare=True)]
    for limits in (Limits(max_surge=4, memory_for=0), Limits(max_surge=4, no_spawns=MEMORY)):
        assert plan(wanting(2, 3), there, 100.0, limits) == []


def test_a_spare_takes_the_place_of_one_that_drains_and_another_spare_starts() -> None:
    there = [*views(S.AVAILABLE, S.DRAINING), spare("x")]
    assert plan(wanting(2, 1), there, 100.0, Limits(max_starting=9, max_surge=4)) == [
        Serve("x"),
        Spawn("chromium", spare=True),
    ]


def test_a_warm_spare_serves_before_one_that_starts_and_the_oldest_first() -> None:
    there = [spare("new", S.STARTING, 1.0), spare("young", started_at=3.0), spare("old", started_at=2.0)]
    called = [action.worker_id for action in plan(wanting(3, 0), there, 100.0, MANY) if isinstance(action, Serve)]
    assert called == ["old", "young", "new"]
    assert plan(wanting(2, 1), there, 100.0, MANY) == [Serve("old"), Serve("young")]


def test_one_that_was_told_to_serve_is_told_once() -> None:
    told = PlannedWorker("x", "chromium", S.SPARE)
    assert plan(wanting(2, 0), [*views(S.AVAILABLE, S.DRAINING), told], 100.0, MANY) == []


def test_a_spare_serves_while_nothing_may_start() -> None:
    there = [*views(S.AVAILABLE, S.DRAINING), spare("x")]
    assert plan(wanting(2, 1), there, 100.0, Limits(no_spawns="memory is short")) == [Serve("x")]
    backing_off: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(2, not_before=200.0, spares=1)}
    assert plan(backing_off, there, 100.0, MANY) == [Serve("x")]


def test_spares_that_nobody_needs_go_once_the_pool_is_quiet_the_youngest_first() -> None:
    there = [*views(S.AVAILABLE, S.AVAILABLE), spare("old", started_at=1.0), spare("young", started_at=2.0)]
    assert plan(wanting(2, 1), there, 100.0, MANY) == []
    assert plan(wanting(2, 1, is_quiet=True), there, 100.0, MANY) == [Drain("young", SPARE)]
    assert plan(wanting(2, 2, is_quiet=True), there, 100.0, MANY) == []


def test_a_host_that_is_short_of_memory_gets_that_of_the_spares_back() -> None:
    there = [*views(S.AVAILABLE, S.DRAINING), spare("x"), spare("y", started_at=2.0)]
    assert plan(wanting(2, 2), there, 100.0, Limits(no_spawns="memory is short")) == [
        Drain("y", SHORT_OF_MEMORY),
        Serve("x"),
    ]


def test_a_pool_that_is_scaled_to_nothing_keeps_no_spare() -> None:
    assert plan(wanting(0, 0), [spare("x")], 100.0, MANY) == [Drain("x", Reason(WorkerEnd.SCALED_DOWN))]


def test_a_spare_that_is_to_be_recycled_goes_when_another_one_is_warm() -> None:
    limits = Limits(max_starting=9, max_surge=4)
    there = [*views(S.AVAILABLE, S.AVAILABLE), spare("old", recycle=UPGRADE)]
    assert plan(wanting(2, 1), there, 100.0, limits) == [Spawn("chromium", spare=True)]
    for starting in (limits, replace(limits, memory_for=0)):
        assert plan(wanting(2, 1), [*there, spare("new", S.STARTING)], 100.0, starting) == []
    assert plan(wanting(2, 1), [*there, spare("new")], 100.0, limits) == [Drain("old", UPGRADE)]
    assert plan(wanting(2, 0), there, 100.0, limits) == [Drain("old", UPGRADE)]
    assert plan(wanting(2, 1), there, 100.0, Limits(max_surge=1)) == [Drain("old", UPGRADE)]


def test_a_spare_that_is_to_be_recycled_serves_only_where_there_is_no_other() -> None:
    there = [*views(S.AVAILABLE, S.DRAINING), spare("old", recycle=UPGRADE)]
    assert plan(wanting(2, 0), [*there, spare("new", started_at=9.0)], 100.0, MANY) == [
        Drain("old", UPGRADE),
        Serve("new"),
    ]
    assert plan(wanting(2, 0), there, 100.0, MANY) == [Serve("old")]


def test_a_recycle_takes_a_spare_for_the_replacement() -> None:
    due = PlannedWorker("due", "chromium", S.AVAILABLE, recycle=MEMORY)
    others = views(S.AVAILABLE)
    assert plan(wanting(2, 0), [due, *others, spare("x")], 100.0, MANY) == [Serve("x")]
    serving = PlannedWorker("x", "chromium", S.AVAILABLE)
    assert plan(wanting(2, 0), [due, *others, serving], 100.0, MANY) == [Drain("due", MEMORY)]


def test_a_recycle_without_memory_for_another_worker_waits_for_the_spare_that_there_is() -> None:
    due = PlannedWorker("due", "chromium", S.AVAILABLE, recycle=MEMORY)
    there = [due, *views(S.AVAILABLE), spare("x")]
    assert plan(wanting(2, 0), there, 100.0, Limits(memory_for=0)) == [Serve("x")]


def unasked(name: str, *, active: int = 0) -> PlannedWorker:
    """A spare that a selection has let serve, before the worker in whose place it does so has left."""
    return PlannedWorker(name, "chromium", S.AVAILABLE, active=active, spare=True)


def test_a_spare_that_serves_unasked_is_not_too_many() -> None:
    assert plan(wanting(2, 1), [*views(S.AVAILABLE, S.AVAILABLE), unasked("x", active=1)], 100.0, MANY) == []


def test_a_spare_that_serves_unasked_is_counted_on_before_another_one_is_called() -> None:
    there = [*views(S.AVAILABLE, S.DRAINING), spare("warm"), unasked("x", active=1)]
    assert plan(wanting(2, 1), there, 100.0, MANY) == [Serve("x")]


def test_a_spare_that_serves_unasked_is_not_dropped_while_it_has_sessions() -> None:
    there = views(S.AVAILABLE, S.AVAILABLE)
    assert plan(wanting(2, 0, is_quiet=True), [*there, unasked("x", active=1)], 100.0, MANY) == []
    assert plan(wanting(2, 0, is_quiet=True), [*there, unasked("x")], 100.0, MANY) == [
        Drain("x", Reason(WorkerEnd.SPARE))
    ]


def lingering(name: str, until: float = 4000.0, *, recycle: str | None = None) -> PlannedWorker:
    return PlannedWorker(name, "chromium", S.DRAINING, active=1, recycle=recycle, lingers_until=until)


def test_those_that_linger_take_no_place_of_others() -> None:
    there = [*views(S.AVAILABLE), *(lingering(f"old{n}") for n in range(20))]
    assert decide(2, there, Limits(max_surge=1)) == [Spawn("chromium")]
    assert plan(wanting(1, 3), there, 100.0, Limits(max_starting=9, max_surge=2)) == [
        Spawn("chromium", spare=True),
        Spawn("chromium", spare=True),
    ]


def test_a_recycle_does_not_wait_for_the_sessions_of_the_one_before() -> None:
    there = [lingering("w9", recycle=UPGRADE), *recycled(S.AVAILABLE, S.AVAILABLE)]
    assert decide(2, there, Limits(max_surge=1)) == [Spawn("chromium")]
    assert decide(2, [*there, PlannedWorker("new", "chromium", S.AVAILABLE)], Limits(max_surge=1)) == [
        Drain("w0", MEMORY)
    ]


def test_on_a_host_without_memory_the_one_that_lingers_for_longest_gets_less_time() -> None:
    there = [*views(S.AVAILABLE), lingering("late", 3000.0), lingering("early", 2000.0)]
    for limits in NO_MEMORY:
        assert decide(2, there, limits) == [ShortenDrain("early", SHORT_OF_MEMORY)]


def test_they_get_less_time_one_after_the_other() -> None:
    hurried = PlannedWorker("early", "chromium", S.DRAINING, active=1)
    elsewhere = PlannedWorker("fox", "firefox", S.STOPPED)
    for leaving in (hurried, elsewhere):
        there = [*views(S.AVAILABLE), lingering("late"), leaving]
        for limits in NO_MEMORY:
            wanted: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(2), "firefox": PoolTarget(0)}
            assert plan(wanted, there, 100.0, limits) == []


def test_another_pool_s_worker_makes_room_too() -> None:
    wanted: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(1), "firefox": PoolTarget(1)}
    fox = PlannedWorker("fox", "firefox", S.DRAINING, active=1, lingers_until=3000.0)
    there = [fox, PlannedWorker("vixen", "firefox", S.AVAILABLE), lingering("old")]
    assert plan(wanted, there, 100.0, Limits(memory_for=0)) == [ShortenDrain("fox", SHORT_OF_MEMORY)]


def test_as_long_as_nothing_has_to_start_they_may_linger_on_a_full_host() -> None:
    there = [*views(S.AVAILABLE, S.AVAILABLE), lingering("old")]
    assert decide(2, there, Limits(memory_for=0)) == []
    assert plan(wanting(2, 1), there, 100.0, Limits(max_surge=4, memory_for=0)) == []  # nor has a spare to
    backing_off: dict[BrowserType, PoolTarget] = {"chromium": PoolTarget(3, not_before=200.0)}
    assert plan(backing_off, there, 100.0, Limits(memory_for=0)) == []


def test_before_a_recycle_drains_first_those_that_linger_make_room_for_its_replacement() -> None:
    there = [*recycled(S.AVAILABLE, S.AVAILABLE), lingering("old")]
    for limits in NO_MEMORY:
        assert decide(2, there, limits) == [ShortenDrain("old", SHORT_OF_MEMORY)]
