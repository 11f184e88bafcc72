"""What the Redis schema promises to operators and other programs, done as they do it: by redis-cli, on a running grid.

The fake browser server stands in for Playwright: nothing here depends on what a browser does.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from pwgrid.common.paths import resource_dir
from pwgrid.registry.embedded_redis_config import find_redis_cli
from tests.support.grid import Grid, eventually, running_grid
from tests.support.kill_table_row import workers
from tests.support.raw import answer, goes_on, head, session

LONG = {"MAX_LIFETIME_SESSIONS": "5000"}
"""Too long for spares, however slowly browsers start, and yet to be used up by a counter."""

NO_BEAT = {
    **LONG,
    "HEARTBEAT_INTERVAL": "600",
    "STALE_THRESHOLD": "1000",
    "REDIS_KEY_TTL": "2000",
    "SHUTDOWN_COMMAND_TTL": "3000",
    "REAPER_RUN_INTERVAL": "4000",
    "WORKER_LOST_THRESHOLD": "600",
}
"""Nothing that happens within a test was told by a heartbeat."""


def redis_cli(grid: Grid, *arguments: str) -> list[str]:
    """The lines that redis-cli prints where no terminal is: one for each value."""
    command = [str(find_redis_cli()), "-s", str(grid.runtime / "redis" / "redis.sock"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def fields(grid: Grid, key: str) -> dict[str, str]:
    flat = redis_cli(grid, "HGETALL", key)
    if flat == [""]:  # so it prints that there is nothing
        return {}
    return dict(zip(flat[::2], flat[1::2], strict=True))


def script(name: str) -> str:
    return str(resource_dir("lua") / f"{name}.lua")


def now() -> str:
    return str(int(time.time()))


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "2", environment={**LONG, "HEARTBEAT_INTERVAL": "1"}, fake=True) as grid:
        yield grid


def two_beats(grid: Grid, key: str) -> None:
    """Returns once the worker has renewed its record twice."""
    before = int(fields(grid, key)["lastHeartbeat"])
    eventually(lambda: int(fields(grid, key)["lastHeartbeat"]) >= before + 2, "heartbeats")


def test_workers_are_listed_and_their_fields_are_read(grid: Grid) -> None:
    keys = redis_cli(grid, "--scan", "--pattern", "worker:chromium:*")
    assert sorted(keys) == sorted(f"worker:{name}" for name in fields(grid, "cluster:active_connections"))
    assert {key.rpartition(":")[2] for key in keys} == workers(grid).keys()
    for key in keys:
        record = fields(grid, key)
        assert (record["browserType"], record["status"]) == ("chromium", "available")
        assert record["wsEndpoint"].startswith(f"{grid.endpoint}/playwright/chromium/{key.rpartition(':')[2]}.")
        assert abs(int(record["lastHeartbeat"]) - time.time()) < 60
        assert 0 < int(redis_cli(grid, "TTL", key)[0]) <= 30


def test_both_counters_are_read(grid: Grid) -> None:
    before = {name: fields(grid, name) for name in ("cluster:active_connections", "cluster:lifetime_connections")}
    with session(grid.port) as sock:
        assert goes_on(sock)
        eventually(lambda: sum(map(int, fields(grid, "cluster:active_connections").values())) == 1, "it counts")
        assert sum(map(int, fields(grid, "cluster:lifetime_connections").values())) == 1 + sum(
            map(int, before["cluster:lifetime_connections"].values())
        )
    eventually(lambda: fields(grid, "cluster:active_connections") == before["cluster:active_connections"], "free again")


def test_a_worker_is_chosen_and_the_caller_gives_its_slot_back(grid: Grid) -> None:
    """Heartbeats take neither from it: +1 by the script, -1 by its caller."""
    repairs = redis_cli(grid, "GET", "cluster:counter_repairs")
    counters = ("cluster:active_connections", "cluster:lifetime_connections")
    lived = sum(map(int, fields(grid, counters[1]).values()))
    (endpoint,) = redis_cli(grid, "--eval", script("selector"), *counters, ",", "chromium", "5", "50", now())
    name = f"chromium:{endpoint.rpartition('/')[2].partition('.')[0]}"
    two_beats(grid, f"worker:{name}")
    assert fields(grid, counters[0])[name] == "1"
    with session(grid.port, target=endpoint.removeprefix(grid.endpoint)) as sock:
        assert goes_on(sock)
        eventually(lambda: fields(grid, counters[0])[name] == "2", "its own session has a slot of its own")
        assert redis_cli(grid, "HINCRBY", counters[0], name, "-1") == ["1"]
        two_beats(grid, f"worker:{name}")
        assert fields(grid, counters[0])[name] == "1"
    eventually(lambda: fields(grid, counters[0])[name] == "0", "free again")
    assert sum(map(int, fields(grid, counters[1]).values())) == lived + 2
    assert redis_cli(grid, "GET", "cluster:counter_repairs") == repairs


def test_stale_workers_are_reaped(grid: Grid) -> None:
    for name, beat in (("dead", "1"), ("alive", now())):
        redis_cli(grid, "HSET", f"worker:firefox:{name}", "wsEndpoint", "ws://x", "lastHeartbeat", beat)
    redis_cli(grid, "HSET", "cluster:active_connections", "firefox:gone", "3")
    with open(script("reaper"), encoding="utf-8") as source:
        assert redis_cli(grid, "EVAL", source.read(), "0", now(), "30") == ["2"]
    assert redis_cli(grid, "--scan", "--pattern", "worker:firefox:*") == ["worker:firefox:alive"]
    assert fields(grid, "cluster:active_connections").keys() == {f"chromium:{worker}" for worker in workers(grid)}
    redis_cli(grid, "DEL", "worker:firefox:alive")


def test_a_poisoned_lifetime_is_repaired_and_clients_come_in_again(grid: Grid) -> None:
    for name in fields(grid, "cluster:lifetime_connections"):
        redis_cli(grid, "HSET", "cluster:lifetime_connections", name, "1000000")
    with session(grid.port) as sock:
        assert goes_on(sock)


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300"])
def test_what_is_no_figure_is_answered_as_0(grid: Grid, value: str) -> None:
    name = next(iter(fields(grid, "cluster:active_connections")))
    redis_cli(grid, "HSET", "cluster:active_connections", "webkit:poison", value)
    redis_cli(grid, "HSET", "worker:webkit:poison", "rssMib", value, "startedAt", value, "slots", value)
    redis_cli(grid, "HSET", "session:poison", "createdAt", value, "bytesIn", value, "status", "completed")
    redis_cli(grid, "ZADD", "sessions:index", "inf", "poison")
    redis_cli(grid, "HSET", f"worker:{name}", "rssMib", value)
    try:
        for path in ("/metrics", "/v1/status", "/v1/workers", "/v1/sessions?limit=1", "/v1/sessions/poison"):
            status, _, body = grid.get(path)
            assert status == 200, (path, body)
        found = json.loads(grid.get("/v1/sessions?limit=1")[2])
        assert [each["id"] for each in found["sessions"]] == ["poison"]
        assert grid.get(f"/v1/sessions?limit=1&cursor={found['cursor']}")[0] == 200
        with session(grid.port) as sock:
            assert goes_on(sock)
    finally:
        redis_cli(grid, "HDEL", "cluster:active_connections", "webkit:poison")
        redis_cli(grid, "ZREM", "sessions:index", "poison")
        redis_cli(grid, "DEL", "worker:webkit:poison", "session:poison")


@pytest.mark.parametrize("master", ["frozen", "absent"])
def test_an_operator_s_shutdown_is_heard_before_any_heartbeat_and_without_the_master(master: str) -> None:
    with running_grid("--chromium", "2", environment=NO_BEAT, fake=True) as grid:
        with session(grid.port) as sock:
            eventually(lambda: grid.active() == 1, "it is on record")
            active = fields(grid, "cluster:active_connections")
            victim, other = (name.partition(":")[2] for name in sorted(active, key=lambda each: -int(active[each])))
            if master == "frozen":
                os.kill(grid.process.pid, signal.SIGSTOP)
            else:
                grid.kill_master()
            redis_cli(grid, "SET", f"worker:cmd:chromium:{victim}", "shutdown", "EX", "60")
            eventually(lambda: fields(grid, f"worker:chromium:{victim}")["status"] == "draining", "it drains")
            assert fields(grid, f"worker:chromium:{other}")["status"] == "available"
            assert goes_on(sock)
        eventually(lambda: fields(grid, f"worker:chromium:{victim}") == {}, "it goes once its session has ended")
        if master == "frozen":
            os.kill(grid.process.pid, signal.SIGCONT)
        else:
            grid.start_again()
        eventually(lambda: victim not in workers(grid) and len(workers(grid)) == 2, "it is replaced")


def test_a_shutdown_that_is_published_is_heard_too() -> None:
    """A Redis of the user's own may not tell of keys."""
    with running_grid("--chromium", "1", environment=NO_BEAT, fake=True) as grid:
        (victim,) = workers(grid)
        redis_cli(grid, "CONFIG", "SET", "notify-keyspace-events", "")
        redis_cli(grid, "SET", f"worker:cmd:chromium:{victim}", "shutdown", "EX", "60")
        assert redis_cli(grid, "PUBLISH", f"worker:cmd:chromium:{victim}", "shutdown") == ["1"]
        eventually(lambda: victim not in workers(grid) and workers(grid), "it is replaced")


def test_a_pool_of_which_redis_would_choose_no_worker_is_not_ready_and_says_why() -> None:
    environment = NO_BEAT | {"WORKER_SELECT_TIMEOUT": "0.3"}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        names = fields(grid, "cluster:lifetime_connections")
        first, second = names
        redis_cli(grid, "HSET", "cluster:lifetime_connections", first, "1000000")
        assert grid.get("/health/ready")[0] == 200  # the other one can be chosen
        redis_cli(grid, "HSET", f"worker:{second}", "lastHeartbeat", "nan")
        used_up = "1 used up (cluster:lifetime_connections says 5000 sessions or more)"
        stale = "1 without a heartbeat for over 1000 s"
        sentence = "no chromium worker can be chosen: in Redis "
        for path, said in (("/health/ready", "error"), ("/v1/status", "reason")):
            status, _, body = grid.get(path)
            found = json.loads(body)[said]
            assert status == {"error": 503, "reason": 200}[said]
            assert found in (f"{sentence}{used_up}, {stale}", f"{sentence}{stale}, {used_up}")
        assert b"pwgrid_ready 0.0" in grid.get("/metrics")[2]
        status, headers, body = answer(grid.port, head())
        assert (status, headers["retry-after"]) == (503, "5")
        assert body["error"].startswith(sentence)
        for name, lifetime in names.items():
            redis_cli(grid, "HSET", "cluster:lifetime_connections", name, lifetime)
        assert grid.get("/health/ready")[0] == 200
        with session(grid.port) as sock:
            assert goes_on(sock)
