"""The index of the workers that a selection reads: what it has to find, and that it is only a cache."""

from collections.abc import Callable

import pytest

from tests.lua.model import NOW, LuaGrid
from tests.support.redis import RedisServer

KEYS = ("known", "parts", "part_of", "part:chromium:1.65:chromium", "spares", "foreign")


def calls(grid: LuaGrid, act: Callable[[], object]) -> int:
    """How many commands a script sends meanwhile."""
    grid.client.config_resetstat()
    act()
    stats = grid.client.info("commandstats")
    return sum(
        each["calls"] for name, each in stats.items() if name not in ("cmdstat_eval", "cmdstat_config|resetstat")
    )


def by_schema(grid: LuaGrid, worker: str, **changes: str) -> None:
    """Registers a worker as another program does that knows the schema alone."""
    fields = {"wsEndpoint": f"ws://host/{worker}", "status": "available", "lastHeartbeat": str(int(NOW))} | changes
    grid.get("HSET", f"worker:chromium:{worker}", *(text for pair in fields.items() for text in pair))
    grid.get("EXPIRE", f"worker:chromium:{worker}", 100)
    grid.set_counters(worker, 0, 0)


# It does not grow


@pytest.mark.parametrize("register", ["by its script", "by the schema"])
def test_a_selection_and_the_scripts_of_a_session_read_as_much_of_many_workers_as_of_few(
    grid: LuaGrid, register: str
) -> None:
    needed = {}
    for count in (10, 200):
        grid.client.flushall()
        for number in range(count):
            if register == "by its script":
                grid.register(f"w{number:03}")
            else:
                by_schema(grid, f"w{number:03}")
        grid.select("first")  # finds who has come
        grid.start("first")
        grid.release("first")
        needed[count] = [
            calls(grid, lambda: grid.select("s1")),
            calls(grid, lambda: grid.start("s1")),
            calls(grid, lambda: grid.heartbeat("w000", ("s1",), lifetime="2")),
            calls(grid, lambda: grid.release("s1")),
            calls(grid, lambda: grid.select("s2")),
            calls(grid, lambda: grid.rollback("s2")),
        ]
    assert needed[10] == needed[200]


def test_full_workers_are_not_read_one_by_one(grid: LuaGrid) -> None:
    """Whether a worker's own slots or the limit of the pool are taken."""
    needed = []
    for count in (4, 40):
        grid.client.flushall()
        for number in range(count + 1):
            grid.register(f"w{number:03}", slots=1 if number % 2 else None)
        assert None not in [grid.select(f"s{number}", max_active=1) for number in range(count)]
        needed.append(calls(grid, lambda: grid.select("last", max_active=1)))
        assert grid.status("last") == "pending"
    assert needed[0] == needed[1]


def test_the_reaper_reads_each_worker_as_often_however_many_there_are(grid: LuaGrid) -> None:
    needed = []
    for count in (20, 40, 60):
        for number in range(len(grid.client.hgetall(grid.counters[0])), count):
            grid.register(f"w{number:03}")
        needed.append(calls(grid, lambda: grid.reap()))
    assert needed[2] - needed[1] == needed[1] - needed[0]


# The scripts keep it


def places(grid: LuaGrid) -> dict[str, tuple[int, int]]:
    """Active and lifetime of each worker that may be chosen, by the index."""
    found = grid.get("ZRANGE", "cluster:index:part:chromium:1.65:chromium", 0, -1, "WITHSCORES")
    return {name: (round(place) % 2**20, -(round(place) // 2**20)) for name, place in found if place < 2**51}


def test_each_script_that_changes_a_counter_changes_the_index(grid: LuaGrid) -> None:
    def is_exact() -> bool:
        return places(grid) == {"chromium:w1": (grid.active("w1"), grid.lifetime("w1"))}

    grid.register("w1", lifetime=3)
    assert is_exact()
    assert [grid.select("s1"), grid.select("s2")] == ["w1", "w1"]
    assert is_exact()
    grid.start("s1")
    grid.start("unknown", worker="w1")
    assert grid.active("w1") == 3
    assert is_exact()
    grid.rollback("s2")
    assert is_exact()
    grid.release("s1")
    assert (grid.active("w1"), grid.lifetime("w1")) == (1, 4)
    assert is_exact()
    grid.select("s3", exclude="w1")
    grid.heartbeat("w1", lifetime="9")
    assert (grid.active("w1"), grid.lifetime("w1")) == (0, 9)
    assert is_exact()
    grid.unregister("w1")
    assert places(grid) == {}


@pytest.mark.parametrize("by", ["the command", "its heartbeat"])
def test_the_border_moves_when_a_worker_drains(grid: LuaGrid, by: str) -> None:
    for worker, lifetime in (("gone", 10), ("old", 30), ("young", 3)):
        grid.register(worker, lifetime=lifetime)
    if by == "the command":
        grid.drain("gone")
    else:
        grid.heartbeat("gone", lifetime="10", status="draining")
    assert grid.select() == "young"  # 2 serve: the border is 25; with 3 it would be 34


def test_a_spare_that_serves_moves_the_border(grid: LuaGrid) -> None:
    grid.register("used", lifetime=49)
    for worker, lifetime in (("old", 30), ("young", 3)):
        grid.register(worker, lifetime=lifetime)
    grid.register("spare", status="spare")
    assert grid.select("s1", only="used") == "used"
    assert grid.hash("worker:chromium:spare")["status"] == "available"
    grid.unregister("used")
    assert grid.select("s2") == "old"  # 3 serve


# Who is found


def test_a_worker_that_is_registered_by_the_schema_alone_is_found_at_once(grid: LuaGrid) -> None:
    grid.register("w1", slots=1)
    assert grid.select("s1") == "w1"
    by_schema(grid, "w2")
    assert grid.get("ZSCORE", "cluster:index:known", "chromium:w2") is None
    assert grid.select("s2") == "w2"
    by_schema(grid, "w0")
    grid.set_counters("w0", 1, 1)
    assert grid.select("s3") == "w0"


def test_a_worker_with_one_of_the_two_counters_is_found(grid: LuaGrid) -> None:
    grid.register("w1", slots=1)
    grid.select("s1")
    by_schema(grid, "w2")
    grid.get("HDEL", "cluster:lifetime_connections", "chromium:w2")
    assert grid.select("s2") == "w2"
    assert (grid.active("w2"), grid.lifetime("w2")) == (1, 1)


def test_a_program_s_worker_whose_heartbeats_no_script_sees_stays_in_the_grid(grid: LuaGrid) -> None:
    by_schema(grid, "w1")
    for later in range(0, 100, 25):
        grid.get("HSET", "worker:chromium:w1", "lastHeartbeat", int(NOW) + later)
        assert grid.select(f"s{later}", now=NOW + later + 1) == "w1"
    assert grid.select("late", now=NOW + 75 + 31) is None
    grid.get("HSET", "worker:chromium:w1", "lastHeartbeat", int(NOW) + 106)
    assert grid.select("again", now=NOW + 106) == "w1"


def test_a_program_that_serves_after_it_has_registered_is_found_at_once_if_nobody_else_is_free(grid: LuaGrid) -> None:
    by_schema(grid, "w1", status="starting")
    assert grid.select("s1") is None
    grid.get("HSET", "worker:chromium:w1", "status", "available")
    assert grid.select("s2") == "w1"


@pytest.mark.parametrize("register", ["by its script", "by the schema"])
def test_what_no_heartbeat_tells_is_read_again_after_some_seconds(grid: LuaGrid, register: str) -> None:
    grid.register("w2", now=NOW + 8)
    if register == "by its script":
        grid.register("w1", status="draining")
    else:
        by_schema(grid, "w1", status="draining")
    assert grid.select("s1") == "w2"
    grid.get("HSET", "worker:chromium:w1", "status", "available")
    grid.get("HSET", "cluster:lifetime_connections", "chromium:w1", 1)
    assert grid.select("s2", now=NOW + 10) == "w1"


def test_who_writes_its_counters_before_its_hash_is_found(grid: LuaGrid) -> None:
    grid.set_counters("w1", 0, 0)
    assert grid.select("s1") is None
    by_schema(grid, "w1")
    assert grid.select("s2") == "w1"


def test_a_slot_that_a_caller_without_a_session_gave_back_is_found_if_nobody_else_is_free(grid: LuaGrid) -> None:
    by_schema(grid, "w1", slots="1")
    assert [grid.select(), grid.select()] == ["w1", None]
    grid.get("HINCRBY", "cluster:active_connections", "chromium:w1", -1)
    assert grid.select() == "w1"


# What is done by hand, or by the scripts of a version before the index


def test_what_is_edited_by_hand_counts_with_the_next_heartbeat_and_wakes_who_waits(
    grid: LuaGrid, redis: RedisServer
) -> None:
    grid.register("w1", slots=1)
    assert [grid.select("s1"), grid.select("s2")] == ["w1", None]
    grid.start("s1")
    grid.get("HSET", "worker:chromium:w1", "slots", 2)
    with redis.listening(f"{grid.prefix}slots:chromium") as heard:
        grid.heartbeat("w1", ("s1",), lifetime="1")
        assert len(heard()) == 1
    assert grid.select("s2") == "w1"


@pytest.mark.parametrize("changes", [{"status": "draining"}, {"pool": "other"}, {"slots": "0"}, {"lastHeartbeat": "1"}])
def test_a_worker_that_is_not_eligible_any_more_is_not_chosen_whatever_the_index_says(
    grid: LuaGrid, changes: dict[str, str]
) -> None:
    for worker in ("w1", "w2"):
        grid.register(worker)
    assert grid.select("s1") == "w1"
    for name, value in changes.items():
        grid.get("HSET", "worker:chromium:w1", name, value)
    assert grid.select("s2", pool="chromium") == "w2"


def test_slots_that_an_older_script_has_taken_are_not_given_twice(grid: LuaGrid) -> None:
    grid.register("w1", slots=2)
    assert grid.select("s1") == "w1"
    for counter in grid.counters:
        grid.client.hincrby(counter, "chromium:w1", 1)
    assert grid.select("s2") is None
    assert (grid.active("w1"), grid.lifetime("w1")) == (2, 2)


def test_lifetimes_that_older_scripts_have_written_are_read_when_one_is_met(grid: LuaGrid) -> None:
    for worker in ("w1", "w2", "w3"):
        grid.register(worker)
    assert grid.select("s1") == "w1"
    grid.set_counters("w1", 1, 3)
    grid.set_counters("w3", 0, 5)
    assert grid.select("s2") == "w3"


def test_an_older_reaper_s_worker_is_gone(grid: LuaGrid) -> None:
    for worker in ("w1", "w2"):
        grid.register(worker)
    grid.select("s1", only="w1")
    grid.get("DEL", "worker:chromium:w1")
    for counter in grid.counters:
        grid.client.hdel(counter, "chromium:w1")
    assert grid.select("s2") == "w2"
    assert grid.get("ZRANGE", "cluster:index:known", 0, -1) == ["chromium:w2"]
    assert grid.active("w1") is None


def test_a_worker_without_counters_is_not_chosen_although_their_number_is_as_before(grid: LuaGrid) -> None:
    for worker in ("w1", "w2"):
        grid.register(worker)
    grid.select("s1", only="w2")
    for counter in grid.counters:
        grid.client.hdel(counter, "chromium:w1")
    by_schema(grid, "w3")
    assert grid.select("s2", exclude="w2") == "w3"
    assert grid.active("w1") is None


@pytest.mark.parametrize("value", ["many", "inf", "", "1.5"])
def test_a_counter_that_is_no_whole_number_is_written_anew(grid: LuaGrid, value: str) -> None:
    grid.register("w1")
    grid.get("HSET", "cluster:active_connections", "chromium:w1", value)
    grid.get("HSET", "cluster:lifetime_connections", "chromium:w1", value)
    assert grid.select("s1") == "w1"
    was = 1 if value == "1.5" else 0
    assert (grid.active("w1"), grid.lifetime("w1")) == (was + 1, was + 1)


def test_a_higher_limit_finds_who_was_full_by_a_lower_one(grid: LuaGrid) -> None:
    for worker in ("w1", "w2"):
        grid.register(worker, slots=None)
    assert [grid.select(f"s{number}", max_active=1) for number in range(3)] == ["w1", "w2", None]
    assert [grid.select(f"t{number}", max_active=2) for number in range(3)] == ["w1", "w2", None]
    assert grid.select("s9", max_active=1) is None
    assert grid.select("t9", max_active=3) == "w1"


# It is a cache


def filled(grid: LuaGrid) -> None:
    for worker in ("w1", "w2", "w3"):
        grid.register(worker)
    grid.register("spare", status="spare")
    by_schema(grid, "zz", pool="other")
    assert grid.select("s1") == "w1"
    grid.select("s2", only="w2")


@pytest.mark.parametrize("keys", [*((key,) for key in KEYS), KEYS], ids=lambda keys: " ".join(keys)[:30])
def test_any_of_its_keys_may_be_deleted(grid: LuaGrid, keys: tuple[str, ...]) -> None:
    filled(grid)
    assert all(grid.get("EXISTS", f"cluster:index:{key}") for key in KEYS)
    for key in keys:
        grid.get("DEL", f"cluster:index:{key}")
    chosen = [
        grid.select("s3"),
        grid.select("s4", pool="other"),
        grid.select("s5", exclude="w1"),
        grid.select("s6", only="w3"),
    ]
    assert chosen == ["w1", "zz", "w2", "w3"]


@pytest.mark.parametrize("keys", [*((key,) for key in KEYS), KEYS], ids=lambda keys: " ".join(keys)[:30])
def test_the_next_heartbeats_make_again_what_was_deleted(grid: LuaGrid, keys: tuple[str, ...]) -> None:
    filled(grid)
    for key in keys:
        grid.get("DEL", f"cluster:index:{key}")
    grid.start("s1")
    grid.start("s2")
    for worker, sessions in (("w1", ("s1",)), ("w2", ("s2",)), ("w3", ())):
        grid.heartbeat(worker, sessions, lifetime=str(len(sessions)))
    grid.heartbeat("spare", status="spare", lifetime="0")
    assert grid.select("s3", exclude="w1") == "w2"
    assert grid.select("s4", max_lifetime=2, only="w1") == "w1"
    assert grid.hash("worker:chromium:w1")["replacement"] == "spare"


def test_a_slot_that_comes_free_is_found_although_the_parts_of_workers_are_forgotten(grid: LuaGrid) -> None:
    grid.register("w1", slots=1)
    assert [grid.select("s1"), grid.select("s2")] == ["w1", None]
    grid.get("DEL", "cluster:index:part_of")
    grid.rollback("s1")
    assert grid.select("s2") == "w1"


def test_nothing_of_it_is_left_of_workers_that_are_gone(grid: LuaGrid) -> None:
    filled(grid)
    for worker in ("w1", "w2", "w3", "spare", "zz"):
        grid.unregister(worker)
    assert grid.client.keys(f"{grid.prefix}cluster:index:*") == []


def test_the_reaper_takes_out_of_it_who_is_gone(grid: LuaGrid) -> None:
    filled(grid)
    by_schema(grid, "w2", lastHeartbeat=str(int(NOW) + 31))
    assert grid.reap(now=NOW + 31) == 4
    assert grid.get("ZRANGE", "cluster:index:known", 0, -1) == ["chromium:w2"]
    assert grid.get("KEYS", "cluster:index:part:*") == [f"{grid.prefix}cluster:index:part:chromium:1.65:chromium"]
    assert grid.select("s3", now=NOW + 31, only="w2") == "w2"
