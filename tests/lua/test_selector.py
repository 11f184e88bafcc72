"""Which worker is chosen, and what the choice does to counters and records."""

import itertools
from collections import Counter

import pytest
from redis import Redis

from pwgrid.common.paths import resource_dir
from pwgrid.registry.scripts import source_of
from tests.lua.model import NOW, Lease, LuaGrid, kind_id_lease
from tests.support.redis import RedisServer

# The documented contract, alone: the file as it is, four arguments, keys that an outsider wrote


def outsider_worker(client: Redis, field: str, active: int = 0, lifetime: int = 0, **changes: str) -> None:
    fields = {
        "browserType": field.partition(":")[0],
        "wsEndpoint": f"ws://{field}",
        "status": "available",
        "lastHeartbeat": str(int(NOW)),
    } | changes
    client.hset(f"worker:{field}", mapping=fields)
    client.expire(f"worker:{field}", 30)
    client.hset("cluster:active_connections", field, active)
    client.hset("cluster:lifetime_connections", field, lifetime)


def outsider_select(client: Redis, browser: str = "chromium", active: int = 5, lifetime: int = 50) -> str | None:
    source = (resource_dir("lua") / "selector.lua").read_text()
    keys = ("cluster:active_connections", "cluster:lifetime_connections")
    chosen: str | None = client.eval(source, 2, *keys, browser, active, lifetime, int(NOW))
    return chosen


@pytest.fixture
def client(redis: RedisServer):  # type: ignore[no-untyped-def]
    client = redis.client()
    yield client
    client.close()


def test_four_arguments_suffice_and_the_endpoint_comes_back(client: Redis) -> None:
    outsider_worker(client, "chromium:abcd")
    assert outsider_select(client) == "ws://chromium:abcd"
    assert client.hget("cluster:active_connections", "chromium:abcd") == "1"
    assert client.hget("cluster:lifetime_connections", "chromium:abcd") == "1"
    assert client.keys("session*") == []


def test_no_worker_is_nil_and_changes_nothing(client: Redis) -> None:
    assert outsider_select(client) is None
    assert client.dbsize() == 0


def test_another_type_is_not_chosen(client: Redis) -> None:
    outsider_worker(client, "firefox:abcd")
    assert outsider_select(client) is None
    assert outsider_select(client, "firefox") == "ws://firefox:abcd"


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "draining"},
        {"status": "starting"},
        {"lastHeartbeat": str(int(NOW) - 31)},
        {"lastHeartbeat": "soon"},
        {"wsEndpoint": ""},
    ],
)
def test_a_worker_that_does_not_serve_is_not_chosen(client: Redis, changes: dict[str, str]) -> None:
    outsider_worker(client, "chromium:abcd", **changes)
    if changes.get("wsEndpoint") == "":
        client.hdel("worker:chromium:abcd", "wsEndpoint")
    assert outsider_select(client) is None
    assert client.hget("cluster:active_connections", "chromium:abcd") == "0"


def test_a_heartbeat_as_old_as_the_threshold_is_still_fresh(client: Redis) -> None:
    outsider_worker(client, "chromium:abcd", lastHeartbeat=str(int(NOW) - 30))
    assert outsider_select(client) == "ws://chromium:abcd"


def test_a_key_without_ttl_is_not_chosen(client: Redis) -> None:
    outsider_worker(client, "chromium:abcd")
    client.persist("worker:chromium:abcd")
    assert outsider_select(client) is None


def test_counters_without_a_worker_key_are_not_chosen(client: Redis) -> None:
    outsider_worker(client, "chromium:abcd")
    client.delete("worker:chromium:abcd")
    assert outsider_select(client) is None


def test_both_limits_hold(client: Redis) -> None:
    outsider_worker(client, "chromium:full", active=5, lifetime=10)
    outsider_worker(client, "chromium:spent", active=0, lifetime=50)
    assert outsider_select(client) is None


# The rule


def workers(grid: LuaGrid, **counters: tuple[int, int]) -> None:
    for worker, (active, lifetime) in counters.items():
        grid.register(worker)
        grid.set_counters(worker, active, lifetime)


def test_the_highest_lifetime_below_the_margin_wins(grid: LuaGrid) -> None:
    workers(grid, a=(0, 3), b=(0, 24), c=(0, 10))  # 3 workers: border at 50 - 16
    assert grid.select() == "b"


def test_a_tie_goes_to_the_lowest_active(grid: LuaGrid) -> None:
    workers(grid, a=(2, 10), b=(1, 10), c=(3, 10))
    assert grid.select() == "b"


def test_a_full_tie_is_decided_the_same_way_each_time(grid: LuaGrid) -> None:
    workers(grid, c=(0, 0), a=(0, 0), b=(0, 0))
    assert grid.select() == "a"


@pytest.mark.parametrize(("lifetime", "chosen"), [(24, "old"), (25, "young")])
def test_the_border_is_max_lifetime_less_the_margin(grid: LuaGrid, lifetime: int, chosen: str) -> None:
    workers(grid, old=(0, lifetime), young=(0, 3))  # 2 workers: margin 25, border at 25
    assert grid.select() == chosen


def test_beyond_the_border_the_highest_lifetime_wins_too(grid: LuaGrid) -> None:
    workers(grid, a=(0, 40), b=(0, 49), c=(0, 45))
    assert grid.select() == "b"


def test_the_margin_is_at_least_one(grid: LuaGrid) -> None:
    workers(grid, **{f"w{number}": (0, 0) for number in range(5)})
    grid.set_counters("w3", 0, 2)  # max 3, 5 workers: margin max(1, 0), border at 2
    assert grid.select(max_lifetime=3) != "w3"
    grid.set_counters("w3", 0, 1)
    assert grid.select(max_lifetime=3) in ("w0", "w3")


def test_a_full_worker_still_counts_for_the_margin(grid: LuaGrid) -> None:
    workers(grid, full=(5, 10), old=(0, 30), young=(0, 3))
    # 3 serve: border 34, old wins. If the full one did not count: border 25, young would.
    assert grid.select() == "old"


def test_filters_do_not_move_the_border(grid: LuaGrid) -> None:
    workers(grid, excluded=(0, 10), old=(0, 30), young=(0, 3))
    assert grid.select(exclude="excluded") == "old"
    grid.register("other", version="1.64.0")
    grid.set_counters("old", 0, 36)  # 4 serve: border 38
    assert grid.select(version="1.65", exclude="excluded") == "old"


def test_a_draining_or_dead_worker_does_not_count_for_the_margin(grid: LuaGrid) -> None:
    workers(grid, draining=(0, 10), dead=(0, 10), old=(0, 30), young=(0, 3))
    grid.drain("draining")
    grid.get("HSET", "worker:chromium:dead", "lastHeartbeat", NOW - 100)
    assert grid.select() == "young"  # 2 serve: border 25


def test_a_worker_with_fewer_slots_is_bound_by_them(grid: LuaGrid) -> None:
    grid.register("w1", slots=2)
    assert [grid.select(f"s{number}") for number in range(3)] == ["w1", "w1", None]
    assert grid.active() == 2


def test_a_worker_with_more_slots_is_bound_by_the_limit(grid: LuaGrid) -> None:
    grid.register("w1", slots=9)
    assert [grid.select(f"s{number}", max_active=1) for number in range(2)] == ["w1", None]


def test_excluded_workers_are_not_chosen(grid: LuaGrid) -> None:
    workers(grid, a=(0, 5), b=(0, 0))
    assert grid.select("s1", exclude="a,zz") == "b"
    assert grid.select("s2", exclude="b,a") is None


def test_only_the_named_worker_is_chosen(grid: LuaGrid) -> None:
    workers(grid, a=(0, 5), b=(0, 0))
    assert grid.select("s1", only="b") == "b"
    assert grid.select("s2", only="nobody") is None


def test_a_version_is_matched_by_major_and_minor(grid: LuaGrid) -> None:
    grid.register("new", version="1.65.2")
    grid.register("old", version="1.6.5")
    assert grid.select("s1", version="1.65.1") == "new"
    assert grid.select("s2", version="1.6") == "old"
    assert grid.select("s3", version="1.64") is None
    assert grid.select("s4", version="unknown") is not None


def test_without_the_best_one_s_ttl_the_next_best_is_chosen(grid: LuaGrid) -> None:
    workers(grid, best=(0, 20), next=(0, 10), last=(0, 0))
    grid.get("PERSIST", "worker:chromium:best")
    assert grid.select("s1") == "next"
    assert (grid.active("best"), grid.lifetime("best")) == (0, 20)


# What a selection writes


def test_a_selection_writes_the_session_and_its_lease(grid: LuaGrid) -> None:
    grid.register()
    assert grid.select("s1", lease=7, extra=("run", "nightly", "proxy", "p1")) == "w1"
    session = grid.session("s1")
    assert session.pop("createdAt") == str(NOW)
    assert session == {
        "kind": "session",
        "browserType": "chromium",
        "workerId": "w1",
        "status": "pending",
        "client": "client:1",
        "pool": "chromium",
        "run": "nightly",
        "proxy": "p1",
    }
    assert grid.get("ZRANGE", "sessions:live:chromium:w1", 0, -1, "WITHSCORES") == [["s1", int(NOW + 7)]]
    assert grid.get("ZRANGE", "sessions:index", 0, -1) == ["s1"]
    assert 890 < grid.get("TTL", "session:s1") <= 900


def test_the_same_session_gets_the_same_slot_again(grid: LuaGrid) -> None:
    workers(grid, a=(0, 5), b=(0, 5))
    assert [grid.select("s1"), grid.select("s1")] == ["a", "a"]
    assert (grid.active("a"), grid.active("b"), grid.lifetime("a")) == (1, 0, 6)


def test_selecting_again_without_the_first_worker_takes_its_lease_back(grid: LuaGrid) -> None:
    workers(grid, a=(0, 5), b=(0, 0))
    assert grid.select("s1") == "a"
    assert grid.select("s1", exclude="a") == "b"
    assert (grid.active("a"), grid.lifetime("a"), grid.live("a")) == (0, 5, [])
    assert (grid.active("b"), grid.lifetime("b"), grid.live("b")) == (1, 1, ["s1"])
    assert grid.session("s1")["workerId"] == "b"


def test_a_pending_session_whose_worker_s_key_has_run_out_gets_another_worker(grid: LuaGrid) -> None:
    workers(grid, a=(0, 5), b=(0, 0))
    assert grid.select("s1") == "a"
    grid.get("DEL", "worker:chromium:a")
    assert grid.select("s1") == "b"
    assert (grid.active("a"), grid.lifetime("a"), grid.live("a")) == (0, 5, [])
    assert (grid.active("b"), grid.lifetime("b"), grid.live("b")) == (1, 1, ["s1"])


def test_taking_an_excluded_lease_back_wakes_who_waits(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register("a", slots=1)
    assert [grid.select("s1"), grid.select("s2")] == ["a", None]
    with redis.listening(f"{grid.prefix}slots:chromium") as heard:
        assert grid.select("s1", exclude="a") is None
        assert len(heard()) == 1
    assert grid.select("s2") == "a"


def test_taking_an_excluded_lease_back_takes_the_shutdown_back(grid: LuaGrid) -> None:
    workers(grid, a=(0, 1), b=(0, 0))
    assert grid.select("s1", max_lifetime=2, only="a") == "a"
    assert grid.select("s1", max_lifetime=2, exclude="a") == "b"
    assert grid.get("EXISTS", "worker:cmd:chromium:a") == 0


# Callers without a session id, who take their slot back themselves


def test_what_a_caller_without_a_session_id_has_is_not_repaired_away(grid: LuaGrid) -> None:
    grid.register()
    assert [grid.select(), grid.select()] == ["w1", "w1"]
    grid.select("s1")
    grid.start("s1")
    assert grid.heartbeat(sessions=("s1",), lifetime="1") == (1, "", 0)
    assert (grid.active(), grid.lifetime(), grid.repairs()) == (3, 3, 0)
    for left in (2, 1):
        grid.get("HINCRBY", "cluster:active_connections", "chromium:w1", -1)
        assert grid.heartbeat(sessions=("s1",), lifetime="1") == (1, "", 0)
        assert (grid.active(), grid.lifetime(), grid.repairs()) == (left, 3, 0)
    grid.release("s1")
    assert grid.heartbeat(lifetime="1") == (1, "", 0)
    assert (grid.active(), grid.lifetime(), grid.repairs()) == (0, 3, 0)


@pytest.mark.parametrize(("wrong", "right", "by"), [(9, 2, -7), (0, 1, 1), (-5, 1, 6)])
def test_a_wrong_counter_is_repaired_beside_such_a_caller(grid: LuaGrid, wrong: int, right: int, by: int) -> None:
    """One that is too low may have been taken back by that caller: no slot stays taken for nobody."""
    grid.register()
    assert grid.select() == "w1"
    grid.select("s1")
    grid.start("s1")
    grid.get("HSET", "cluster:active_connections", "chromium:w1", wrong)
    assert grid.heartbeat(sessions=("s1",), lifetime="1") == (1, "", by)
    assert (grid.active(), grid.repairs()) == (right, 1)


def test_such_a_caller_s_slot_outlives_a_registration(grid: LuaGrid) -> None:
    grid.register()
    grid.select()
    assert grid.register(lifetime=0) == 1
    assert grid.heartbeat(lifetime="0") == (1, "", 0)
    assert (grid.active(), grid.lifetime(), grid.repairs()) == (1, 1, 0)


def test_who_waits_hears_that_such_a_caller_took_its_slot_back(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register(slots=1)
    grid.select()
    assert grid.select("s1") is None
    grid.get("HINCRBY", "cluster:active_connections", "chromium:w1", -1)
    with redis.listening(f"{grid.prefix}slots:chromium") as heard:
        grid.heartbeat(lifetime="0")
        assert len(heard()) == 1


def test_a_session_that_ran_is_not_selected_again(grid: LuaGrid) -> None:
    grid.register()
    grid.select("s1")
    grid.start("s1")
    assert grid.select("s1") is None
    grid.release("s1")
    assert grid.select("s1") is None
    assert (grid.active(), grid.status("s1")) == (0, "completed")


def test_a_session_whose_worker_died_before_it_started_is_selected_again(grid: LuaGrid) -> None:
    grid.register("a")
    grid.select("s1")
    grid.reap(only="chromium:a", reason="worker lost")
    assert grid.status("s1") == "failed"
    grid.register("b")
    assert grid.select("s1") == "b"
    assert (grid.status("s1"), grid.active("b")) == ("pending", 1)
    assert (grid.outcomes(), grid.taken_back()) == ({"failed": 1}, {"failed": 1})


def in_lists(grid: LuaGrid, kind: str = "session") -> tuple[list[str], list[str]]:
    """The newest, and those that live beside them."""
    newest, live = (grid.get("ZRANGE", f"{kind}s:index{which}", 0, -1) for which in ("", ":live"))
    return newest, live


def test_the_index_keeps_the_newest_sessions_and_apart_from_them_those_that_live(grid: LuaGrid) -> None:
    grid.register(slots=9)
    for number in range(6):
        grid.select(f"s{number}", now=NOW + number, max_active=9, history_max=4)
        if number == 1:
            grid.start("s0")
            grid.start("s1")
            grid.release("s1")
    assert in_lists(grid) == (["s2", "s3", "s4", "s5"], ["s0"])
    assert grid.get("ZSCORE", "sessions:index:live", "s0") == NOW
    grid.release("s0")
    assert in_lists(grid) == (["s2", "s3", "s4", "s5"], [])


@pytest.mark.parametrize("kind", ["session", "lease"])
def test_where_nothing_is_kept_of_the_past_lists_still_have_who_lives(grid: LuaGrid, kind: str) -> None:
    one, other = (Lease("l1"), Lease("l2")) if kind == "lease" else ("s1", "s2")
    grid.register()
    for each in (one, other):
        assert grid.select(each, history_max=0) == "w1"
    assert in_lists(grid, kind) == ([], [kind_id_lease(each)[1] for each in (one, other)])
    grid.rollback(one)
    grid.start(other)
    grid.release(other)
    assert in_lists(grid, kind) == ([], [])


def test_a_session_whose_end_was_presumed_wrongly_is_in_lists_again(grid: LuaGrid) -> None:
    grid.register(slots=9)
    for number in range(3):
        grid.select(f"s{number}", now=NOW + number, max_active=9, history_max=2)
        if not number:
            grid.start("s0")
            grid.heartbeat()
    assert in_lists(grid) == (["s1", "s2"], [])
    grid.heartbeat(sessions=("s0",))
    assert grid.status("s0") == "running"
    assert in_lists(grid) == (["s0", "s1", "s2"], [])
    grid.reap(history_max=2)
    assert in_lists(grid) == (["s1", "s2"], ["s0"])


def test_the_selection_that_reaches_the_lifetime_limit_sends_the_worker_home(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register()
    with redis.listening(f"{grid.prefix}worker:cmd:chromium:w1") as heard:
        grid.select("s1", max_lifetime=2)
        assert grid.get("EXISTS", "worker:cmd:chromium:w1") == 0
        grid.select("s2", max_lifetime=2, command_ttl=7)
        assert grid.get("GET", "worker:cmd:chromium:w1") == "shutdown"
        assert 0 < grid.get("TTL", "worker:cmd:chromium:w1") <= 7
        assert heard() == ["shutdown"]
    assert grid.heartbeat(sessions=("s1", "s2")) == (1, "shutdown", 0)
    assert grid.select("s3", max_lifetime=2) is None


def test_a_selection_that_finds_none_leaves_word_that_somebody_waits(grid: LuaGrid) -> None:
    assert grid.select("s1") is None
    assert grid.get("EXISTS", "slots:wanted:chromium") == 1
    assert grid.get("EXISTS", "slots:wanted:firefox") == 0


# Many of them


def test_fifty_selections_in_one_pipeline_never_pass_a_limit(grid: LuaGrid) -> None:
    for worker, slots in (("a", 5), ("b", 3), ("c", 9)):
        grid.register(worker, slots=slots)
    source = source_of("selector")
    with grid.client.pipeline(transaction=False) as pipeline:
        for number in range(50):
            pipeline.eval(source, 2, *grid.counters, "chromium", 5, 50, NOW, 30, grid.prefix, f"s{number}", 10)
        replies = pipeline.execute()
    assert Counter(reply is None for reply in replies) == {False: 13, True: 37}
    assert [grid.active(worker) for worker in "abc"] == [5, 3, 5]
    assert [len(grid.live(worker)) for worker in "abc"] == [5, 3, 5]


@pytest.mark.parametrize(("count", "max_lifetime"), [(2, 10), (3, 10), (3, 24), (5, 12), (8, 6)])
def test_recycles_are_staggered_over_a_long_run(grid: LuaGrid, count: int, max_lifetime: int) -> None:
    """Sequential sessions; a worker that is spent is replaced at once. Ends spread: never two within half a share."""
    serial = count
    for number in range(count):
        grid.register(f"{number:04}")
    ends: list[int] = []
    for step in range(max_lifetime * count * 6):
        session = f"s{step}"
        worker = grid.select(session, max_lifetime=max_lifetime)
        assert worker is not None
        grid.start(session)
        grid.release(session)
        if grid.lifetime(worker) == max_lifetime:
            ends.append(step)
            grid.unregister(worker)
            grid.register(f"{serial:04}")
            serial += 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    settled = gaps[2 * count :]
    assert settled
    assert min(settled) >= max(1, max_lifetime // count // 2)
    assert sum(settled) / len(settled) == pytest.approx(max_lifetime, rel=0.25)


# Spares


def test_a_spare_is_not_chosen_and_does_not_move_the_border(grid: LuaGrid) -> None:
    grid.register("spare", status="spare")
    assert grid.select("a") is None
    for worker, lifetime in (("old", 30), ("new", 10)):
        grid.register(worker, lifetime=lifetime)
    assert grid.select("b", max_lifetime=50) == "new"  # two workers: the border is 25, with three it would be 34
    assert grid.hash("worker:chromium:spare")["status"] == "spare"


def test_the_step_that_uses_a_worker_up_lets_one_spare_serve(grid: LuaGrid) -> None:
    grid.register("w1", lifetime=8)
    for spare in ("y", "x"):
        grid.register(spare, status="spare")
    assert grid.select("a", max_lifetime=10) == "w1"
    assert {grid.hash(f"worker:chromium:{spare}")["status"] for spare in "xy"} == {"spare"}
    assert grid.select("b", max_lifetime=10) == "w1"
    assert grid.hash("worker:chromium:w1")["replacement"] == "x"
    assert [grid.hash(f"worker:chromium:{spare}")["status"] for spare in "xy"] == ["available", "spare"]
    assert grid.select("c", max_lifetime=10) == "x"


def test_only_a_spare_of_the_same_type_that_beats_serves(grid: LuaGrid) -> None:
    grid.register("w1", lifetime=9)
    grid.register("stale", status="spare", now=NOW - 31)
    grid.register("fox", status="spare", browser="firefox")
    assert grid.select("a", max_lifetime=10) == "w1"
    assert "replacement" not in grid.hash("worker:chromium:w1")
    assert grid.hash("worker:chromium:stale")["status"] == "spare"
    assert grid.hash("worker:firefox:fox")["status"] == "spare"


def test_a_spare_that_serves_wakes_who_waits(grid: LuaGrid) -> None:
    grid.register("w1", lifetime=8)
    grid.register("spare", status="spare")
    assert grid.select("a", max_active=1, max_lifetime=10) == "w1"
    assert grid.select("b", max_active=1, max_lifetime=10) is None
    assert grid.get("EXISTS", "slots:wanted:chromium") == 1
    assert grid.select("c", max_active=2, max_lifetime=10) == "w1"
    assert grid.get("EXISTS", "slots:wanted:chromium") == 0


def test_a_spare_serves_by_the_documented_contract_alone(client: Redis) -> None:
    outsider_worker(client, "chromium:old", lifetime=49)
    outsider_worker(client, "chromium:spare", status="spare")
    assert outsider_select(client) == "ws://chromium:old"
    assert outsider_select(client) == "ws://chromium:spare"


# Pools


def test_a_pool_gets_its_own_workers_alone_and_no_pool_gets_all_of_the_type(grid: LuaGrid) -> None:
    grid.register("a", pool="appa", lifetime=5)
    grid.register("b", pool="appb")
    grid.register("plain")
    assert grid.select("s1", pool="appb") == "b"
    assert grid.select("s2", pool="chromium") == "plain"  # a worker that says no pool is of that of its type
    assert grid.select("s3") == "a"
    assert grid.select("s4", pool="nope") is None
    assert [grid.session(each)["pool"] for each in ("s1", "s2", "s3")] == ["appb", "chromium", "appa"]


def test_the_border_is_that_of_the_pool(grid: LuaGrid) -> None:
    grid.register("a", pool="appa", lifetime=30)
    grid.register("b", pool="appa", lifetime=20)
    for other in "cdefgh":
        grid.register(other, pool="appb")
    assert grid.select("s1", pool="appa") == "b"  # 2 workers: border at 50 - 25; 8 would have it at 50 - 6
    assert grid.select("s2") == "a"


def test_only_a_spare_of_the_same_pool_takes_the_place_of_a_worker(grid: LuaGrid) -> None:
    grid.register("old", pool="appb", lifetime=49)
    grid.register("a", pool="appa", status="spare")
    assert grid.select("s1") == "old"
    assert "replacement" not in grid.hash("worker:chromium:old")
    grid.register("older", pool="appb", lifetime=49)
    grid.register("b", pool="appb", status="spare")
    assert grid.select("s2", pool="appb") == "older"
    assert grid.hash("worker:chromium:older")["replacement"] == "b"
    assert grid.hash("worker:chromium:a")["status"] == "spare"


def test_a_freed_slot_wakes_who_waits_for_its_pool_and_nobody_else(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register("a", pool="appa", slots=1)
    grid.register("b", pool="appb", slots=1)
    assert [grid.select("s1", pool="appa"), grid.select("s2", pool="appb")] == ["a", "b"]
    assert [grid.select("s3", pool="appa"), grid.select("s4", pool="appb")] == [None, None]
    with redis.listening(f"{grid.prefix}slots:appa") as mine, redis.listening(f"{grid.prefix}slots:appb") as others:
        grid.rollback("s1")
        assert (len(mine()), len(others())) == (1, 0)
    assert grid.get("EXISTS", "slots:wanted:appb") == 1
    assert grid.select("s3", pool="appa") == "a"


def test_a_freed_slot_wakes_also_who_waits_for_any_worker_of_the_type(grid: LuaGrid, redis: RedisServer) -> None:
    grid.register("a", pool="appa", slots=1)
    assert [grid.select("s1", pool="appa"), grid.select("s2")] == ["a", None]
    with redis.listening(f"{grid.prefix}slots:chromium") as heard:
        grid.release("s1")
        assert len(heard()) == 1
    assert grid.select("s2") == "a"


# Several hosts

HERE, THERE, ELSEWHERE = "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"


def chosen(grid: LuaGrid, session: str, *, prefer: str = "", avoid: str = "", only: str = "") -> str | None:
    hosts = {"prefer:host": prefer, "avoid:hosts": avoid}
    return grid.select(session, only=only, extra=tuple(text for pair in hosts.items() if pair[1] for text in pair))


def test_the_preferred_host_s_workers_come_first_and_the_others_once_these_are_full(grid: LuaGrid) -> None:
    grid.register("own", lifetime=3, slots=2, host=HERE)
    grid.register("other", lifetime=20, slots=2, host=THERE)
    grid.register("alone", lifetime=30, slots=2)
    assert chosen(grid, "plain") == "alone"  # the plain rule: without the argument hosts do not matter
    assert [chosen(grid, f"s{number}", prefer=HERE) for number in range(4)] == ["own", "own", "alone", "other"]
    assert grid.session("s0")["host"] == HERE
    assert "host" not in grid.session("s2")
    grid.start("s0", worker="own")
    grid.release("s0")
    assert chosen(grid, "s5", prefer=HERE) == "own"
    assert chosen(grid, "s6", prefer=ELSEWHERE) == "other"  # a host that has none of its own


def test_a_preferred_host_s_worker_comes_first_even_where_its_life_is_nearly_over(grid: LuaGrid) -> None:
    grid.register("own", lifetime=48, host=HERE)
    grid.register("young", lifetime=3, host=THERE)
    assert chosen(grid, "s1", prefer=HERE) == "own"
    assert chosen(grid, "s2") == "young"


def test_no_worker_of_an_avoided_host_is_chosen(grid: LuaGrid) -> None:
    grid.register("own", lifetime=30, host=HERE)
    grid.register("other", host=THERE)
    assert chosen(grid, "s1", prefer=HERE, avoid=HERE) == "other"
    assert chosen(grid, "s2", avoid=f"{HERE},{THERE}") is None
    assert chosen(grid, "s3", avoid=HERE, only="own") is None
    assert chosen(grid, "s4", avoid=THERE, only="own") == "own"


def test_a_worker_whose_host_was_changed_by_hand_is_not_chosen_as_one_of_the_other(grid: LuaGrid) -> None:
    grid.register("w1", host=HERE)
    assert chosen(grid, "s1", avoid=THERE) == "w1"
    grid.get("HSET", "worker:chromium:w1", "host", THERE)
    assert chosen(grid, "s2", avoid=THERE) is None
    assert chosen(grid, "s3", prefer=THERE, avoid=HERE) == "w1"


def test_a_pool_with_an_at_sign_is_no_host(grid: LuaGrid) -> None:
    grid.register("w1", pool=f"appa@{HERE}")
    grid.register("w2", pool="appa", host=HERE)
    for pool, worker in ((f"appa@{HERE}", "w1"), ("appa", "w2")):
        assert grid.select(f"of {pool}", pool=pool, extra=("avoid:hosts", THERE)) == worker
    assert chosen(grid, "s1", avoid=HERE) == "w1"


def test_a_used_up_worker_is_replaced_by_a_spare_of_its_own_host(grid: LuaGrid) -> None:
    grid.register("a_spare", status="spare", host=THERE)
    grid.register("b_spare", status="spare", host=HERE)
    grid.register("used", lifetime=49, host=HERE)
    assert chosen(grid, "s1") == "used"
    assert grid.hash("worker:chromium:used")["replacement"] == "b_spare"
    assert grid.hash("worker:chromium:a_spare")["status"] == "spare"
