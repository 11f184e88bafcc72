"""What an operator's commands do to a grid that runs, without a browser."""

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pwgrid import __version__
from pwgrid.cli.installed import fingerprint
from pwgrid.settings.model import NO_POOL
from tests.support.grid import Grid, processes_marked, running_grid


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "1", environment={"MAX_QUEUE": "7"}, fake=True) as grid:
        yield grid


def test_config_show_asks_the_running_grid_for_its_settings(grid: Grid) -> None:
    shown = grid.command("config", "show", "--running")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"# what the grid on port {grid.port} has since its start or last reload")
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows["max_queue"] == ["7", "environment", "MAX_QUEUE"]
    table = json.loads(grid.command("config", "show", "--running", "--json").stdout)
    assert table["port"]["value"] == grid.port  # the flag was 0: any free one
    assert table["chromium_workers"] == {"value": 1, "unit": "", "source": "--chromium"}
    assert grid.command("config", "show", "--running", "--chromium", "3").returncode == 2


def parts(grid: Grid) -> dict[str, int]:
    """The pids of the proxy and of the workers that serve, by name."""
    found = grid.status()
    serving = {worker["id"]: worker["pid"] for worker in found["workers"] if worker["status"] == "available"}
    return {**serving, "proxy": found["proxy"]["pid"]}


def test_an_upgrade_to_what_runs_already_replaces_nothing_unless_by_force(grid: Grid) -> None:
    before = parts(grid)
    done = grid.command("upgrade")
    assert (done.returncode, done.stdout.startswith("nothing to do: ")) == (0, True), done
    assert parts(grid) == before
    forced = grid.command("upgrade", "--force")
    assert "the master, the proxy and 1 workers run the new code" in forced.stdout
    assert parts(grid).keys() & before.keys() == {"proxy"}
    assert grid.status()["master"]["pid"] == grid.process.pid


def test_a_restart_replaces_every_process_but_the_master_s_pid(grid: Grid) -> None:
    before = parts(grid)
    assert grid.command("restart").returncode == 0
    after = parts(grid)
    assert (after.keys() & before.keys(), after["proxy"] == before["proxy"]) == ({"proxy"}, False)


def test_an_upgrade_takes_settings_and_browsers_that_have_changed(tmp_path: Path) -> None:
    file, browser = tmp_path / "grid.toml", tmp_path / "chromium"
    file.write_text(f"[pools]\nchromium_workers = 1\n[browsers]\nchromium_executable = '{browser}'\n")
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    with running_grid("--config", str(file), fake=True) as grid:
        assert "nothing to do" in grid.command("upgrade").stdout
        browser.write_text("#!/bin/sh\n# newer\n")
        assert "run the new code" in grid.command("upgrade").stdout
        assert "nothing to do" in grid.command("upgrade").stdout
        file.write_text(file.read_text() + "[queue]\nmax_queue = 7\n")
        assert "run the new code" in grid.command("upgrade").stdout


def test_another_file_of_the_code_is_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "chromium").write_text("1")
    executables = [str(tmp_path / "chromium")]
    before = fingerprint(executables)
    assert fingerprint(executables) == before
    (tmp_path / "chromium").write_text("22")
    assert fingerprint(executables) != before
    assert fingerprint([]) not in (before, fingerprint(executables))


def test_logs_shows_the_file_that_the_log_goes_to(grid: Grid) -> None:
    done = grid.command("logs", "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == grid.output().splitlines()[-3:]


def test_version_has_what_is_installed_and_what_runs(grid: Grid) -> None:
    found = json.loads(grid.command("version", "--json").stdout)
    assert found["pwgrid"] == __version__
    assert {"endpoint": grid.endpoint, "pid": grid.process.pid, "version": __version__} in found["running"]
    assert f"{grid.endpoint} runs {__version__}" in grid.command("version").stdout


def test_stop_ends_a_grid_and_returns_when_it_has_gone() -> None:
    with running_grid("--chromium", "1", fake=True) as grid:
        done = grid.command("stop")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "stopped"), done
        assert grid.process.wait(0) == 0
        assert "no grid is running here" in grid.command("status", "--port", str(grid.port)).stderr


def test_status_and_stop_know_a_grid_whose_master_has_gone(tmp_path: Path) -> None:
    log = tmp_path / "grid.log"
    environment = {"DETACH_GRACE": "600", "DRAIN_TIMEOUT": "60", "LOG_FILE": str(log)}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        grid.process.send_signal(signal.SIGUSR1)
        assert grid.process.wait(20) == 0
        status = grid.command("status", "--json")
        assert status.returncode == 3
        found = json.loads(status.stdout)
        assert (found["endpoint"], found["master"]) == (grid.endpoint, None)
        assert found["endsAt"] - found["detachedAt"] == 660
        assert {child["kind"] for child in found["children"]} == {"proxy", "redis", "worker"}
        assert "refuses clients in " in found["reason"]
        assert f"the grid on port {grid.port} has no master: detached since" in grid.command("drain", "--all").stderr
        assert "detached" in grid.command("logs").stdout
        done = grid.command("stop")  # which waits for no other master
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "stopped"), done
        assert processes_marked(grid.mark) == {}
    assert "grid_ended_without_master" in log.read_text()


def test_a_dead_master_is_told_of_as_well() -> None:
    with running_grid("--chromium", "1", fake=True) as grid:
        grid.kill_master()
        status = grid.command("status")
        assert (status.returncode, "no master  it died" in status.stdout) == (3, True), status
        grid.start_again()
        assert grid.status()["master"]["pid"] == grid.process.pid


def test_what_serve_refuses_scale_refuses_with_the_same_sentence(grid: Grid) -> None:
    scaled = grid.command("scale", "chromium=0")
    served = grid.command("serve", "--port", "0", "--chromium", "0")
    assert (scaled.returncode, served.returncode) == (1, 2)
    assert scaled.stderr == f"pwgrid: {NO_POOL}\n"
    assert NO_POOL in served.stderr


def ready_line(grid: Grid) -> str:
    return next(line for line in grid.output().splitlines() if "ready: " in line)


def test_the_ready_line_has_an_address_for_other_hosts_where_it_listens_for_them() -> None:
    with running_grid("--chromium", "1", "--host", "0.0.0.0", "--token", "s3cret-s3cret-s3cret", fake=True) as grid:
        local, others = re.findall(r"chromium\.connect\('(ws://[^']*)'\)", ready_line(grid))
        assert local == f"ws://127.0.0.1:{grid.port}/?token=YOUR_TOKEN"
        assert others.endswith(f":{grid.port}/?token=YOUR_TOKEN")
        host = urlsplit(others).hostname
        assert host not in (None, "0.0.0.0", "127.0.0.1", "localhost")
        with urllib.request.urlopen(f"http://{host}:{grid.port}/health", timeout=10) as answer:
            assert answer.status == 200
        assert "s3cret" not in grid.output()


def test_the_ready_line_of_a_local_grid_names_no_other_host(grid: Grid) -> None:
    assert f"connect with chromium.connect('{grid.endpoint}')" in ready_line(grid)
    assert "other hosts" not in ready_line(grid)
