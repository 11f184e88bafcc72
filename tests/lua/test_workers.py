"""Registration, heartbeat, drain, end and reaping of workers; and Redis' repair from what workers say."""

import pytest

from pwgrid.common.paths import resource_dir
from tests.lua.model import NOW, Lease, Leased, LuaGrid
from tests.support.redis import RedisServer


def run(grid: LuaGrid, *sessions: str, worker: str = "") -> None:
    for session in sessions:
        assert grid.select(session, only=worker) is not None
        assert grid.start(session) == 1


# Register


def test_a_registration_writes_record_ttl_and_both_counters(grid: LuaGrid) -> None:
    grid.register(ttl=30)
    assert (grid.active(), grid.lifetime()) == (0, 0)
    record = grid.hash("worker:chromium:w1")
    assert record["browserType"] == "chromium"
    assert record["status"] == "available"
    assert record["lastHeartbeat"] == "1700000000"
    assert record["wsEndpoint"].endswith("/playwright/chromium/w1.secret")
    assert 0 < grid.get("TTL", "worker:chromium:w1") <= 30


def test_registering_twice_is_the_same_as_once(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.register(lifetime=1, sessions=("s1",))
    assert (grid.active(), grid.lifetime(), grid.live(), grid.repairs()) == (1, 1, ["s1"], 0)


def test_a_registration_keeps_the_lease_of_a_client_on_its_way(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.select("s2")
    grid.get("DEL", "worker:chromium:w1")  # its TTL ran out
    assert grid.register(lifetime=1, sessions=("s1",)) == 2
    assert (grid.active(), grid.lifetime()) == (2, 2)
    assert grid.heartbeat(sessions=("s1",)) == (1, "", 0)


# Heartbeat


def test_a_heartbeat_renews_the_record(grid: LuaGrid) -> None:
    grid.register(ttl=5)
    assert grid.heartbeat(now=NOW + 4.9, rss="210", status="draining") == (1, "", 0)
    record = grid.hash("worker:chromium:w1")
    assert (record["lastHeartbeat"], record["rssMib"], record["status"]) == ("1700000004", "210", "draining")
    assert 5 < grid.get("TTL", "worker:chromium:w1") <= 30


def test_a_heartbeat_repairs_what_somebody_wrote_into_the_worker_s_record(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    endpoint = grid.hash("worker:chromium:w1")["wsEndpoint"]
    grid.get("HSET", "worker:chromium:w1", "wsEndpoint", "", "slots", "0", "playwrightVersion", "9.9")
    grid.get("PERSIST", "worker:chromium:w1")
    assert grid.select("s2", version="1.65") is None
    fields = ("wsEndpoint", endpoint, "slots", "5", "playwrightVersion", "1.65.1")
    assert grid.beat(sessions=("s1",), fields=fields)[:3] == [1, "", 0]
    assert grid.select("s2", version="1.65") == "w1"


def test_a_heartbeat_of_an_unknown_worker_says_so_and_touches_nothing(grid: LuaGrid) -> None:
    assert grid.heartbeat(sessions=("s1",)) == (0, "", 0)
    assert grid.client.dbsize() == 0


def test_a_heartbeat_brings_the_operator_s_command(grid: LuaGrid) -> None:
    grid.register()
    grid.get("SET", "worker:cmd:chromium:w1", "shutdown", "EX", 60)
    assert grid.heartbeat() == (1, "shutdown", 0)


def test_a_shutdown_waits_for_the_client_that_has_a_lease(grid: LuaGrid) -> None:
    """The last session of a worker leaves the command, and comes to the worker only after that."""
    grid.register()
    for session in ("s1", "s2"):
        grid.select(session, max_lifetime=2)
    assert grid.get("GET", "worker:cmd:chromium:w1") == "shutdown"
    assert grid.start("s1") == 1
    assert grid.heartbeat(sessions=("s1",)) == (1, "", 0)
    assert grid.heartbeat(sessions=("s1", "s2")) == (1, "shutdown", 0)


def test_the_selection_s_shutdown_waits_no_longer_than_a_lease(grid: LuaGrid) -> None:
    """It may be that nobody comes with the lease, and somebody keeps others running."""
    grid.register()
    grid.select("s1", max_lifetime=2, lease=60)
    grid.select("s2", max_lifetime=2, lease=5)
    assert grid.heartbeat(now=NOW + 4.9) == (1, "", 0)
    grid.get("ZADD", "sessions:live:chromium:w1", NOW + 60, "s2")
    assert grid.beat(now=NOW + 5.1) == [1, "shutdown", 0, 1, "s1", "54.900", "s2", "54.900"]


def test_the_lease_that_nobody_came_for_takes_the_selection_s_shutdown_back(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", max_lifetime=1, lease=5)
    assert grid.heartbeat(now=NOW + 4.9) == (1, "", 0)
    assert grid.heartbeat(now=NOW + 5.1) == (1, "", 0)
    assert (grid.lifetime(), grid.get("EXISTS", "worker:cmd:chromium:w1")) == (0, 0)
    assert grid.select("s2", max_lifetime=1, now=NOW + 6) == "w1"


def test_an_operator_s_shutdown_is_never_withheld(grid: LuaGrid) -> None:
    """Clients come all the time: the beat that hears it makes the worker draining, and says who is on the way."""
    grid.register()
    run(grid, "s1")
    grid.select("s2")
    grid.get("SET", "worker:cmd:chromium:w1", "shutdown", "EX", 60)
    assert grid.select("s3") == "w1"
    assert grid.beat(sessions=("s1",)) == [1, "shutdown", 0, 0, "s2", "10.000", "s3", "10.000"]
    assert grid.hash("worker:chromium:w1")["status"] == "draining"
    assert grid.select("s4") is None


def test_an_operator_s_shutdown_is_not_taken_back_with_a_lease(grid: LuaGrid) -> None:
    grid.register()
    grid.get("SET", "worker:cmd:chromium:w1", "shutdown", "EX", 60)
    grid.select("s1", max_lifetime=1)
    assert grid.rollback("s1") == 1
    assert grid.heartbeat() == (1, "shutdown", 0)


def test_an_operator_s_shutdown_stays_also_where_it_came_after_the_selection_s(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", max_lifetime=1)
    key, command = (f"{grid.prefix}worker:{name}chromium:w1" for name in ("", "cmd:"))
    assert grid.eval("shutdown_command", [key, command], 60) == 1
    assert grid.rollback("s1") == 1
    assert grid.heartbeat() == (1, "shutdown", 0)


def test_a_healthy_heartbeat_repairs_nothing(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1", "s2")
    grid.select("s3")
    assert grid.heartbeat(sessions=("s1", "s2")) == (1, "", 0)
    assert (grid.active(), grid.lifetime(), grid.repairs()) == (3, 3, 0)
    assert [grid.status(session) for session in ("s1", "s2", "s3")] == ["running", "running", "pending"]


def test_a_heartbeat_renews_the_records_of_live_sessions(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.get("EXPIRE", "session:s1", 5)
    grid.heartbeat(sessions=("s1",))
    assert grid.get("TTL", "session:s1") > 100


def test_a_running_session_that_the_worker_does_not_have_is_lost(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1", "s2")
    assert grid.heartbeat(sessions=("s2",)) == (1, "", 0)
    assert (grid.status("s1"), grid.session("s1")["reason"]) == ("failed", "lost by worker")
    assert (grid.active(), grid.live(), grid.outcomes(), grid.repairs()) == (1, ["s2"], {"failed": 1}, 0)


@pytest.mark.parametrize(("after", "status"), [(4.9, "pending"), (5.1, "expired")])
def test_a_pending_session_lives_as_long_as_its_lease(grid: LuaGrid, after: float, status: str) -> None:
    grid.register()
    grid.select("s1", lease=5)
    assert grid.heartbeat(now=NOW + after) == (1, "", 0)
    assert grid.status("s1") == status
    assert grid.active() == (1 if status == "pending" else 0)


def test_a_lease_that_nobody_came_for_takes_its_lifetime_back(grid: LuaGrid) -> None:
    grid.register(lifetime=7)
    grid.select("s1", lease=5)
    grid.select("s2", lease=5)
    grid.heartbeat(sessions=("s2@8",), now=NOW + 6, lifetime="8")
    assert (grid.status("s1"), grid.status("s2"), grid.active(), grid.lifetime()) == ("expired", "running", 1, 8)


def test_a_lease_whose_record_is_gone_is_ended_and_recorded(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", lease=5)
    grid.get("DEL", "session:s1")
    grid.heartbeat(now=NOW + 6)
    assert (grid.status("s1"), grid.active(), grid.live()) == ("expired", 0, [])


def test_a_pending_session_that_the_worker_has_waits_for_its_start(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1", lease=5)
    grid.heartbeat(sessions=("s1",), now=NOW + 1)
    assert grid.status("s1") == "pending"
    grid.heartbeat(sessions=("s1",), now=NOW + 6)
    assert (grid.status("s1"), grid.active(), grid.repairs()) == ("running", 1, 0)


@pytest.mark.parametrize("wrong", [0, 1, 5, 9])
def test_a_wrong_counter_is_repaired_and_counted(grid: LuaGrid, wrong: int) -> None:
    grid.register()
    run(grid, "s1", "s2")
    grid.set_counters("w1", wrong, 2)
    assert grid.heartbeat(sessions=("s1", "s2")) == (1, "", 2 - wrong)
    assert (grid.active(), grid.repairs()) == (2, 1)
    assert grid.heartbeat(sessions=("s1", "s2")) == (1, "", 0)
    assert grid.repairs() == 1


def test_counters_that_somebody_deleted_come_back(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.client.delete(*grid.counters)
    assert grid.heartbeat(sessions=("s1",), lifetime="7") == (1, "", 1)
    assert (grid.active(), grid.lifetime()) == (1, 7)


def test_a_lifetime_above_what_the_worker_had_is_repaired_counted_and_told(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register()
    run(grid, "s1", "s2")
    grid.select("s3")  # on its way: it counts, too
    grid.set_counters("w1", 3, 1_000_000)
    assert grid.select("s4") is None
    with redis.listening(f"{grid.prefix}slots:chromium") as heard:
        assert grid.heartbeat(sessions=("s1", "s2"), lifetime="2") == (1, "", 0)
        assert len(heard()) == 1
    assert (grid.lifetime(), grid.repairs()) == (3, 1)
    assert grid.select("s4") == "w1"
    assert grid.heartbeat(sessions=("s1", "s2"), lifetime="2") == (1, "", 0)
    assert (grid.lifetime(), grid.repairs()) == (4, 1)


def test_a_lifetime_below_what_the_worker_had_goes_up_and_is_no_repair(grid: LuaGrid) -> None:
    """While Redis was away only the worker counted."""
    grid.register(lifetime=9)
    assert grid.heartbeat(lifetime="12") == (1, "", 0)
    assert (grid.lifetime(), grid.repairs()) == (12, 0)


def test_a_worker_that_does_not_know_its_lifetime_leaves_it_as_it_is(grid: LuaGrid) -> None:
    """It sees the sessions of one that died to their end."""
    grid.register(lifetime=9)
    grid.heartbeat()
    assert (grid.lifetime(), grid.repairs()) == (9, 0)


NO_FIGURES = ["inf", "-inf", "nan", "1e300", "-3", "", "soon"]


@pytest.mark.parametrize("value", NO_FIGURES)
def test_what_is_no_figure_stops_no_script_and_is_repaired(grid: LuaGrid, value: str) -> None:
    grid.register("w1")
    run(grid, "s1")
    for key, name in (
        ("cluster:active_connections", "chromium:w1"),
        ("cluster:lifetime_connections", "chromium:w1"),
        ("worker:chromium:w1", "outside"),
        ("worker:chromium:w1", "outsideLifetime"),
        ("worker:chromium:w1", "usedUp"),
        ("sessions:outcomes", "completed"),
        ("sessions:outcomes", "failed"),
        ("sessions:taken_back", "failed"),
    ):
        grid.get("HSET", key, name, value)
    grid.get("SET", "cluster:counter_repairs", value)
    assert grid.select("s2") == "w1"
    assert grid.rollback("s2") == 1
    grid.heartbeat(sessions=("s1",), lifetime="1")
    assert (grid.active(), grid.lifetime()) == (1, 1)
    assert grid.repairs() >= 1
    assert grid.select("s3") == "w1"
    assert [grid.release("s1"), grid.release("s3", "failed")] == [1, 1]
    assert (grid.active(), grid.lifetime()) == (0, 2)
    assert grid.outcomes().keys() == {"completed", "failed"}


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "", "soon"])
def test_slots_that_are_no_figure_are_no_limit(grid: LuaGrid, value: str) -> None:
    grid.register("w1")
    grid.get("HSET", "worker:chromium:w1", "slots", value)
    assert [grid.select(f"s{number}", max_active=2) for number in range(3)] == ["w1", "w1", None]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300", "", "soon"])
def test_a_heartbeat_at_no_time_is_none(grid: LuaGrid, value: str) -> None:
    grid.register("w1")
    grid.get("HSET", "worker:chromium:w1", "lastHeartbeat", value)
    assert grid.select("s1") is None
    assert grid.reap() == 1


def test_a_session_that_was_presumed_dead_runs_again_when_its_worker_shows_it(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    assert grid.reap(now=NOW + 31) == 1  # the worker was cut off from Redis
    assert (grid.status("s1"), grid.outcomes()) == ("failed", {"failed": 1})
    assert grid.heartbeat(sessions=("s1",), now=NOW + 32)[0] == 0
    grid.register(lifetime=1, sessions=("s1",), now=NOW + 32)
    assert (grid.status("s1"), grid.outcomes(), grid.active(), grid.live()) == ("running", {"failed": 1}, 1, ["s1"])
    assert grid.taken_back() == {"failed": 1}
    assert "reason" not in grid.session("s1")
    assert grid.release("s1", worker="w1") == 1
    assert (grid.active(), grid.outcomes()) == (0, {"failed": 1, "completed": 1})


def test_only_the_worker_itself_corrects_what_was_presumed_of_its_session(grid: LuaGrid) -> None:
    """A heartbeat may overtake the release of a session that has just ended."""
    grid.register()
    run(grid, "s1")
    grid.heartbeat(sessions=())
    assert [grid.release("s1"), grid.release("s1", worker="w2")] == [0, 0]
    assert (grid.status("s1"), grid.session("s1")["reason"]) == ("failed", "lost by worker")
    assert grid.release("s1", "completed", "closed by client", worker="w1") == 1
    session = grid.session("s1")
    assert (session["status"], session["reason"], "presumed" in session) == ("completed", "closed by client", False)
    assert (grid.active(), grid.outcomes(), grid.repairs()) == (0, {"failed": 1, "completed": 1}, 0)
    assert grid.taken_back() == {"failed": 1}


def test_an_end_that_the_worker_itself_reported_stands(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.release("s1", "failed", "drain timeout", worker="w1")
    assert grid.start("s1", worker="w1") == 0
    assert (grid.status("s1"), grid.active()) == ("failed", 0)


# Redis comes back empty


def test_after_redis_lost_everything_the_true_counts_come_back(grid: LuaGrid) -> None:
    """A peer counts down to -2 here, and then admits 7 on a limit of 5."""
    grid.register(slots=5)
    run(grid, "s1", "s2", "s3")
    grid.client.flushall()

    # Two of them end while Redis knows nothing: nothing is counted below zero.
    assert [grid.release(session, worker="w1") for session in ("s1", "s2")] == [1, 1]
    assert grid.active() is None

    assert grid.heartbeat(sessions=("s3",)) == (0, "", 0)
    grid.register(lifetime=3, sessions=("s3",))
    assert (grid.active(), grid.lifetime(), grid.status("s3")) == (1, 3, "running")
    assert [grid.select(f"n{number}") for number in range(6)] == ["w1"] * 4 + [None, None]
    assert grid.active() == 5
    assert grid.heartbeat(sessions=("s3",)) == (1, "", 0)
    assert (grid.active(), grid.repairs()) == (5, 0)
    assert grid.outcomes() == {"completed": 2}


def test_a_worker_tells_since_when_its_sessions_run(grid: LuaGrid) -> None:
    grid.register(lifetime=1, sessions=("s1@1699999990.5",))
    grid.heartbeat(sessions=("s1@1699999990.5", "s2@1699999991"))
    for session, since in (("s1", "1699999990.5"), ("s2", "1699999991")):
        assert (grid.session(session)["createdAt"], grid.session(session)["startedAt"]) == (since, since)
    assert grid.get("ZSCORE", "sessions:index", "s1") == 1699999990.5


def test_a_registration_takes_the_slots_of_its_sessions(grid: LuaGrid) -> None:
    assert grid.register(slots=5, lifetime=4, sessions=("s1", "s2", "s3")) == 3
    assert [grid.select(f"n{number}") for number in range(3)] == ["w1", "w1", None]
    assert grid.heartbeat(sessions=("s1", "s2", "s3")) == (1, "", 0)
    assert (grid.active(), len(grid.live()), grid.repairs()) == (5, 5, 0)
    assert [grid.status(session) for session in ("s1", "s2", "s3")] == ["running"] * 3
    for session in ("s1", "s2", "s3"):
        grid.release(session)
    assert grid.active() == 2


def test_a_session_that_ends_while_redis_is_away_frees_its_slot(grid: LuaGrid) -> None:
    grid.register(slots=1)
    run(grid, "s1")
    # The release never came; the worker only knows that it has nothing any more.
    assert grid.select("s2") is None
    grid.heartbeat(sessions=())
    assert grid.select("s2") == "w1"
    # The journal's replay comes late: it corrects the record, and takes no slot from the other.
    assert grid.status("s1") == "failed"
    assert [grid.release("s1", worker="w1"), grid.release("s1", worker="w1")] == [1, 0]
    assert (grid.status("s1"), grid.active()) == ("completed", 1)
    assert (grid.outcomes(), grid.taken_back()) == ({"failed": 1, "completed": 1}, {"failed": 1})


# Drain and end


def test_a_draining_worker_is_not_chosen(grid: LuaGrid) -> None:
    grid.register()
    assert [grid.drain(), grid.drain()] == [1, 1]
    assert grid.hash("worker:chromium:w1")["status"] == "draining"
    assert grid.get("TTL", "worker:chromium:w1") > 0
    assert grid.select() is None


def test_a_worker_that_is_not_there_is_not_made_by_draining(grid: LuaGrid) -> None:
    assert grid.drain() == 0
    assert grid.client.dbsize() == 0


def test_unregistering_leaves_nothing_of_the_worker(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1")
    grid.select("s2")
    grid.get("SET", "worker:cmd:chromium:w1", "shutdown")
    assert [grid.unregister(reason="drain timeout"), grid.unregister()] == [2, 0]
    assert [(grid.status(session), grid.session(session)["reason"]) for session in ("s1", "s2")] == [
        ("failed", "drain timeout"),
        ("failed", "drain timeout"),
    ]
    left = sorted(key.removeprefix(grid.prefix) for key in grid.client.keys("*"))
    assert left == ["session:s1", "session:s2", "sessions:ends", "sessions:index", "sessions:outcomes"]


# Reaper


def test_the_reaper_takes_stale_workers_and_fails_their_sessions(grid: LuaGrid) -> None:
    grid.register("dead")
    run(grid, "s1")
    grid.select("s2")
    grid.register("alive", now=NOW + 20)
    assert grid.reap(now=NOW + 31) == 1
    assert (grid.active("dead"), grid.lifetime("dead"), grid.active("alive")) == (None, None, 0)
    assert grid.hash("worker:chromium:dead") == {}
    assert grid.live("dead") == []
    for session in ("s1", "s2"):
        assert (grid.status(session), grid.session(session)["reason"]) == ("failed", "worker lost")
    assert grid.outcomes() == {"failed": 2}
    assert grid.reap(now=NOW + 31) == 0


@pytest.mark.parametrize(("age", "reaped"), [(30, 0), (31, 1)])
def test_the_threshold_is_the_selector_s(grid: LuaGrid, age: int, reaped: int) -> None:
    grid.register()
    assert (grid.select(now=NOW + age) is None) == bool(reaped)
    assert grid.reap(now=NOW + age) == reaped


def test_counters_of_a_worker_without_a_key_are_stale(grid: LuaGrid) -> None:
    grid.set_counters("gone", 3, 9)
    grid.get("HSET", "cluster:lifetime_connections", "firefox:half", 1)
    assert grid.reap() == 2
    assert (grid.hash("cluster:active_connections"), grid.hash("cluster:lifetime_connections")) == ({}, {})


def test_one_worker_is_reaped_however_fresh_it_is(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.register("w2")
    run(grid, "s1", worker="w1")
    assert grid.select(Lease("l1"), only="w1") == "w1"
    grid.start(Leased("s2", "l1"), worker="w1")
    reaped = grid.reap(only="chromium:w1", reason="memory limit", mode="names")
    assert reaped == [["chromium:w1", ["s1", "s2"], ["l1"]]]
    assert [grid.record(each)["reason"] for each in ("s1", "s2", Lease("l1"))] == ["memory limit"] * 3
    assert (grid.active("w1"), grid.active("w2")) == (None, 0)
    assert grid.reap(only="chromium:w1", mode="names") == []


def test_only_one_reaper_works_at_a_time(grid: LuaGrid) -> None:
    grid.register()
    assert grid.reap(now=NOW, owner="proxy a") == 0
    assert grid.reap(now=NOW + 31, owner="proxy b") == 0
    assert grid.reap(now=NOW + 31, owner="proxy b", mode="names") is None
    assert grid.reap(now=NOW + 31, owner="proxy a") == 1


def test_the_reaper_forgets_sessions_whose_record_is_gone(grid: LuaGrid) -> None:
    grid.register()
    run(grid, "s1", "s2")
    grid.release("s1")
    grid.get("DEL", "session:s1")
    grid.reap()
    assert grid.get("ZRANGE", "sessions:index", 0, -1) == ["s2"]


def test_the_reaper_keeps_the_index_short_where_clients_come_with_leases_alone(grid: LuaGrid) -> None:
    """No selection does that there: their sessions are recorded when they start, or end."""
    grid.register()
    assert grid.select(Lease("l1")) == "w1"
    for number in range(6):
        grid.start(Leased(f"s{number}", "l1"), worker="w1", now=NOW + number)
        if number:
            grid.release(Leased(f"s{number}", "l1"), worker="w1", now=NOW + number)
    grid.reap(history_max=2)
    assert grid.get("ZRANGE", "sessions:index", 0, -1) == ["s4", "s5"]
    assert grid.get("ZRANGE", "sessions:index:live", 0, -1) == ["s0"]
    assert grid.get("ZRANGE", "leases:index", 0, -1) == ["l1"]


def test_the_reaper_shortens_an_index_that_has_grown_long_at_once(grid: LuaGrid) -> None:
    grid.get("ZADD", "sessions:index", *(part for number in range(3500) for part in (number, f"s{number}")))
    for number in range(1000):  # so many vanished ones it takes out in any case
        grid.get("HSET", f"session:s{number}", "status", "completed")
    grid.reap(history_max=2)
    assert grid.get("ZRANGE", "sessions:index", 0, -1) == ["s3498", "s3499"]


def test_the_reaper_forgets_who_lives_no_more_beside_the_index(grid: LuaGrid) -> None:
    grid.register()
    for each in ("s1", "s2"):
        grid.select(each, history_max=0)
    grid.get("DEL", "session:s1")
    grid.reap()
    assert grid.get("ZRANGE", "sessions:index:live", 0, -1) == ["s2"]


@pytest.mark.parametrize("keys", [(), ("cluster:active_connections", "cluster:lifetime_connections")])
def test_the_reaper_stands_alone_with_two_arguments(redis: RedisServer, keys: tuple[str, ...]) -> None:
    grid = LuaGrid(redis.client())
    grid.register()
    run(grid, "s1")
    source = (resource_dir("lua") / "reaper.lua").read_text()
    assert grid.client.eval(source, len(keys), *keys, int(NOW) + 30, 30) == 0
    assert grid.client.eval(source, len(keys), *keys, int(NOW) + 31, 30) == 1
    assert (grid.active(), grid.status("s1"), grid.session("s1")["reason"]) == (None, "failed", "worker lost")
    grid.client.close()


def test_the_reaper_without_keys_takes_the_prefix_as_its_third_argument(grid: LuaGrid) -> None:
    grid.register()
    source = (resource_dir("lua") / "reaper.lua").read_text()
    assert grid.client.eval(source, 0, int(NOW) + 31, 30, grid.prefix) == 1
    assert (grid.active(), grid.hash("worker:chromium:w1")) == (None, {})


def test_the_reaper_finds_hashes_that_have_no_counter_and_no_ttl(grid: LuaGrid) -> None:
    for worker, beat in (("dead", NOW - 31), ("alive", NOW), ("never", "soon")):
        grid.get("HSET", f"worker:firefox:{worker}", "wsEndpoint", "ws://x", "lastHeartbeat", beat)
    assert grid.reap() == 2
    assert [grid.get("EXISTS", f"worker:firefox:{worker}") for worker in ("dead", "alive", "never")] == [0, 1, 0]


def test_the_reaper_leaves_what_is_no_worker_s(grid: LuaGrid) -> None:
    grid.get("HSET", "worker:of:others", "name", "x")
    grid.get("HSET", "worker:plain", "lastHeartbeat", 1)
    grid.get("SET", "worker:a:string", "x")
    grid.get("SET", "worker:cmd:chromium:gone", "shutdown")
    assert grid.reap() == 0
    assert grid.client.dbsize() == 4


def test_the_reaper_takes_a_prefix_word_by_word(redis: RedisServer) -> None:
    """SCAN has patterns, and a prefix may look like one."""
    client = redis.client()
    ours, theirs = LuaGrid(client, "[ab]*\\?:"), LuaGrid(client, "ab:")
    for each in (ours, theirs):
        each.get("HSET", "worker:firefox:dead", "wsEndpoint", "ws://x", "lastHeartbeat", 1)
    assert ours.reap() == 1
    assert [each.get("EXISTS", "worker:firefox:dead") for each in (ours, theirs)] == [0, 1]
    client.close()


def test_a_large_database_is_looked_through_in_several_calls(redis: RedisServer) -> None:
    """So that one call holds up nobody; each goes on where the last one stopped."""
    grid = LuaGrid(redis.client())
    grid.client.eval("for i = 1, 150000 do redis.call('SET', 'other:' .. i, 1) end", 0)
    for number in range(50):
        grid.get("HSET", f"worker:firefox:{number}", "wsEndpoint", "ws://x", "lastHeartbeat", 1)
    reaped = [grid.reap(), grid.reap()]
    assert sum(reaped) == 50
    assert 0 < reaped[0] < 50
    assert grid.get("EXISTS", "reaper:cursor") == 0
    grid.client.flushall()
    grid.client.close()


# Spares


def test_a_heartbeat_keeps_a_spare_a_spare(grid: LuaGrid) -> None:
    grid.register(status="spare")
    assert grid.heartbeat(status="spare", now=NOW + 5) == (1, "", 0)
    assert grid.hash("worker:chromium:w1")["status"] == "spare"
    assert grid.repairs() == 0


def test_a_spare_that_was_let_serve_hears_of_it_at_its_heartbeat_and_stays_available(grid: LuaGrid) -> None:
    grid.register("old", lifetime=49)
    grid.register(status="spare")
    grid.select("a")
    assert grid.heartbeat(status="spare", now=NOW + 5) == (1, "serve", 0)
    assert grid.hash("worker:chromium:w1")["status"] == "available"
    grid.get("SET", "worker:cmd:chromium:w1", "shutdown")
    assert grid.heartbeat(status="spare", now=NOW + 5) == (1, "shutdown", 0)


def test_a_spare_serves_from_the_heartbeat_on_that_says_so_and_wakes_who_waits(grid: LuaGrid) -> None:
    grid.register(status="spare")
    assert grid.select("a") is None
    assert grid.heartbeat(status="available") == (1, "", 0)
    assert grid.get("EXISTS", "slots:wanted:chromium") == 0
    assert grid.select("a") == "w1"
