"""Caps: of one run, label key or token only so many sessions and leases live at once, whoever selects."""

import json
from collections.abc import Callable

import pytest

from tests.lua.model import NOW, Lease, Leased, LuaGrid

NIGHTLY, SMOKE = "run:/nightly", "run:/smoke"


def select(grid: LuaGrid, session_id: str, *caps: tuple[str, int]) -> str | None:
    return grid.select(session_id, extra=tuple(text for whom, most in caps for text in (f"max:{whom}", str(most))))


def test_who_has_as_many_as_it_may_gets_no_more_and_others_do(grid: LuaGrid) -> None:
    grid.register()
    assert select(grid, "s1", (NIGHTLY, 2)) == "w1"
    assert select(grid, "s2", (NIGHTLY, 2)) == "w1"
    assert select(grid, "s3", (NIGHTLY, 2)) is None
    assert grid.active() == 2
    assert select(grid, "s4", (SMOKE, 2)) == "w1"
    assert select(grid, "s5") == "w1"
    assert not any(name.startswith("max:") for name in grid.session("s1"))


def test_any_end_makes_room_and_who_waits_is_told_of_it(grid: LuaGrid) -> None:
    grid.register()
    for number, end in enumerate(("released", "rolled back", "given up")):
        last, next_one = f"a{number}", f"b{number}"
        assert select(grid, last, (NIGHTLY, 1)) == "w1", end
        assert select(grid, next_one, (NIGHTLY, 1)) is None, end
        assert grid.get("EXISTS", "slots:wanted:chromium") == 1
        if end == "released":
            grid.start(last, worker="w1")
            assert grid.release(last, "completed", "client disconnected", worker="w1") == 1
        elif end == "rolled back":
            assert grid.rollback(last) == 1
        else:
            grid.get("DEL", f"session:{last}")  # its record ran out
        assert select(grid, next_one, (NIGHTLY, 1)) == "w1", end
        grid.rollback(next_one)


ENDS: dict[str, Callable[[LuaGrid], object]] = {
    "released": lambda grid: grid.release("s1", worker="w1", started=NOW),
    "rolled back": lambda grid: grid.rollback("s1"),
    "its worker is excluded": lambda grid: grid.select("s1", exclude="w1"),
    "its worker is reaped": lambda grid: grid.reap(only="chromium:w1"),
    "its worker is stale": lambda grid: grid.reap(now=NOW + 100),
    "its worker has stopped": lambda grid: grid.unregister(),
    "its lease has run out while its worker drains": lambda grid: grid.heartbeat(now=NOW + 20, status="draining"),
    "its draining worker has lost it": lambda grid: [grid.start("s1"), grid.heartbeat(status="draining")],
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_an_end_leaves_nothing_behind_and_wakes_who_waits_for_the_cap_in_any_pool(
    grid: LuaGrid, ends: Callable[[LuaGrid], object]
) -> None:
    grid.register(pool="elsewhere")
    grid.register("w2", pool="here", browser="firefox", now=NOW + 100)
    caps = ("max:run:/nightly", "1", "max:token:ci", "9")
    assert grid.select("s1", pool="elsewhere", extra=caps) == "w1"
    assert grid.select("s2", pool="here", browser="firefox", extra=caps) is None
    with grid.client.pubsub() as listener:
        listener.subscribe(f"{grid.prefix}slots:elsewhere")
        assert listener.get_message(timeout=5)
        ends(grid)
        assert listener.get_message(timeout=5)
        assert listener.get_message() is None
    assert grid.get("EXISTS", "sessions:of:run:/nightly", f"{grid.prefix}sessions:of:token:ci") == 0
    assert grid.select("s2", pool="here", browser="firefox", extra=caps) == "w2"


def test_a_record_of_an_earlier_version_does_not_name_its_caps(grid: LuaGrid) -> None:
    """Its session leaves the set when that looks full."""
    grid.register()
    assert select(grid, "s1", (NIGHTLY, 1)) == "w1"
    grid.get("HDEL", "session:s1", "caps")
    grid.start("s1", worker="w1", client_fields=CLIENT_FIELDS)
    assert select(grid, "s2", (NIGHTLY, 1)) is None
    grid.reap(only="chromium:w1")
    grid.register()
    assert select(grid, "s2", (NIGHTLY, 1)) == "w1"
    assert grid.rollback("s2") == 1
    grid.heartbeat(sessions=(f"s1@{NOW}@{CLIENT_FIELDS}",))
    assert select(grid, "s3", (NIGHTLY, 1)) is None
    assert grid.release("s1", worker="w1") == 1
    assert grid.get("EXISTS", "sessions:of:run:/nightly") == 0


def test_the_pools_in_which_a_run_has_its_sessions_are_those_whose_ends_are_waited_for(grid: LuaGrid) -> None:
    grid.register()
    assert grid.select("s1", extra=("max:run:/nightly", "1")) == "w1"
    grid.get("HSET", "session:s1", "pool", "elsewhere")
    assert select(grid, "s2", (NIGHTLY, 1)) is None
    assert grid.get("EXISTS", "slots:wanted:elsewhere") == 1


def test_a_lease_counts_once_and_the_session_that_comes_with_it_does_not(grid: LuaGrid) -> None:
    grid.register()
    assert grid.select(Lease("l1"), extra=("max:run:/nightly", "1")) == "w1"
    grid.start(Lease("l1"), worker="w1")
    grid.start(Leased("s1", "l1"), worker="w1")
    assert select(grid, "s2", (NIGHTLY, 1)) is None
    assert grid.release(Leased("s1", "l1"), "completed", "client disconnected", worker="w1") == 1
    assert select(grid, "s2", (NIGHTLY, 1)) is None
    assert grid.release(Lease("l1"), "completed", "returned", worker="w1") == 1
    assert select(grid, "s2", (NIGHTLY, 1)) == "w1"


def test_each_of_several_caps_counts(grid: LuaGrid) -> None:
    grid.register()
    label = "label:appa:chromium:uat"
    assert select(grid, "s1", (NIGHTLY, 2), (label, 2)) == "w1"
    assert select(grid, "s2", (SMOKE, 2), (label, 2)) == "w1"
    assert select(grid, "s3", (NIGHTLY, 2), (label, 2)) is None
    assert select(grid, "s3", (NIGHTLY, 2)) == "w1"
    assert select(grid, "s4", (NIGHTLY, 2)) is None


HAS = {"name": "nightly", "labels": "AppA:Chromium:UAT", "token": "ci", "ignoredOptions": "args"}
CLIENT_FIELDS = json.dumps({**HAS, "caps": "run:/nightly,token:ci"})


told_by = pytest.mark.parametrize(
    "tells",
    [
        lambda grid, told: grid.start("s1", worker="w1", client_fields=told),
        lambda grid, told: grid.heartbeat(sessions=(f"s1@{NOW}@{told}",)),
        lambda grid, told: grid.register(sessions=(f"s1@{NOW}@{told}",)),
    ],
    ids=["start", "heartbeat", "registration"],
)


@told_by
def test_a_session_of_which_redis_knows_nothing_is_as_its_worker_was_told(
    grid: LuaGrid, tells: Callable[[LuaGrid, str], object]
) -> None:
    """Redis was away when it began, or has lost all."""
    grid.register()
    tells(grid, CLIENT_FIELDS)
    assert grid.session("s1").items() >= HAS.items()
    assert grid.session("s1")["caps"] == "run:/nightly,token:ci"
    assert select(grid, "s2", (NIGHTLY, 1)) is None
    assert select(grid, "s2", ("token:ci", 1)) is None
    assert select(grid, "s2", (NIGHTLY, 2)) == "w1"
    assert grid.release("s1", worker="w1") == 1
    assert select(grid, "s3", (NIGHTLY, 2)) == "w1"


@told_by
def test_a_session_that_was_thought_dead_counts_again_when_its_worker_shows_that_it_lives(
    grid: LuaGrid, tells: Callable[[LuaGrid, str], object]
) -> None:
    grid.register()
    assert select(grid, "s1", (NIGHTLY, 1)) == "w1"
    grid.start("s1", worker="w1", client_fields=CLIENT_FIELDS)
    grid.reap(only="chromium:w1")
    grid.register()
    assert select(grid, "s2", (NIGHTLY, 1)) == "w1"
    tells(grid, CLIENT_FIELDS)
    assert grid.status("s1") == "running"
    assert grid.rollback("s2") == 1
    assert select(grid, "s3", (NIGHTLY, 1)) is None
    assert grid.release("s1", worker="w1") == 1
    assert select(grid, "s3", (NIGHTLY, 1)) == "w1"


def test_a_session_that_began_and_ended_without_redis_is_as_its_worker_was_told(grid: LuaGrid) -> None:
    grid.register()
    assert grid.release("s1", worker="w1", started=NOW - 5, client_fields=CLIENT_FIELDS) == 1
    assert grid.session("s1").items() >= {**HAS, "status": "completed"}.items()
    assert select(grid, "s2", (NIGHTLY, 1)) == "w1"


def test_what_redis_knows_of_a_session_stays(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", extra=("name", "before"))
    assert grid.start("s1", worker="w1", client_fields=CLIENT_FIELDS) == 1
    assert grid.session("s1")["name"] == "before"
