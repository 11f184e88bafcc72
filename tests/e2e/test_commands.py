"""The commands, as a user types them."""

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.conftest import need
from tests.support.grid import ROOT, Grid, eventually, running_grid


def pwgrid(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pwgrid", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def without_a_start(grid: Grid) -> dict[str, Any] | None:
    """The status while no worker starts: one that does has not told its slots."""
    found = grid.status()
    return None if any(worker["status"] == "starting" for worker in found["workers"]) else found


def test_status_tells_what_there_is(grid: Grid) -> None:
    found = eventually(lambda: without_a_start(grid), "no worker starts")
    assert found["endpoint"] == grid.endpoint
    assert found["master"]["pid"] == grid.process.pid
    assert psutil.pid_exists(found["proxy"]["pid"])
    assert psutil.pid_exists(found["redis"]["pid"])
    assert found["redis"]["url"].startswith("unix://")
    chromium = next(pool for pool in found["pools"] if pool["browserType"] == "chromium")
    assert (chromium["wanted"], chromium["slots"]) == (2, 5 * chromium["available"])
    assert chromium["available"] >= 2  # more when one of them is nearly used up by the tests before
    for worker in found["workers"]:
        assert worker["browserType"] == "chromium"
        assert worker["active"] == 0
        assert worker["slots"] == 5
        assert {"id", "pid", "status", "lifetime"} <= worker.keys()


def test_status_for_people_is_a_table(grid: Grid) -> None:
    done = grid.command("status")
    assert done.returncode == 0
    assert grid.endpoint in done.stdout
    for word in ("POOL", "WORKER", "chromium", "available"):
        assert word in done.stdout


def test_redis_cli_reaches_the_grids_own_redis(grid: Grid) -> None:
    done = grid.command("redis-cli", "HLEN", "cluster:active_connections")
    assert done.returncode == 0
    assert int(done.stdout) >= 2


def test_a_second_master_on_the_same_port_is_refused_with_the_pid_of_the_first(grid: Grid) -> None:
    done = grid.command("serve", "--port", str(grid.port))
    assert done.returncode == 1
    assert str(grid.process.pid) in done.stderr


def test_a_bad_configuration_is_refused_with_every_violation() -> None:
    done = pwgrid(
        "config", "check", environment={"HEARTBEAT_INTERVAL": "20", "REDIS_KEY_TTL": "nonsense", "LOG_FORMAT": "xml"}
    )
    assert done.returncode == 2
    for name in ("redis_key_ttl", "log_format"):
        assert name in done.stderr
    done = pwgrid("serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "allow" in done.stderr.lower()


def test_config_show_names_the_sources() -> None:
    done = pwgrid("config", "show", "--port", "9000", environment={"DRAIN_TIMEOUT": "7"})
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "--port" in rows["port"]
    assert "environment" in rows["drain_timeout"]
    assert "default" in rows["heartbeat_interval"]


def test_asking_for_webkit_where_it_cannot_be_had_says_how_to_get_it() -> None:
    done = pwgrid(
        "serve", "--port", "0", "--chromium", "0", "--webkit", "1", environment={"PLAYWRIGHT_BROWSERS_PATH": "/nowhere"}
    )
    assert done.returncode != 0
    assert "webkit" in done.stderr.lower()
    assert "install" in done.stderr.lower()


def test_setup_says_what_it_found() -> None:
    need("chromium")
    done = pwgrid("setup", "--chromium", "1")
    assert done.returncode == 0
    assert "chromium" in done.stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_grid_and_leaves_nothing_behind(signum: signal.Signals) -> None:
    need("chromium")
    with running_grid("--chromium", "1") as grid:
        port = grid.port
        assert grid.stop(signum) == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_the_ready_line_says_how_to_connect(grid: Grid) -> None:
    ready = next(line for line in grid.output().splitlines() if "ready:" in line)
    assert f"chromium.connect('{grid.endpoint}')" in ready
    assert "launching" in grid.output()
    assert json.loads(json.dumps(grid.ready))["pid"] == grid.process.pid
