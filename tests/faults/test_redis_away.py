"""An external Redis goes away and comes back: live sessions go on, new ones come, workers are replaced meanwhile, and
afterwards the records are exact. And what needs Redis says so in time."""

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.async_api import Playwright
from websockets.sync.client import connect as connect_cdp

from pwgrid.cli import token as tokens
from pwgrid.common.launch_failure import without_places
from pwgrid.registry.session_update import SessionUpdate
from pwgrid.registry.spool import write_spool_file
from pwgrid.tokens.tokens import Role
from tests.conftest import need
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, free_port, running_grid
from tests.support.kill_table_row import workers
from tests.support.leases import request
from tests.support.load import Load, under_load
from tests.support.raw import answer, connect, goes_on, head, session
from tests.support.redis import RedisServer

SESSIONS = 3
SETTINGS = {
    "HEARTBEAT_INTERVAL": "1",
    "REDIS_KEY_TTL": "4",  # shorter than any outage here: the keys of workers run out in a frozen Redis
    "MAX_LIFETIME_SESSIONS": "15",  # workers come and go all the time
    "MAX_CONCURRENT_SESSIONS": "8",
    "DRAIN_TIMEOUT": "120",  # none of the live sessions is to be cut
    "WORKER_SELECT_TIMEOUT": "30",  # a browser may start slowly on a busy machine
}


@pytest.fixture
def tcp_redis() -> Iterator[tuple[RedisServer, str]]:
    """A Redis of the test's own that also listens on a TCP port, and its URL there."""
    port = free_port()
    server = RedisServer("--port", str(port), "--bind", "127.0.0.1")
    yield server, f"redis://127.0.0.1:{port}"
    server.close()


def serving(grid: Grid) -> set[str]:
    return {name for name, worker in workers(grid).items() if worker["status"] == "available"}


async def outage(grid: Grid, load: Load, seconds: float) -> None:
    """Redis is away for so long, and until one worker has begun and another one has left without it; nobody notices."""
    began, before = len(grid.output()), await asyncio.to_thread(serving, grid)

    def is_done() -> bool:
        output = grid.output()[began:]
        return time.monotonic() >= until and "registration_put_off" in output and "stopped_without_redis" in output

    until = time.monotonic() + seconds
    async with asyncio.timeout(seconds + 150):
        while not is_done():
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])
    assert await asyncio.to_thread(serving, grid) - before


def ends(grid: Grid) -> Counter[str]:
    """How the recorded sessions ended. A selection that Redis makes when nobody waits for it any more has no client;
    what became of its lease is left out."""
    records = [
        [each.decode() if each else "" for each in grid.redis("HMGET", key, "status", "reason", "startedAt")]
        for key in grid.redis("KEYS", "session:*")
    ]
    return Counter(
        f"{status}: {reason}"
        for status, reason, started_at in records
        if started_at or status not in ("expired", "failed")
    )


def pairs(grid: Grid, key: str) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in grid.redis("HGETALL", key).items()}


def what_redis_says(grid: Grid) -> dict[str, Any]:
    return {
        "active": pairs(grid, "cluster:active_connections"),
        "lifetime": pairs(grid, "cluster:lifetime_connections"),
        "records": {key.decode() for key in grid.redis("KEYS", "worker:*:*")},
        "live": grid.redis("KEYS", "*s:live:*"),
        "directories": {path.name for path in (grid.runtime / "w").iterdir()},
        "unwritten": list(grid.runtime.glob("unwritten/*")),
        "ends": ends(grid),
    }


def what_is(grid: Grid, completed: int) -> dict[str, Any]:
    """Idle workers and perhaps spares, no trace of others, and every session with its own end on record."""
    found = workers(grid)
    lifetimes = {f"chromium:{name}": worker["lifetime"] for name, worker in found.items()}
    return {
        "active": dict.fromkeys(lifetimes, 0),
        "lifetime": lifetimes,
        "records": {f"worker:{name}" for name in lifetimes},
        "live": [],
        "directories": found.keys(),
        "unwritten": [],
        "ends": {"completed: client disconnected": completed},
    }


async def the_records_are_exact(grid: Grid, completed: int) -> None:
    def exact() -> bool:
        statuses = {worker["status"] for worker in workers(grid).values()}
        return statuses <= {"available", "spare"} and what_redis_says(grid) == what_is(grid, completed)

    try:
        await eventually_async(exact, "the records are exact", 40)
    except AssertionError:
        assert what_redis_says(grid) == what_is(grid, completed)
        raise


@pytest.mark.timeout(400)
async def test_a_redis_that_is_frozen_costs_nothing_and_knows_everything_afterwards(
    playwright: Playwright, own_redis: RedisServer
) -> None:
    need("chromium")
    with running_grid("--chromium", "2", environment={**SETTINGS, "REDIS_URL": own_redis.url}) as grid:
        async with under_load(grid, playwright, SESSIONS) as load:
            own_redis.signal(signal.SIGSTOP)
            try:
                await outage(grid, load, 8)
            finally:
                own_redis.signal(signal.SIGCONT)
            await load.goes_on()
            await eventually_async(lambda: SESSIONS <= grid.active() <= SESSIONS + 1, "the counters are true")
        assert (load.lost, load.refused) == ({}, [])
        await the_records_are_exact(grid, SESSIONS + load.connects)


@pytest.mark.timeout(400)
async def test_a_redis_that_is_stopped_for_30_s_and_comes_back_empty_learns_everything(
    playwright: Playwright, tcp_redis: tuple[RedisServer, str]
) -> None:
    need("chromium")
    server, url = tcp_redis
    lifetime = {"MAX_LIFETIME_SESSIONS": "40"}  # some workers for each, for so long
    with running_grid("--chromium", "2", environment={**SETTINGS, **lifetime, "REDIS_URL": url}) as grid:
        async with under_load(grid, playwright, SESSIONS) as load:
            async with load.at_the_door:
                await eventually_async(lambda: grid.active() == SESSIONS, "the last newcomer is on record")
                forgotten = load.connects
                server.terminate()
            await outage(grid, load, 30)
            server.start()
            await load.goes_on()
            await eventually_async(lambda: SESSIONS <= grid.active() <= SESSIONS + 1, "the counters are true")
        assert (load.lost, load.refused) == ({}, [])
        await the_records_are_exact(grid, SESSIONS + load.connects - forgotten)


# The fake browser server stands in for Playwright from here on: nothing depends on what a browser does.


@contextlib.contextmanager
def frozen(redis: RedisServer) -> Iterator[None]:
    redis.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        redis.signal(signal.SIGCONT)


def error_of(grid: Grid, path: str, method: str = "GET") -> tuple[int, str]:
    status, _, body = answer(grid.port, head(method, path, Upgrade=None, Connection="close"))
    return status, body.get("error", "")


def test_no_request_waits_longer_for_a_frozen_redis_than_its_timeout(own_redis: RedisServer) -> None:
    """The error names how long it was waited for: first by the command itself, then by the attempt to connect."""
    environment = {**WITHOUT_SPARES, "REDIS_URL": own_redis.url, "REDIS_TIMEOUT": "0.3", "HEARTBEAT_INTERVAL": "1"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        with session(grid.port), frozen(own_redis):
            waited = "within 0.3 s"
            for _ in range(2):
                for path in ("/v1/status", "/v1/workers", "/v1/sessions", "/v1/sessions/abc"):
                    status, error = error_of(grid, path)
                    assert (status, waited in error) == (503, True), (path, error)
                assert "the registry does not answer" in error
                status, error = error_of(grid, "/v1/sessions/abc", "DELETE")
                assert (status, waited in error) == (503, True), error
                status, error = error_of(grid, "/playwright/chromium/abc.secret")
                assert status == 426, error
                status, _, text = grid.get("/metrics")
                assert (status, b"\npwgrid_redis_up 0.0\n" in text) == (200, True)
                assert b"\npwgrid_workers{" in text
            assert error_of(grid, "/health")[0] == 200
            assert error_of(grid, "/health/ready")[0] == 200
            (worker,) = workers(grid)
            assert error_of(grid, f"/v1/workers/{worker}/drain", "POST")[0] == 202
            eventually(lambda: worker not in serving(grid) and serving(grid), "it drains, and another one serves")
        eventually(lambda: error_of(grid, "/v1/status")[0] == 200, "Redis is back")


def test_who_waits_in_line_is_served_although_redis_cannot_say_that_a_slot_is_free(own_redis: RedisServer) -> None:
    environment = {
        **WITHOUT_SPARES,
        "REDIS_URL": own_redis.url,
        "MAX_CONCURRENT_SESSIONS": "1",
        "WORKER_SELECT_TIMEOUT": "60",
    }
    environment["HEARTBEAT_INTERVAL"] = "1"
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        with session(grid.port):
            pass  # its end uses up what a worker that has just started tells anyway
        with session(grid.port) as first, connect(grid.port) as second:
            second.sendall(head())
            eventually(lambda: b'"waiting":1' in grid.get("/v1/status")[2], "the second one waits")
            with frozen(own_redis):
                first.close()
                assert second.recv(4096).startswith(b"HTTP/1.1 101")
        eventually(lambda: grid.active() == 0, "the counters are true again")


def test_who_waits_in_line_is_served_by_a_worker_that_starts_while_redis_is_away(own_redis: RedisServer) -> None:
    environment = {**WITHOUT_SPARES, "REDIS_URL": own_redis.url, "FAKE_START_MS": "500", "WORKER_SELECT_TIMEOUT": "60"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        (victim,) = workers(grid).values()
        with frozen(own_redis):
            with session(grid.port):  # which finds out that Redis is away
                pass
            for pid in (victim["pid"], victim["nodePid"]):
                os.kill(pid, signal.SIGKILL)
            with session(grid.port) as sock:
                assert goes_on(sock)
        eventually(lambda: grid.active() == 0, "the counters are true again")
        assert "registration_put_off" in grid.output()


def test_who_waits_in_line_as_redis_goes_away_is_served_by_a_worker_that_starts_then(own_redis: RedisServer) -> None:
    """Nobody else comes, who would find out that Redis is away."""
    environment = {
        **WITHOUT_SPARES,
        "REDIS_URL": own_redis.url,
        "MAX_CONCURRENT_SESSIONS": "1",
        "WORKER_SELECT_TIMEOUT": "60",
    }
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        with session(grid.port), connect(grid.port) as second:
            second.sendall(head())
            eventually(lambda: b'"waiting":1' in grid.get("/v1/status")[2], "the second one waits")
            own_redis.kill()
            grid.command("scale", "chromium=2")
            assert second.recv(4096).startswith(b"HTTP/1.1 101")
        own_redis.start()
        eventually(lambda: grid.active() == 0, "the counters are true again")


def test_a_worker_that_dies_while_redis_is_away_is_succeeded(own_redis: RedisServer) -> None:
    environment = {**WITHOUT_SPARES, "REDIS_URL": own_redis.url, "HEARTBEAT_INTERVAL": "1"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        (victim,) = workers(grid).values()
        with session(grid.port) as before:
            eventually(lambda: grid.active() == 1, "Redis knows the first one")
            with frozen(own_redis), session(grid.port) as meanwhile:
                os.kill(victim["pid"], signal.SIGKILL)
                eventually(lambda: workers(grid).get(victim["id"], victim)["pid"] != victim["pid"], "succeeded")
                eventually(lambda: serving(grid), "another one serves")
                assert goes_on(before)
                assert goes_on(meanwhile)
            assert goes_on(before)
        eventually(lambda: ends(grid) == {"completed: client disconnected": 2}, f"both are on record: {ends(grid)}")
        eventually(lambda: victim["id"] not in workers(grid), "it is gone")
        eventually(lambda: grid.redis("KEYS", f"worker:*:{victim['id']}") == [], "and nothing is left of it", 40)


def test_sessions_begun_without_redis_belong_to_their_token_and_count_once_it_is_back(own_redis: RedisServer) -> None:
    """Redis comes back empty, and is emptied again when the worker has a successor, which nobody has told."""
    with tempfile.TemporaryDirectory(prefix="pgtok-") as directory:
        config = Path(directory) / "grid.toml"
        config.write_text('[[pools]]\nname = "appa"\nlabels = ["AppA:Chromium:UAT"]\nslots = 4\n')
        place = tokens.Place(config.with_name("tokens.json"))
        ci, other = (tokens.create(place, name, Role.CLIENT, most, ())[0] for name, most in (("ci", 2), ("other", 0)))
        environment = {"PWGRID_CONFIG": str(config), "REDIS_URL": own_redis.url, "HEARTBEAT_INTERVAL": "1"}
        with running_grid(environment={**environment, "WORKER_SELECT_TIMEOUT": "0.5"}, fake=True) as grid:
            assert f"chromium.connect('{grid.endpoint}/?token=YOUR_TOKEN')" in grid.output()
            own_redis.kill()
            target = f"/?labels=appa:Chromium:UAT&name=Smoke%2012&token={ci}"
            session(grid.port, target).close()
            with session(grid.port, target) as named, session(grid.port, f"/?token={ci}"):
                own_redis.start()
                both_belong(grid, ci, other)
                (worker,) = (each for each in workers(grid).values() if each["active"])
                os.kill(worker["pid"], signal.SIGKILL)
                eventually(lambda: workers(grid)[worker["id"]]["pid"] not in (worker["pid"], None), "it is succeeded")
                own_redis.command("FLUSHALL")
                (mine,) = (each for each in both_belong(grid, ci, other) if each["name"])
                path = f"/v1/sessions/{mine['id']}"
                assert request(grid, "DELETE", path, Authorization=f"Bearer {other}").status == 404
                assert request(grid, "DELETE", path, Authorization=f"Bearer {ci}").status == 202
                assert b"an operator ended it" in named.recv(4096)
            eventually(lambda: grid.active() == 0, "the slots are free")


def both_belong(grid: Grid, ci: str, other: str) -> list[dict[str, Any]]:
    """The two sessions of the token `ci`, which may have no further one."""
    seen: list[dict[str, Any]] = eventually(lambda: owned(grid, ci, 2), "both belong to their token")
    assert owned(grid, other, 0) == []
    assert {(each["labels"], each["name"], each["token"]) for each in seen} == {
        ("appa:Chromium:UAT", "Smoke 12", "ci"),
        (None, None, "ci"),
    }
    status, _, body = answer(grid.port, head(target=f"/?token={ci}"))
    assert (status, body["maxSessions"]) == (429, 2)
    return seen


def owned(grid: Grid, token: str, number: int) -> list[dict[str, Any]]:
    """The running sessions that a token sees; nothing while they are not so many."""
    found = request(grid, "GET", "/v1/sessions?status=running", Authorization=f"Bearer {token}")
    sessions = found.body.get("sessions", [])
    return sessions if len(sessions) == number else []


def test_what_a_worker_left_unwritten_survives_the_death_of_master_and_proxy(own_redis: RedisServer) -> None:
    environment = {**WITHOUT_SPARES, "REDIS_URL": own_redis.url, "HEARTBEAT_INTERVAL": "1"}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        with frozen(own_redis):
            (victim, _) = workers(grid)
            for _ in range(4):
                session(grid.port).close()
            grid.command("drain", victim)
            eventually(lambda: victim not in workers(grid), "it has left")
            proxy = grid.status()["proxy"]["pid"]
            grid.kill_master()
            os.kill(proxy, signal.SIGKILL)
            grid.start_again()
        eventually(lambda: ends(grid) == {"completed: client disconnected": 4}, f"all are on record: {ends(grid)}")
        eventually(lambda: list(grid.runtime.glob("unwritten/*")) == [], "nothing is left to write")
        eventually(lambda: grid.redis("KEYS", f"worker:*:{victim}") == [], "nothing is left of the worker")


def test_a_grid_that_never_had_its_redis_says_so_and_serves_once_it_is_there(own_redis: RedisServer) -> None:
    own_redis.kill()
    environment = {
        **WITHOUT_SPARES,
        "REDIS_URL": own_redis.url,
        "REDIS_RETRY_ATTEMPTS": "2",
        "REDIS_RETRY_DELAY": "0.1",
        "REDIS_TIMEOUT": "0.2",
    }
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        (pool,) = (pool for pool in grid.status()["pools"] if pool["wanted"])
        assert f"no Redis at {own_redis.url} within 0.3 s (2 attempts)" in pool["reason"]
        assert pool["available"] == 0
        status, error = error_of(grid, "/health/ready")
        reason = f"no chromium worker is available: {without_places(pool['reason'])}"  # for who is not on this host
        again = re.compile(r" \(\d+ early deaths in a row\)")  # by then it may have been tried once more
        assert (status, again.sub("", error)) == (503, again.sub("", reason))
        own_redis.start()
        eventually(lambda: serving(grid), "it serves", 60)
        with session(grid.port) as sock:
            assert goes_on(sock)


def test_what_workers_left_unwritten_is_written_before_the_grid_ends(own_redis: RedisServer) -> None:
    """Redis comes back after the last worker has gone, and before the proxy goes."""
    with running_grid("--chromium", "1", environment={**WITHOUT_SPARES, "REDIS_URL": own_redis.url}, fake=True) as grid:
        with frozen(own_redis):
            for _ in range(3):
                session(grid.port).close()
            grid.process.send_signal(signal.SIGTERM)
            eventually(lambda: "stopped_without_redis" in grid.output(), "the worker has left", 40)
        assert grid.process.wait(40) == 0
        grid.prove_gone()
    assert own_redis.command("HGETALL", "sessions:outcomes")["completed"] == "3"
    assert own_redis.command("KEYS", "worker:*") == []


def test_what_a_frozen_redis_leases_for_nobody_when_it_wakes_is_given_back(own_redis: RedisServer) -> None:
    """It executes the selection then that it has not answered; its lease would hold a slot for LAUNCH_TIMEOUT."""
    need("chromium")
    environment = {**WITHOUT_SPARES, "ISOLATION": "browser", "REDIS_URL": own_redis.url}
    with running_grid("--chromium", "1", environment=environment) as grid:
        own_redis.signal(signal.SIGSTOP)
        with contextlib.ExitStack() as client:
            try:
                client.enter_context(connect_cdp(f"{grid.endpoint}/cdp"))  # served without Redis
            finally:
                own_redis.signal(signal.SIGCONT)
            eventually(lambda: grid.active() == 1, "its session has a slot, and nobody else")
        eventually(lambda: grid.active() == 0, "no slot is taken")
        assert grid.redis("KEYS", "sessions:live:*") == []
        (session_of_client,) = json.loads(grid.get("/v1/sessions")[2])["sessions"]
        assert session_of_client["status"] == "completed"


def test_a_proxy_that_is_replaced_meanwhile_reports_nothing_as_lost_that_the_next_one_writes() -> None:
    server = RedisServer()
    environment = {**WITHOUT_SPARES, "REDIS_URL": server.url}
    with contextlib.closing(server), running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        server.kill()
        eventually(lambda: "redis_connection_lost" in grid.output(), "it is missed")
        write_spool_file(grid.runtime, "chromium", "0000000a", [SessionUpdate("s1", time.time(), "c:1")])
        proxy = grid.status()["proxy"]["pid"]
        assert grid.command("upgrade", "--force").returncode == 0
        eventually(lambda: not psutil.pid_exists(proxy), "it has ended")
        assert "session_updates_lost" not in grid.output()
        server.start()
        eventually(lambda: "session_updates_written worker=0000000a" in grid.output(), "the next one has written it")
