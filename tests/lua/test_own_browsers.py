"""Sessions and leases that take none of their worker's lifetime: they have own browsers beside a shared one."""

import json

import pytest

from tests.lua.model import NOW, Holder, Lease, LuaGrid

OWN = ("proxy", "a", "lifetime", "0")
OWN_FIELDS = json.dumps({"lifetime": "0"})
HOLDERS = ("s", Lease("l"))


def command(grid: LuaGrid) -> str | None:
    found: str | None = grid.get("GET", "worker:cmd:chromium:w1")
    return found


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_takes_a_slot_and_leaves_the_lifetime_as_it_was(grid: LuaGrid, holder: Holder) -> None:
    grid.register(lifetime=3)
    assert grid.select(holder, extra=OWN) == "w1"
    assert (grid.active(), grid.lifetime()) == (1, 3)
    assert grid.record(holder)["lifetime"] == "0"
    assert grid.rollback(holder) == 1
    assert (grid.active(), grid.lifetime()) == (0, 3)


def test_only_zero_says_so(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s", extra=("proxy", "a", "lifetime", "1"))
    grid.select("t", extra=("proxy", "a"))
    assert (grid.active(), grid.lifetime()) == (2, 2)
    grid.rollback("s")
    grid.rollback("t")
    assert (grid.active(), grid.lifetime()) == (0, 0)


def test_it_uses_no_worker_up_and_takes_no_shutdown_back_that_another_session_is_the_reason_of(grid: LuaGrid) -> None:
    grid.register()
    assert [grid.select(each, max_lifetime=1, extra=OWN) for each in ("o", "p")] == ["w1", "w1"]
    assert command(grid) is None
    assert grid.select("s", max_lifetime=1) == "w1"
    assert command(grid) == "shutdown"
    assert grid.select("q", max_lifetime=1, extra=OWN) is None  # its worker is about to drain
    grid.rollback("o")
    grid.heartbeat(sessions=("s",), now=NOW + 11, lifetime="1")  # the lease of p has run out
    assert (grid.status("p"), grid.lifetime()) == ("expired", 1)
    assert (command(grid), grid.hash("worker:chromium:w1")["status"]) == ("shutdown", "draining")


def test_one_whose_client_never_came_gives_nothing_back(grid: LuaGrid) -> None:
    grid.register(lifetime=3)
    grid.select("s", extra=OWN)
    grid.heartbeat(now=NOW + 11)  # of a worker that does not know its lifetime, so that nothing is repaired
    assert (grid.status("s"), grid.active(), grid.lifetime()) == ("expired", 0, 3)


def test_while_one_is_on_its_way_a_counter_that_is_too_high_is_found(grid: LuaGrid) -> None:
    grid.register(lifetime=3)
    grid.select("s", extra=OWN)
    grid.set_counters("w1", 1, 4)
    grid.heartbeat(now=NOW + 1, lifetime="3")
    assert (grid.lifetime(), grid.repairs()) == (3, 1)
    grid.select("t")
    grid.heartbeat(now=NOW + 2, lifetime="3")
    assert (grid.lifetime(), grid.repairs()) == (4, 1)


def test_a_lifetime_that_the_index_does_not_know_is_noticed_all_the_same(grid: LuaGrid) -> None:
    for worker, lifetime in (("w1", 3), ("w2", 1)):
        grid.register(worker, lifetime=lifetime)
    assert grid.select("s", extra=OWN) == "w1"
    grid.get("HSET", "cluster:lifetime_connections", "chromium:w1", 0)
    assert grid.select("t", extra=OWN) == "w2"
    assert [(grid.active(each), grid.lifetime(each)) for each in ("w1", "w2")] == [(1, 0), (1, 1)]


@pytest.mark.parametrize(("value", "lifetime"), [("much", 0), ("1.5", 1)])
def test_a_lifetime_that_is_no_whole_number_is_written_anew(grid: LuaGrid, value: str, lifetime: int) -> None:
    grid.register(lifetime=lifetime)
    grid.get("HSET", "cluster:lifetime_connections", "chromium:w1", value)
    assert grid.select("s", extra=OWN) == "w1"
    assert grid.lifetime() == lifetime


def test_a_caller_without_a_session_may_say_so_too(grid: LuaGrid) -> None:
    grid.register()
    assert grid.select(extra=OWN) == "w1"
    assert (grid.active(), grid.lifetime()) == (1, 0)
    assert grid.hash("worker:chromium:w1")["outsideLifetime"] == "0"
    grid.heartbeat(now=NOW + 1, lifetime="0")
    assert (grid.active(), grid.lifetime(), grid.repairs()) == (1, 0, 0)


def test_what_its_worker_was_told_is_on_record_again_when_redis_has_lost_all(grid: LuaGrid) -> None:
    grid.register()
    grid.client.flushall()
    grid.register(sessions=(f"s@@{OWN_FIELDS}",), lifetime=2)
    assert (grid.record("s")["lifetime"], grid.active(), grid.lifetime()) == ("0", 1, 2)


@pytest.mark.parametrize("is_started", [True, False])
def test_a_lease_gives_its_lifetime_back_for_a_client_with_its_own_browser_and_takes_it_again(
    grid: LuaGrid, is_started: bool
) -> None:
    grid.register(lifetime=3)
    grid.select(Lease("l"))
    if is_started:
        grid.start(Lease("l"))
    assert (grid.active(), grid.lifetime()) == (1, 4)
    for taken, lifetime in (("0", 3), ("0", 3), ("1", 4), ("1", 4)):
        told = Lease(f"l@@{json.dumps({'lifetime': taken})}")
        grid.heartbeat(sessions=(told,), now=NOW + 1, lifetime=str(lifetime))
        assert (grid.active(), grid.lifetime(), grid.repairs()) == (1, lifetime, 0)
        assert grid.record(Lease("l"))["lifetime"] == taken


def test_a_successor_that_does_not_know_the_lifetime_brings_it_too(grid: LuaGrid) -> None:
    grid.register(lifetime=3)
    grid.select(Lease("l"))
    for taken, lifetime in (("0", 3), ("1", 4)):
        grid.heartbeat(sessions=(Lease(f"l@@{json.dumps({'lifetime': taken})}"),), now=NOW + 11)
        assert (grid.active(), grid.lifetime(), grid.repairs()) == (1, lifetime, 0)


def test_the_record_of_a_lease_that_redis_has_lost_changes_no_lifetime(grid: LuaGrid) -> None:
    grid.register()
    grid.client.flushall()
    grid.register(sessions=(Lease(f"l@@{OWN_FIELDS}"),), lifetime=2)
    grid.heartbeat(sessions=(Lease(f"l@@{OWN_FIELDS}"),), now=NOW + 1, lifetime="2")
    assert (grid.record(Lease("l"))["lifetime"], grid.active(), grid.lifetime(), grid.repairs()) == ("0", 1, 2, 0)


def test_another_worker_changes_nothing_of_a_lease(grid: LuaGrid) -> None:
    for worker in ("w1", "w2"):
        grid.register(worker, lifetime=3)
    other = {"w1": "w2", "w2": "w1"}[str(grid.select(Lease("l")))]
    grid.heartbeat(other, sessions=(Lease(f"l@@{OWN_FIELDS}"),), now=NOW + 1)
    assert sorted((grid.lifetime("w1"), grid.lifetime("w2"))) == [3, 4]
    assert "lifetime" not in grid.record(Lease("l"))
