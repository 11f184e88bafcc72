"""Leases in Redis: a slot without a session, sessions that come with it and take no further one, and their repair."""

from typing import Any

from tests.lua.model import HISTORY_TTL_S, NOW, RECORD_TTL_S, Lease, Leased, LuaGrid

LEASE, FIRST, SECOND = Lease("l1"), Leased("s1", "l1"), Leased("s2", "l1")
RECORD = "lease:l1"
FIELDS = ("labels", "AppA:Chromium:UAT", "name", "Smoke 12", "run", "r1", "pool", "chromium")


def borrow(grid: LuaGrid) -> None:
    assert grid.select(LEASE, extra=FIELDS) == "w1"
    assert grid.start(LEASE, worker="w1", client="client:1") == 1


def figures(grid: LuaGrid) -> tuple[int | None, int | None, list[str], dict[str, str]]:
    """Both counters, the leases, and the sessions that came with them."""
    assert grid.live() == []
    return grid.active(), grid.lifetime(), grid.leases(), grid.leased()


def totals(grid: LuaGrid, name: str = "outcomes") -> dict[str, str]:
    return grid.hash(f"leases:{name}")


def describe(grid: LuaGrid, *fields: str, worker: str = "w1") -> Any:
    return grid.eval("set_fields", [grid.prefix + RECORD], f"chromium:{worker}", RECORD_TTL_S, *fields)


def test_a_lease_takes_a_slot_and_is_no_session(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    assert figures(grid) == (1, 1, ["l1"], {})
    record = grid.hash(RECORD)
    assert (record["kind"], record["status"], record["workerId"], record["name"], record["labels"]) == (
        "lease",
        "running",
        "w1",
        "Smoke 12",
        "AppA:Chromium:UAT",
    )
    assert grid.get("ZCARD", "sessions:index") == 0
    assert grid.get("ZRANGE", "leases:index", 0, -1) == ["l1"]
    assert grid.release(LEASE, "completed", "returned", worker="w1") == 1
    assert figures(grid) == (0, 1, [], {})
    assert (grid.outcomes(), totals(grid)) == ({}, {"completed": "1"})
    assert 0 < grid.get("TTL", RECORD) <= HISTORY_TTL_S
    assert grid.release(LEASE, "expired", "expired", worker="w1") == 0
    assert totals(grid) == {"completed": "1"}


def test_its_session_takes_no_further_slot_and_says_what_the_lease_says(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    assert grid.start(FIRST, worker="w1", client="client:9") == 2
    assert figures(grid) == (1, 1, ["l1"], {"s1": "l1"})
    record = grid.session("s1")
    assert {name: record[name] for name in ("kind", "status", "client", "lease", "labels", "name", "run", "pool")} == {
        "kind": "session",
        "status": "running",
        "client": "client:9",
        "lease": "l1",
        "labels": "AppA:Chromium:UAT",
        "name": "Smoke 12",
        "run": "r1",
        "pool": "chromium",
    }
    assert grid.heartbeat(sessions=(LEASE, FIRST), lifetime="1") == (1, "", 0)
    assert grid.release(FIRST, worker="w1") == 1
    assert figures(grid) == (1, 1, ["l1"], {})
    assert grid.heartbeat(sessions=(LEASE,), lifetime="1") == (1, "", 0)
    assert (grid.outcomes(), grid.repairs()) == ({"completed": 1}, 0)


def test_a_session_whose_start_was_not_written_has_its_lease_on_record_too(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    assert grid.release(FIRST, worker="w1", started=NOW + 1, client="client:9") == 1
    record = grid.session("s1")
    assert (record["lease"], record["name"], record["status"], record["client"]) == (
        "l1",
        "Smoke 12",
        "completed",
        "client:9",
    )
    assert figures(grid) == (1, 1, ["l1"], {})


def test_the_worker_restores_what_redis_has_lost(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.start(FIRST, worker="w1")
    for key in grid.client.scan_iter(f"{grid.prefix}*"):
        grid.client.delete(key)
    assert grid.register(lifetime=1, sessions=(LEASE, FIRST)) == 1
    assert figures(grid) == (1, 1, ["l1"], {"s1": "l1"})
    assert describe(grid, *FIELDS, "expiresAt", "17") == 1
    assert grid.hash(RECORD)["name"] == "Smoke 12"
    assert grid.hash(RECORD)["expiresAt"] == "17"
    assert grid.heartbeat(sessions=(LEASE, FIRST), lifetime="1") == (1, "", 0)
    assert grid.session("s1")["lease"] == "l1"


def test_what_the_worker_does_not_have_is_over_and_only_the_lease_frees_a_slot(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.start(FIRST, worker="w1")
    assert grid.heartbeat(sessions=(LEASE,), lifetime="1") == (1, "", 0)
    assert (grid.status("s1"), figures(grid)) == ("failed", (1, 1, ["l1"], {}))
    grid.start(FIRST, worker="w1")
    grid.get("DEL", "session:s1")  # its record ran out
    assert grid.heartbeat(sessions=(LEASE,), lifetime="1") == (1, "", 0)
    assert (grid.status("s1"), grid.session("s1")["lease"]) == ("failed", "l1")
    grid.start(SECOND, worker="w1")
    assert grid.heartbeat(lifetime="1") == (1, "", 0)
    assert figures(grid) == (0, 1, [], {})
    assert (grid.hash(RECORD)["status"], grid.hash(RECORD)["reason"]) == ("failed", "lost by worker")
    assert (grid.outcomes(), totals(grid)) == ({"failed": 3}, {"failed": "1"})


def test_a_lease_that_its_worker_has_after_all_goes_on(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.heartbeat(lifetime="1")
    assert grid.hash(RECORD)["status"] == "failed"
    assert grid.heartbeat(sessions=(LEASE,), lifetime="1")[2] == 1
    assert (grid.hash(RECORD)["status"], figures(grid)) == ("running", (1, 1, ["l1"], {}))
    assert totals(grid, "taken_back") == {"failed": "1"}
    assert grid.taken_back() == {}


def test_a_session_whose_worker_knows_its_lease_no_more_has_a_slot_of_its_own(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.start(FIRST, worker="w1")
    assert grid.heartbeat(sessions=("s1",), lifetime="1")[0] == 1
    assert (grid.active(), grid.live(), grid.leases(), grid.leased()) == (1, ["s1"], [], {})
    assert grid.release("s1", worker="w1") == 1
    assert figures(grid) == (0, 1, [], {})


def test_an_id_says_nothing_of_what_it_names(grid: LuaGrid) -> None:
    grid.register()
    session, lease = "lease:a~1", Lease("lease:a~1")
    assert [grid.select(each) for each in (session, lease)] == ["w1", "w1"]
    assert [grid.start(each, worker="w1") for each in (session, lease)] == [1, 1]
    assert (grid.active(), grid.live(), grid.leases()) == (2, [session], [session])
    assert [grid.record(each)["kind"] for each in (session, lease)] == ["session", "lease"]
    assert grid.heartbeat(sessions=(session,), lifetime="2") == (1, "", 0)
    assert [grid.status(each) for each in (session, lease)] == ["running", "failed"]
    assert (grid.active(), grid.live(), grid.leases()) == (1, [session], [])


def test_a_lease_that_no_worker_took_is_taken_back(grid: LuaGrid) -> None:
    grid.register()
    grid.select(LEASE, extra=FIELDS)
    assert grid.rollback(LEASE) == 1
    assert figures(grid) == (0, 0, [], {})
    assert grid.hash(RECORD) == {}
    assert grid.get("ZCARD", "leases:index") == 0
    grid.select(LEASE, extra=FIELDS)
    grid.heartbeat(now=NOW + 11, lifetime="0")
    assert figures(grid) == (0, 0, [], {})
    assert (grid.hash(RECORD)["status"], totals(grid)) == ("expired", {"expired": "1"})


def test_leases_go_with_a_worker_that_is_gone(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.start(FIRST, worker="w1")
    assert grid.reap(only="chromium:w1", reason="worker lost") == 1
    assert (grid.hash(RECORD)["reason"], grid.session("s1")["reason"]) == ("worker lost", "worker lost")
    assert (grid.active(), grid.leases(), grid.leased()) == (None, [], {})


def test_a_lease_counts_when_a_worker_is_full(grid: LuaGrid) -> None:
    grid.register(slots=2)
    borrow(grid)
    assert grid.select("own", max_active=2) == "w1"
    grid.start(FIRST, worker="w1")
    assert grid.select("next", max_active=2) is None
    grid.release(LEASE, worker="w1")
    assert grid.select("next", max_active=2) == "w1"


def test_what_is_over_or_another_worker_s_is_not_described(grid: LuaGrid) -> None:
    grid.register()
    assert describe(grid, "expiresAt", "17") == 0
    borrow(grid)
    assert describe(grid, "expiresAt", "17", worker="w2") == 0
    grid.release(LEASE, worker="w1")
    assert describe(grid, "expiresAt", "17") == 0
    assert "expiresAt" not in grid.hash(RECORD)


def test_records_that_ran_out_leave_the_index(grid: LuaGrid) -> None:
    grid.register()
    borrow(grid)
    grid.release(LEASE, worker="w1")
    grid.get("DEL", RECORD)
    grid.reap(now=NOW)
    assert grid.get("ZCARD", "leases:index") == 0
