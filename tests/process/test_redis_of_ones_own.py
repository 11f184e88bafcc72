"""A grid on a Redis of the user's own: with the rights of the ACL line alone, and while that Redis takes no writes.

The fake browser server stands in for Playwright: nothing here depends on what a browser does.
"""

import json
import os
import shlex
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pwgrid.registry.rights import acl_line
from pwgrid.settings.load import load
from pwgrid.setup.doctor_checks import _redis as doctor_of_redis
from tests.support.fake_grid import PROGRAM
from tests.support.grid import ROOT, Grid, eventually, running_grid
from tests.support.kill_table_row import workers
from tests.support.leases import borrow, give_back
from tests.support.raw import goes_on, session
from tests.support.recipes import recipe
from tests.support.redis import RedisServer

PASSWORD = "hunter2"
SETTINGS = {"HEARTBEAT_INTERVAL": "1", "MAX_LIFETIME_SESSIONS": "4", "MAX_CONCURRENT_SESSIONS": "2"}


def acl_of_the_page() -> list[str]:
    """The words of docs/redis.md behind redis-cli, with a password."""
    redis_cli, *words = shlex.split(recipe("redis.md", "sh", "ACL SETUSER").replace("\\\n", " "))
    assert redis_cli == "redis-cli"
    assert words == acl_line("pwgrid")
    return [word.replace("PASSWORD", PASSWORD) for word in words]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    # A directory of its own for what it saves, which a test takes away.
    saved = tempfile.TemporaryDirectory(prefix="pwgrid-gone-", ignore_cleanup_errors=True)
    with saved as place, closing(RedisServer("--dir", place)) as server:
        server.command(*acl_of_the_page())
        yield server


@pytest.fixture(scope="module")
def grid(redis: RedisServer) -> Iterator[Grid]:
    """Uses the Redis as the user of the page; the test asks it as the default user, who may do all."""
    environment = {
        **SETTINGS,
        "PWGRID_REDIS_URL": redis.url.replace("://", f"://pwgrid:{PASSWORD}@"),
        "REDIS_URL": redis.url,
        "POOL_CONFIG": "AppA:Chromium:UAT=2",
        "MAX_SESSIONS_PER_RUN": "5",
    }
    with running_grid(environment=environment, fake=True) as grid:
        yield grid


def test_the_acl_line_of_the_page_is_all_that_a_grid_needs(grid: Grid, redis: RedisServer) -> None:
    assert grid.ready["ready"]
    before = workers(grid).keys()
    for _ in range(9):  # more than one worker has in its life
        session(grid.port).close()
    with session(grid.port, "/?name=smoke&run=nightly"):
        session(grid.port, borrow(grid, run="nightly")["target"]).close()
        assert give_back(grid, borrow(grid, run="nightly"))
    eventually(lambda: before - workers(grid).keys(), "one that was used up has left")
    victim = next(name for name, worker in workers(grid).items() if worker["status"] == "available")
    assert grid.command("drain", victim).returncode == 0
    for path in ("/metrics?by=worker", "/v1/status", "/v1/sessions", "/v1/leases", "/v1/workers", "/health/ready"):
        assert grid.get(path)[0] == 200, path
    for command in ("status", "sessions"):
        assert grid.command(command).returncode in (0, 3), command
    eventually(lambda: victim not in workers(grid), "it has left")
    assert redis.command("ACL", "LOG") == []
    assert "Redis refused" not in grid.output()


def healthy(grid: Grid) -> bool:
    ready = grid.get("/health/ready")
    return (ready[0], json.loads(ready[2])) == (200, {"status": "ready"}) and grid.command("status").returncode == 0


def to_a_replica(redis: RedisServer) -> Callable[[], object]:
    redis.command("REPLICAOF", "127.0.0.1", "1")
    return lambda: redis.command("REPLICAOF", "NO", "ONE")


def with_full_memory(redis: RedisServer) -> Callable[[], object]:
    redis.command("CONFIG", "SET", "maxmemory", "1")
    return lambda: redis.command("CONFIG", "SET", "maxmemory", "0")


def with_a_full_disk(redis: RedisServer) -> Callable[[], object]:
    """A directory that is gone stands for it: there, too, no save succeeds."""
    os.rmdir(redis.command("CONFIG", "GET", "dir")["dir"])
    redis.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
    redis.command("CONFIG", "SET", "save", "1 1")
    redis.command("BGSAVE")
    eventually(lambda: redis.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err", "the save fails")
    return lambda: redis.command("CONFIG", "SET", "save", "")


def without_rights(redis: RedisServer) -> Callable[[], object]:
    redis.command("ACL", "SETUSER", "pwgrid", "-evalsha")
    return lambda: redis.command("ACL", "SETUSER", "pwgrid", "+evalsha")


@pytest.mark.parametrize(
    ("becomes", "what"),
    [
        (with_full_memory, "it takes no writes, since its memory is full (OOM command not allowed"),
        (to_a_replica, "it takes no writes, since it is a replica (READONLY You can't write"),
        (with_a_full_disk, "it takes no writes, since it cannot save to its disk (MISCONF Redis is configured"),
        (without_rights, "its user may not do all that the grid does (NOPERM this user has no permissions"),
    ],
)
def test_a_redis_that_answers_and_takes_no_writes_is_one_truth_everywhere(
    grid: Grid, redis: RedisServer, becomes: Callable[[RedisServer], Callable[[], object]], what: str
) -> None:
    eventually(lambda: healthy(grid), "all is well before")
    back = becomes(redis)
    if becomes in (with_full_memory, without_rights):  # the records of workers run out
        redis.command("DEL", *redis.command("KEYS", "worker:*"))
    with session(grid.port) as sock:
        assert goes_on(sock)
        status, _, body = grid.get("/health/ready")
        assert (status, json.loads(body)["status"]) == (200, "ready")
        assert json.loads(body)["degraded"].startswith(f"clients are served without Redis: {what}")
        shown = grid.command("status")
        assert shown.returncode == 3
        first, second, *_ = shown.stdout.splitlines()
        assert "  serving  " in first
        assert what in second
        assert "meanwhile" in second
        found = json.loads(grid.get("/v1/status")[2])
        assert (found["ready"], found["degraded"]) == (True, json.loads(body)["degraded"])
        metrics = grid.get("/metrics")[2]
        assert b"\npwgrid_redis_writable 0.0\n" in metrics
        assert b"\npwgrid_ready 1.0\n" in metrics
        back()
        eventually(lambda: grid.active() == 1, "the session is on record")
    eventually(lambda: healthy(grid), "all is well again")
    eventually(lambda: grid.active() == 0, "and the counters are true")


def test_status_and_readiness_agree_where_redis_would_choose_no_worker(grid: Grid, redis: RedisServer) -> None:
    eventually(lambda: healthy(grid), "all is well before")

    def both_say_so() -> bool:
        for key in redis.command("KEYS", "worker:chromium:*"):  # heartbeats repair it again and again
            redis.command("HSET", key, "lastHeartbeat", "0")
        ready, shown = grid.get("/health/ready"), grid.status()
        return ready[0] == 503 and shown["reason"] == json.loads(ready[2])["error"]

    eventually(both_say_so, "both are not ready, for the same reason")


# Starts


def lacking(redis: RedisServer) -> str:
    """The URL of a user that may do all but run scripts."""
    redis.command("ACL", "SETUSER", "poor", "reset", "on", f">{PASSWORD}", "+@all", "~*", "&*", "-evalsha")
    return redis.url.replace("://", f"://poor:{PASSWORD}@")


class SaysOk(socketserver.BaseRequestHandler):
    """A server that answers `+OK` to everything."""

    def handle(self) -> None:
        while self.request.recv(1 << 16):
            self.request.sendall(b"+OK\r\n")


@pytest.fixture
def no_redis() -> Iterator[str]:
    """The URL of a server that is none."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), SaysOk) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"redis://:{PASSWORD}@127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()
        thread.join()


def started_by_hand(url: str) -> "subprocess.CompletedProcess[str]":
    ours = ("PWGRID", "INVOCATION_ID", "NOTIFY_SOCKET", "SUPERVISOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with tempfile.TemporaryDirectory(prefix="pg-") as place:
        return subprocess.run(
            [*PROGRAM, "serve", "--port", "0"],
            env={**environment, "TMPDIR": place, "PWGRID_REDIS_URL": url, "REDIS_RETRY_DELAY": "1000"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def test_a_start_by_hand_that_trying_again_cannot_help_ends_at_once_with_one_sentence(no_redis: str) -> None:
    done = started_by_hand(no_redis)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1  # which Redis it uses
    (line,) = done.stderr.splitlines()
    said = "no Redis: what answers there is no Redis (its answer makes no sense): correct host and port in the URL"
    assert line.startswith(f"pwgrid: {said} (redis://127.0.0.1:")
    assert PASSWORD not in done.stdout + done.stderr


def test_a_service_says_what_its_user_lacks_and_serves_as_soon_as_that_is_given(redis: RedisServer) -> None:
    environment = {"PWGRID_REDIS_URL": lacking(redis), "REDIS_URL": redis.url, "REDIS_RETRY_DELAY": "1000"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        lacks = "its user may not do all that the grid does (user poor: no evalsha): `pwgrid doctor` prints"
        assert (grid.ready["ready"], lacks in grid.ready["reason"]) == (False, True)
        status, _, body = grid.get("/health/ready")
        assert (status, lacks in json.loads(body)["error"]) == (503, True)
        redis.command("ACL", "SETUSER", "poor", "+evalsha")
        eventually(lambda: grid.get("/health/ready")[0] == 200, "it serves")


@pytest.mark.parametrize(
    ("variables", "unset"),
    [
        ({"REDIS_URL": "{url}"}, "unset REDIS_URL"),
        ({"PWGRID_REDIS_URL": "{url}"}, "unset PWGRID_REDIS_URL"),
        ({"REDIS_HOST": "127.0.0.1", "REDIS_PORT": "1"}, "unset REDIS_HOST"),
        ({"PWGRID_CONFIG": "{file}"}, "take redis_url out of {file}"),
    ],
)
def test_doctor_says_what_is_wrong_and_names_what_named_the_redis(
    redis: RedisServer, tmp_path: Path, variables: dict[str, str], unset: str
) -> None:
    url = lacking(redis)
    file = tmp_path / "grid.toml"
    file.write_text(f'[redis]\nredis_url = "{url}"\n')
    environment = {name: value.format(url=url, file=file) for name, value in variables.items()}
    finding = doctor_of_redis(load(None, environment, {}))
    assert finding.level == "bad"
    assert finding.to_do.endswith(f"; or {unset.format(file=file)} for a private one")
    if "REDIS_HOST" in variables:
        assert "nothing listens there (Connection refused)" in finding.found
        return
    assert "(user poor: no evalsha)" in finding.found
    administrator, line = finding.to_do.removesuffix(f"; or {unset.format(file=file)} for a private one").split(": ", 1)
    assert administrator == "as its administrator"
    redis.command(*(word.replace("PASSWORD", PASSWORD) for word in shlex.split(line)[1:]))
    assert doctor_of_redis(load(None, environment, {})).level == "good"
