"""Every step of a session: status, counter, lease and outcome move together, once, along the table."""

import itertools
import math
import re
from collections.abc import Callable

import pytest

from pwgrid.common.histogram import Histogram
from pwgrid.common.paths import resource_dir
from pwgrid.common.reasons import EndReason
from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.registry import records
from pwgrid.registry.scripts import source_of
from tests.lua.model import NOW, LuaGrid
from tests.support.redis import RedisServer

PENDING, RUNNING = SessionStatus.PENDING, SessionStatus.RUNNING
STARTED = "started"
"""An event, as an end is: the status of that end."""

TRANSITIONS = {
    (PENDING, STARTED): RUNNING,
    (PENDING, "failed"): SessionStatus.FAILED,
    (PENDING, "expired"): SessionStatus.EXPIRED,
    (RUNNING, "completed"): SessionStatus.COMPLETED,
    (RUNNING, "ended"): SessionStatus.ENDED,
    (RUNNING, "failed"): SessionStatus.FAILED,
    (RUNNING, "expired"): SessionStatus.EXPIRED,
}
"""Nothing leads back to pending, or out of an end. Two things are repairs of a wrong record, not transitions: a session
that was only presumed dead (its worker was silent) becomes running again once the worker reports it, and the record of
a session that never started is removed when its handoff is tried on another worker."""

EVENTS = (STARTED, "completed", "ended", "failed", "expired")

TO_STATUS = {
    PENDING: [],
    RUNNING: [STARTED],
    SessionStatus.COMPLETED: [STARTED, "completed"],
    SessionStatus.ENDED: [STARTED, "ended"],
    SessionStatus.FAILED: ["failed"],
    SessionStatus.EXPIRED: ["expired"],
}


def happen(grid: LuaGrid, event: str, session: str = "s1") -> int:
    return grid.start(session) if event == STARTED else grid.release(session, event, "why")


# The table


@pytest.mark.parametrize(("before", "event"), list(itertools.product(SessionStatus, EVENTS)))
def test_the_scripts_follow_the_table(grid: LuaGrid, before: SessionStatus, event: str) -> None:
    grid.register()
    grid.select("s1")
    for step in TO_STATUS[before]:
        happen(grid, step)
    assert grid.status("s1") == before
    outcomes = grid.outcomes()
    happen(grid, event)

    if before is PENDING and event in ("completed", "ended"):
        # The one shortcut: its start got lost, and is made up for in the same step.
        after = TRANSITIONS[TRANSITIONS[before, STARTED], event]
        assert "startedAt" in grid.session("s1")
    else:
        after = TRANSITIONS.get((before, event), before)
    assert grid.status("s1") == after
    assert grid.active() == len(grid.live()) == (1 if after in LIVE else 0)
    if after != before and after not in LIVE:
        assert grid.outcomes() == {after.value: 1}
    else:
        assert grid.outcomes() == outcomes


def test_only_the_table_s_ends_are_accepted(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    with pytest.raises(Exception, match="a session ends completed, ended, failed or expired, not pending"):
        grid.release("s1", "pending")
    assert grid.status("s1") == "pending"


def test_shared_lines_of_the_scripts_are_the_same() -> None:
    parts: dict[str, set[str]] = {}
    places: dict[str, list[str]] = {}
    for path in sorted(resource_dir("lua").glob("*.lua")):
        for name, text in re.findall(r"-- \[shared: (\w+)\]\n(.*?)-- \[end: \1\]", path.read_text(), re.DOTALL):
            parts.setdefault(name, set()).add(text)
            places.setdefault(name, []).append(path.stem)
    assert all(len(texts) == 1 for texts in parts.values())
    both = ["reaper", "selector"]
    assert places == {
        "both": both,
        "changes": both,
        "ends": ["reaper"],
        "history": both,
        "reading": ["selector"],
        "selections": ["selector"],
    }


def test_every_script_opens_with_its_contract() -> None:
    for path in resource_dir("lua").glob("*.lua"):
        head = path.read_text().partition("\n\n")[0]
        if path.stem != "lib":
            for word in ("-- KEYS", "-- ARGV", "-- Returns", "-- Keys"):
                assert word in head, (path.name, word)
        assert "redis.call('TIME')" not in path.read_text()


# Start


def test_a_start_makes_the_lease_endless(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    assert [grid.start("s1", now=NOW + 1), grid.start("s1", now=NOW + 2)] == [1, 1]
    assert grid.session("s1")["startedAt"] == str(NOW + 1)
    assert grid.get("ZSCORE", "sessions:live:chromium:w1", "s1") == float("inf")
    assert (grid.active(), grid.lifetime()) == (1, 1)


def test_another_worker_cannot_start_a_session(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.select("s1")
    grid.register("w2")
    assert grid.start("s1", worker="w2") == 0
    assert (grid.status("s1"), grid.active("w2")) == ("pending", 0)


def test_an_unknown_session_is_not_started_by_an_unknown_worker(grid: LuaGrid) -> None:
    assert [grid.start("s1"), grid.start("s1", worker="w1")] == [0, 0]
    assert grid.client.dbsize() == 0


def test_a_start_after_the_lease_expired_counts_again_as_a_repair(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", lease=5)
    grid.heartbeat(now=NOW + 6)
    assert (grid.status("s1"), grid.active()) == ("expired", 0)
    assert grid.start("s1", now=NOW + 7, worker="w1") == 2
    assert (grid.status("s1"), grid.active(), grid.live()) == ("running", 1, ["s1"])
    assert (grid.outcomes(), grid.taken_back()) == ({"expired": 1}, {"expired": 1})
    assert grid.repairs() == 1
    assert grid.release("s1") == 1
    assert grid.active() == 0


# Release


def test_a_release_records_the_end(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1", now=NOW + 1)
    assert grid.release("s1", "failed", "drain timeout", now=NOW + 9) == 1
    session = grid.session("s1")
    assert (session["status"], session["reason"], session["endedAt"]) == ("failed", "drain timeout", str(NOW + 9))
    assert (session["bytesIn"], session["bytesOut"]) == ("10", "20")
    assert 3590 < grid.get("TTL", "session:s1") <= 3600
    assert (grid.active(), grid.lifetime(), grid.live()) == (0, 1, [])
    assert grid.outcomes() == {"failed": 1}


def test_a_session_that_ends_in_a_drain_has_on_record_when_that_began(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    arguments = ("s1", "failed", "drain timeout: shutdown", NOW + 9, grid.prefix, 60, 0, 0, "", "", "", "", NOW + 4)
    assert grid.eval("release", grid.counters[:1], *arguments) == 1
    assert (grid.session("s1")["drainAt"], grid.session("s1")["endedAt"]) == (str(NOW + 4), str(NOW + 9))


def test_a_second_release_changes_nothing(grid: LuaGrid) -> None:
    grid.register()
    for session in ("s1", "s2"):
        grid.select(session)
        grid.start(session)
    assert [grid.release("s1"), grid.release("s1", "failed", "again"), grid.release("s1")] == [1, 0, 0]
    assert (grid.active(), grid.outcomes(), grid.session("s1")["reason"]) == (1, {"completed": 1}, "")


def test_the_counter_never_falls_below_zero(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.set_counters("w1", 0, 1)  # somebody else was here
    assert grid.release("s1", "failed") == 1
    assert grid.active() == 0


def test_a_release_after_the_counters_went_does_not_make_them(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.client.delete(*grid.counters)
    assert grid.release("s1", "failed") == 1
    assert grid.active() is None


def test_another_worker_cannot_release_a_session(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.select("s1")
    assert grid.release("s1", worker="w2") == 0
    assert (grid.status("s1"), grid.active()) == ("pending", 1)


def test_an_unknown_session_is_not_released(grid: LuaGrid) -> None:
    assert grid.release("s1") == 0
    assert grid.client.dbsize() == 0


def test_a_worker_s_session_that_redis_lost_is_recorded_and_moves_no_counter(grid: LuaGrid) -> None:
    grid.register("w1")
    assert [grid.release("s1", "completed", worker="w1"), grid.release("s1", "completed", worker="w1")] == [1, 0]
    assert (grid.status("s1"), grid.active(), grid.outcomes()) == ("completed", 0, {"completed": 1})
    assert grid.get("ZRANGE", "sessions:index", 0, -1) == ["s1"]


SITUATIONS: dict[str, Callable[[LuaGrid], object]] = {
    "pending": lambda grid: grid.select("s1"),
    "unknown": lambda grid: None,
    "presumed lost": lambda grid: [grid.select("s1"), grid.start("s1"), grid.heartbeat()],
    "its lease expired": lambda grid: [grid.select("s1", lease=1), grid.heartbeat(now=NOW + 2)],
    "already ended": lambda grid: [grid.select("s1"), grid.start("s1"), grid.release("s1", worker="w1")],
    "another worker's": lambda grid: [grid.register("w2"), grid.select("s1", only="w2")],
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_an_end_that_tells_of_its_start_is_the_same_as_both(grid: LuaGrid, situation: str, status: str) -> None:
    """What a worker keeps of a session while Redis is away becomes one write."""

    def all_there_is() -> list[object]:
        hashes = [grid.session("s1"), grid.outcomes(), grid.hash("worker:chromium:w1")]
        index = grid.get("ZRANGE", "sessions:index", 0, -1, "WITHSCORES")
        return [*hashes, index, *((grid.active(name), grid.lifetime(name), grid.live(name)) for name in ("w1", "w2"))]

    found = []
    for is_merged in (False, True):
        grid.client.flushall()
        grid.register()
        SITUATIONS[situation](grid)
        end = {"now": NOW + 9, "worker": "w1", "client": "1.2.3.4:5"}
        if is_merged:
            grid.release("s1", status, "why", started=NOW + 5, **end)  # type: ignore[arg-type]
        else:
            grid.start("s1", now=NOW + 5, worker="w1", client="1.2.3.4:5")
            grid.release("s1", status, "why", **end)  # type: ignore[arg-type]
        found.append(all_there_is())
    assert found[0] == found[1]


def test_a_session_that_redis_never_heard_of_is_recorded_as_its_worker_knows_it(grid: LuaGrid) -> None:
    grid.register()
    assert grid.start("s1", now=NOW + 1, worker="w1", client="1.2.3.4:5") == 2
    assert (grid.active(), grid.live(), grid.repairs()) == (1, ["s1"], 0)
    grid.release("s2", "completed", now=NOW + 3, worker="w1", started=NOW + 2, client="1.2.3.4:6")
    for session, since, client in (("s1", NOW + 1, "1.2.3.4:5"), ("s2", NOW + 2, "1.2.3.4:6")):
        record = grid.session(session)
        assert (record["createdAt"], record["startedAt"], record["client"]) == (str(since), str(since), client)
    assert (grid.active(), grid.outcomes()) == (1, {"completed": 1})


def test_release_needs_four_arguments(redis: RedisServer) -> None:
    grid = LuaGrid(redis.client())
    grid.register()
    grid.select("s1")
    source = source_of("release")
    arguments = ("cluster:active_connections", "s1", "ended", "ended by operator", int(NOW))
    assert grid.client.eval(source, 1, *arguments) == 1
    assert grid.client.eval(source, 1, *arguments) == 0
    assert (grid.status("s1"), grid.active(), grid.outcomes()) == ("ended", 0, {"ended": 1})
    grid.client.close()


# Rollback


def test_a_rollback_leaves_everything_as_before_the_selection(grid: LuaGrid) -> None:
    grid.register(lifetime=7)
    before = (grid.active(), grid.lifetime(), grid.live(), grid.outcomes())
    grid.select("s1")
    assert [grid.rollback("s1"), grid.rollback("s1")] == [1, 0]
    assert (grid.active(), grid.lifetime(), grid.live(), grid.outcomes()) == before
    assert grid.session("s1") == {}
    assert grid.get("ZCARD", "sessions:index") == 0
    assert grid.select("s1") == "w1"


def test_the_rollback_of_a_worker_s_last_session_takes_its_shutdown_back(grid: LuaGrid) -> None:
    grid.register(lifetime=1)
    before = grid.hash("worker:chromium:w1")
    grid.register("spare", status="spare")
    grid.select("s1", max_lifetime=2)
    assert grid.get("GET", "worker:cmd:chromium:w1") == "shutdown"
    assert grid.rollback("s1") == 1
    assert grid.get("EXISTS", "worker:cmd:chromium:w1") == 0
    assert grid.hash("worker:chromium:w1") == before
    assert grid.heartbeat() == (1, "", 0)
    grid.drain("spare")  # which served in its place
    assert grid.select("s2", max_lifetime=2) == "w1"


def test_a_running_session_is_not_rolled_back(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1")
    assert grid.rollback("s1") == 0
    assert (grid.status("s1"), grid.active(), grid.lifetime()) == ("running", 1, 1)


def test_a_release_after_a_rollback_moves_no_counter(grid: LuaGrid) -> None:
    grid.register()
    grid.select("other")
    grid.select("s1")
    grid.rollback("s1")
    assert grid.release("s1") == 0
    grid.release("s1", worker="w1")
    assert (grid.active(), grid.lifetime()) == (1, 1)


def test_a_rollback_after_a_release_changes_nothing(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.release("s1", "failed", "why")
    assert grid.rollback("s1") == 0
    assert (grid.status("s1"), grid.active(), grid.lifetime()) == ("failed", 0, 1)


def test_a_rollback_after_its_worker_was_given_up_lets_the_session_be_selected_again(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.select("s1")
    assert grid.unregister("w1") == 1
    assert grid.status("s1") == "failed"
    grid.register("w2")
    assert grid.rollback("s1") == 0
    assert (grid.outcomes(), grid.taken_back(), grid.session("s1")) == ({"failed": 1}, {"failed": 1}, {})
    assert grid.select("s1") == "w2"
    assert (grid.active("w1"), grid.lifetime("w1")) == (None, None)


# Waking those who wait


@pytest.fixture
def heard(grid: LuaGrid, redis: RedisServer):  # type: ignore[no-untyped-def]
    """A function that counts the messages on slots:chromium since its last call."""
    with redis.listening(f"{grid.prefix}slots:chromium") as messages:
        yield lambda: len(messages())


def test_a_registration_is_always_told(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    grid.register()
    assert heard() == 1


def test_a_release_is_told_once_when_somebody_waits(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    grid.register(slots=2)
    for session in ("s1", "s2"):
        grid.select(session)
    heard()
    grid.release("s1", "failed")
    assert heard() == 0  # nobody was turned away
    grid.select("s3")
    assert grid.select("s4") is None
    grid.release("s2", "failed")
    grid.release("s3", "failed")
    assert heard() == 1  # the woken ask until there is none left; that leaves word again
    assert grid.select("s4") == "w1"
    assert grid.select("s5") == "w1"
    assert grid.select("s6") is None
    grid.release("s4", "failed")
    assert heard() == 1


def test_it_is_told_whatever_limit_turned_the_waiter_away(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    """The limit may have been lowered below the worker's slots by a reload: its own limit was not reached then."""
    grid.register(slots=5)
    grid.select("s1", max_active=1)
    heard()
    assert grid.select("s2", max_active=1) is None
    grid.release("s1", "failed")
    assert heard() == 1


def test_a_rollback_is_told(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    grid.register(slots=1)
    grid.select("s1")
    grid.select("s2")
    heard()
    grid.rollback("s1")
    assert heard() == 1


def test_an_expired_lease_is_told(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    grid.register(slots=1)
    grid.select("s1", lease=5)
    grid.select("s2")
    heard()
    grid.heartbeat(now=NOW + 4)
    assert heard() == 0
    grid.heartbeat(now=NOW + 6)
    assert heard() == 1


def test_a_worker_that_is_heard_again_is_told(grid: LuaGrid, heard) -> None:  # type: ignore[no-untyped-def]
    grid.register()
    heard()
    assert grid.select("s1", now=NOW + 40) is None
    grid.heartbeat(now=NOW + 41)
    assert heard() == 1
    assert grid.select("s1", now=NOW + 41) == "w1"


# Figures


@pytest.mark.parametrize("kind", ["", *EndReason])
@pytest.mark.parametrize("sentence", ["client disconnected", "its dog ate it 7"])
def test_an_end_is_counted_by_the_kind_of_its_reason_whatever_the_sentence(
    grid: LuaGrid, kind: str, sentence: str
) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1")
    grid.release("s1", "failed", sentence, kind=kind)
    assert grid.hash("sessions:ends") == {f"chromium:chromium:failed:{kind or 'other'}": "1"}
    assert (grid.hash("session:s1")["reason"], grid.hash("session:s1")["reasonKind"]) == (sentence, kind or "other")


def test_an_end_and_a_length_are_counted_for_the_pool_of_the_session(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1")
    grid.get("HSET", "session:s1", "pool", "ci")
    grid.release("s1", "completed", "client disconnected", now=NOW + 2.5, kind="client disconnected")
    assert grid.hash("sessions:ends") == {"chromium:ci:completed:client disconnected": "1"}
    assert grid.hash("sessions:lengths") == {"chromium:ci:5": "1", "chromium:ci:ms": "2500"}


def test_the_end_of_a_session_that_went_with_its_worker_is_counted_as_such(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1")
    grid.reap(only="chromium:w1", reason="worker ended with SIGKILL")
    assert grid.hash("sessions:ends") == {"chromium:chromium:failed:worker lost": "1"}
    assert grid.hash("sessions:lengths") == {}  # nobody knows when it ended


def test_the_length_of_a_session_is_counted_by_the_bounds_that_python_knows(grid: LuaGrid) -> None:
    grid.register()
    expected = Histogram(records.LENGTH_BOUNDS_S)
    for place, length_s in enumerate((0, *records.LENGTH_BOUNDS_S, 100_000)):
        session_id = f"s{place}"
        grid.select(session_id)
        grid.start(session_id, now=NOW)
        grid.release(session_id, "completed", "client disconnected", now=NOW + length_s)
        expected.observe(length_s)
    found = records.read_snapshot([{}, {}, {}, {}, {}, grid.hash("sessions:lengths"), {}, {}, None])
    assert found.lengths["chromium", "chromium"].as_data() == expected.as_data()
    assert set(grid.hash("sessions:lengths")) == {
        f"chromium:chromium:{bound:g}" for bound in (*records.LENGTH_BOUNDS_S, math.inf)
    } | {"chromium:chromium:ms"}


def test_a_session_is_on_record_as_kept_while_it_runs_and_at_its_worker_alone(grid: LuaGrid) -> None:
    grid.register()
    key = f"{grid.prefix}session:s1"

    def kept(until: str, worker: str = "w1") -> tuple[int, float | None]:
        done = grid.eval("set_fields", [key], f"chromium:{worker}", 900, records.KEPT_UNTIL, until)
        return done, records.SessionRecord.read("s1", grid.session("s1")).kept_until

    assert kept("17")[0] == 0  # none is made for it
    grid.select("s1")
    grid.start("s1", worker="w1")
    assert kept("1017.5") == (1, 1017.5)
    assert kept("2000", worker="w2") == (0, 1017.5)
    assert grid.heartbeat(sessions=("s1",), lifetime="1") == (1, "", 0)
    assert grid.active() == 1
    assert kept("") == (1, None)
    assert kept("1030") == (1, 1030.0)
    grid.release("s1", "completed", "keep time over", worker="w1")
    assert kept("1040") == (0, None)
    assert (grid.status("s1"), grid.active()) == ("completed", 0)
