"""What an operator's commands do to a grid that runs, without a browser."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from pwgrid import __version__
from pwgrid.installed import running_parts
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.installed.running_parts import RunningParts
from pwgrid.registry import embedded_redis_config
from pwgrid.settings.load import load
from pwgrid.settings.model import NO_POOL
from tests.support import raw
from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, processes_marked, running_grid
from tests.support.terminal import on_terminal

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "1", environment={**WITHOUT_SPARES, "MAX_QUEUE": "7"}, fake=True) as grid:
        yield grid


def test_config_show_asks_the_running_grid_for_its_settings(grid: Grid) -> None:
    shown = grid.command("config", "show", "--running")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"# settings of the grid on port {grid.port} since its start or last reload")
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
    assert "the master, the proxy and 1 worker run the new code" in forced.stdout
    assert parts(grid).keys() & before.keys() == {"proxy"}
    assert grid.status()["master"]["pid"] == grid.process.pid


def test_a_restart_replaces_every_process_but_the_master_s_pid(grid: Grid) -> None:
    before = parts(grid)
    assert grid.command("restart").returncode == 0
    after = parts(grid)
    assert (after.keys() & before.keys(), after["proxy"] == before["proxy"]) == ({"proxy"}, False)


@pytest.fixture(scope="module")
def hindrances(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are that hinder `hindered`: `master` lets no master start, `worker` holds each worker's start.
    `redis-server` is what it starts as that."""
    directory = tmp_path_factory.mktemp("hindrances")
    (directory / "redis-server").symlink_to(embedded_redis_config.find_redis_server())
    return directory


@pytest.fixture(scope="module")
def hindered(hindrances: Path) -> Iterator[Grid]:
    environment = {
        **{**WITHOUT_SPARES, embedded_redis_config.SERVER_VARIABLE: str(hindrances / "redis-server")},
        **{"FAKE_CANNOT_START": str(hindrances / "master"), "FAKE_START_HELD_BY": str(hindrances / "worker")},
    }
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        yield grid


@pytest.fixture
def mortal(hindered: Grid, hindrances: Path) -> Grid:
    """One for all tests that end its master, or hinder what starts. Each finds it with a master and one worker."""
    for name in ("master", "worker"):  # of a test that has failed
        (hindrances / name).unlink(missing_ok=True)
    if hindered.process.poll() is not None:
        hindered.start_again()

    def is_whole() -> bool:
        found = [(each["id"], each["status"]) for each in hindered.status()["workers"]]
        return found == [(each.name, "available") for each in hindered.runtime.glob("w/*")]

    eventually(is_whole, "one worker serves, and there is no other")
    return hindered


def test_a_dead_master_is_told_of_and_one_that_cannot_start_leaves_what_lives_to_the_next_one(
    mortal: Grid, tmp_path: Path
) -> None:
    before, files = parts(mortal), mortal.runtime / "w"
    mortal.kill_master()
    status = mortal.command("status")
    assert (status.returncode, "no master  it died" in status.stdout) == (3, True), status
    refused = subprocess.run(
        [*mortal.program, "serve", *mortal.arguments, "--port", str(mortal.port)],
        cwd=ROOT,
        env={**mortal.environment, "LOG_FILE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (refused.returncode, "cannot write the log file" in refused.stderr) == (1, True), refused
    assert [each.name for each in files.iterdir()] == [name for name in before if name != "proxy"]
    mortal.start_again()
    assert parts(mortal) == before
    assert mortal.status()["master"]["pid"] == mortal.process.pid


def test_new_code_that_cannot_start_leaves_what_lives_to_the_next_master(mortal: Grid, hindrances: Path) -> None:
    before, files = parts(mortal), mortal.runtime / "w"
    (hindrances / "master").touch()
    mortal.command("upgrade", "--force")
    assert mortal.process.wait(60) == 1
    assert [each.name for each in files.iterdir()] == [name for name in before if name != "proxy"]
    (hindrances / "master").unlink()
    mortal.start_again()
    assert parts(mortal) == before


def test_an_upgrade_is_refused_where_no_redis_server_is_found_any_more(mortal: Grid, hindrances: Path) -> None:
    before, server = parts(mortal), hindrances / "redis-server"
    hidden = server.rename(hindrances / "elsewhere")
    try:
        refused = mortal.command("upgrade", "--force")
    finally:
        hidden.rename(server)
    assert refused.returncode == 1
    assert f"{embedded_redis_config.SERVER_VARIABLE}={server} is not an executable file" in refused.stderr
    assert parts(mortal) == before


def test_a_worker_that_an_upgrade_has_still_to_replace_is_replaced_by_the_next_master_too(
    mortal: Grid, hindrances: Path
) -> None:
    (old,) = parts(mortal).keys() - {"proxy"}
    (hindrances / "worker").touch()
    mortal.ask("upgrade", {"force": True})
    eventually(lambda: len(mortal.status()["workers"]) == 2, "its replacement starts")
    mortal.kill_master()
    mortal.start_again()
    assert old in parts(mortal)
    (hindrances / "worker").unlink()
    eventually(lambda: [each["id"] != old for each in mortal.status()["workers"]] == [True], "it is replaced")


def of_other_code(file: Path) -> None:
    """Has the next master believe that the child of this file was forked by other code."""
    state = json.loads(file.read_text())
    assert state["version"] == running_parts.code_fingerprint()
    file.write_text(json.dumps({**state, "version": "0"}))


def test_children_of_other_code_are_adopted_and_replaced(mortal: Grid) -> None:
    before, said = parts(mortal), len(mortal.output())
    mortal.kill_master()
    for file in (*mortal.runtime.glob("proxy/*.json"), *mortal.runtime.glob("w/*/worker.json")):
        of_other_code(file)
    mortal.start_again()
    eventually(
        lambda: len(now := parts(mortal)) == 2 and None not in now.values() and not now.items() & before.items(),
        "the proxy and the worker are replaced",
    )
    assert (mortal.get("/health/ready")[0], "reason=upgrade" in mortal.output()[said:]) == (200, True)


def test_a_worker_that_still_launches_ends_at_once_when_it_is_not_wanted_any_more(
    mortal: Grid, hindrances: Path
) -> None:
    said = len(mortal.output())
    (hindrances / "worker").touch()
    mortal.command("scale", "chromium=3")
    eventually(lambda: len(list(mortal.runtime.glob("w/*/tmp"))) == 3, "both launch")
    mortal.command("scale", "chromium=2")
    eventually(lambda: len(mortal.status()["workers"]) == 2, "one has ended", timeout_s=15)
    mortal.process.terminate()
    assert mortal.process.wait(60) == 0
    assert "worker_lost" not in mortal.output()[said:]
    (hindrances / "worker").unlink()


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def configure(file: Path, chromium: int, chromium_executable: Path, firefox: int, firefox_executable: Path) -> None:
    file.write_text(
        f"[workers]\nchromium_workers = {chromium}\nfirefox_workers = {firefox}\n[browsers]\n"
        f"chromium_executable = '{chromium_executable}'\nfirefox_executable = '{firefox_executable}'\n"
    )


def launches(grid: Grid, pool: str) -> list[str]:
    """What the workers of a pool that serve were told to launch."""
    found = []
    for each in grid.status()["workers"]:
        if (each["pool"], each["status"]) == (pool, "available"):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                told = psutil.Process(each["nodePid"]).environ()["PWGRID_LAUNCH"]
                found.append(json.loads(told)["executablePath"])
    return found


def test_a_pool_that_is_scaled_up_from_0_launches_the_browser_of_the_last_reload(tmp_path: Path) -> None:
    file, fox = tmp_path / "grid.toml", executable(tmp_path / "fox")
    first, second, third = (executable(tmp_path / name) for name in ("first", "second", "third"))
    configure(file, 1, first, 1, fox)
    with running_grid("--config", str(file), environment=WITHOUT_SPARES, fake=True) as grid:
        assert launches(grid, "chromium") == [str(first)]
        configure(file, 0, second, 1, fox)
        assert grid.command("reload").returncode == 0
        assert grid.command("scale", "chromium=1").returncode == 0
        eventually(lambda: launches(grid, "chromium") == [str(second)], "the second one is launched")
        configure(file, 0, third, 1, fox)
        assert "recycling 1 worker" in grid.command("reload").stdout
        eventually(lambda: launches(grid, "chromium") == [str(third)], "the third one is launched")
        assert "run the new code" in grid.command("upgrade", "--force").stdout
        assert launches(grid, "chromium") == [str(third)]  # in the next master, too
        third.unlink()
        configure(file, 0, third, 2, fox)
        refused = grid.command("reload")
        assert (refused.returncode, "CHROMIUM_EXECUTABLE is" in refused.stderr) == (2, True), refused
        configure(file, 0, third, 1, fox)
        assert grid.command("scale", "chromium=0").returncode == 0
        assert grid.command("reload").returncode == 0  # nobody launches it


def test_an_upgrade_takes_settings_and_browsers_that_have_changed_also_of_a_pool_that_a_reload_has_added(
    tmp_path: Path,
) -> None:
    file, chromium, fox = tmp_path / "grid.toml", executable(tmp_path / "chromium"), executable(tmp_path / "fox")
    configure(file, 1, chromium, 0, fox)
    with running_grid("--config", str(file), environment=WITHOUT_SPARES, fake=True) as grid:
        configure(file, 1, chromium, 1, fox)
        assert "scaled: firefox=1" in grid.command("reload").stdout
        eventually(lambda: launches(grid, "firefox") == [str(fox)], "it is launched")
        for browser in (fox, chromium):  # that of the added pool while the master is the one that has added it
            assert "nothing to do" in grid.command("upgrade").stdout
            browser.write_text("#!/bin/sh\n# newer\n")
            assert "run the new code" in grid.command("upgrade").stdout
        assert "nothing to do" in grid.command("upgrade").stdout
        file.write_text(file.read_text() + "[queue]\nmax_queue = 7\n")
        assert "run the new code" in grid.command("upgrade").stdout


def test_what_runs_is_installed_until_one_of_its_files_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, code = (str(executable(tmp_path / name)) for name in ("first", "second", "code"))

    def found(*executables: str) -> None:
        browsers = {each: FoundBrowser("chromium", each, "", "setting") for each in executables}
        monkeypatch.setattr(running_parts, "_find_browsers", lambda *_: browsers)

    monkeypatch.setattr(running_parts, "_files_of_code", lambda: [code])
    monkeypatch.setattr(running_parts.logging, "configure", lambda *_: None)  # a grid's, not this process's
    loaded = load(None, {}, {})
    found(first)
    runs = RunningParts(loaded)
    assert runs.are_installed(loaded.settings)
    found(first, second)  # which has come since
    assert not runs.are_installed(loaded.settings)
    Path(first).write_text("newer")
    _, accept = runs.reload(8080, ())
    accept()
    assert not runs.are_installed(loaded.settings)  # the grid has taken the first one long ago
    found(second)
    assert runs.are_installed(loaded.settings)
    Path(code).write_text("newer")
    assert not runs.are_installed(loaded.settings)


def test_logs_shows_the_file_that_the_log_goes_to(grid: Grid) -> None:
    done = grid.command("logs", "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == grid.output().splitlines()[-3:]


def test_a_session_s_story_is_its_record_and_what_is_logged_in_its_time(grid: Grid, tmp_path: Path) -> None:
    said = len(grid.output())
    with contextlib.closing(raw.session(grid.port, "/?browser=chromium")), contextlib.closing(raw.session(grid.port)):
        first, second = (each.decode() for each in grid.redis("ZRANGE", "sessions:index", -2, -1))
    eventually(lambda: grid.output()[said:].count("session_ended") == 2, "both have ended")
    done = grid.command("logs", "--session", first)
    assert done.returncode == 0, done.stderr
    record, _, lines = done.stdout.partition("\n\n")
    assert f"session        {first}\n" in record
    assert "reason         client disconnected\n" in record
    events = [line.split("]")[1].split()[0] for line in lines.splitlines()]
    assert (events[0], events[-1]) == ("session_started", "session_ended")
    assert second not in done.stdout
    found = [json.loads(line) for line in grid.command("logs", "--session", first, "--json").stdout.splitlines()]
    assert found[0]["record"]["id"] == first
    assert [each["line"] for each in found[1:]] == lines.splitlines()

    worker = found[0]["record"]["workerId"]
    named = grid.command("logs", "--worker", worker, "-n", "2").stdout.splitlines()
    assert named == [line for line in grid.output().splitlines() if worker in line][-2:]
    missing = grid.command("logs", "--session", "f" * 16)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"says nothing of session {'f' * 16}" in missing.stderr
    followed = grid.command("logs", "--session", first, "--follow", "-n", "1")
    assert (followed.returncode, followed.stdout) == (2, "")
    assert "--lines does not go with --follow where a --session or --worker is named" in followed.stderr


def ended_session(grid: Grid) -> str:
    """The id of a session that has ended and is the latest."""
    with contextlib.closing(raw.session(grid.port, "/?browser=chromium")):
        session_id: str = grid.redis("ZRANGE", "sessions:index", -1, -1)[0].decode()
    eventually(lambda: grid.redis("HGET", f"session:{session_id}", "status") == b"completed", "it has ended")
    return session_id


def test_sessions_are_followed_from_their_begin_to_their_end(grid: Grid) -> None:
    before = ended_session(grid)
    follow = [sys.executable, "-m", "pwgrid", "sessions", "--follow", "--limit", "1", "--json"]
    with subprocess.Popen(follow, cwd=ROOT, env=grid.environment, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["id"] == before  # the latest, which was there before
        with contextlib.closing(raw.session(grid.port, "/?browser=chromium")):
            while (begun := json.loads(following.stdout.readline()))["status"] == "pending":
                pass
        ended = json.loads(following.stdout.readline())
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
    assert begun["id"] == ended["id"] != before
    assert (begun["status"], ended["status"], ended["reason"]) == ("running", "completed", "client disconnected")


def test_what_others_have_said_steers_no_terminal_and_the_log_in_a_pipe_is_left_as_it_is(grid: Grid) -> None:
    session_id = ended_session(grid)
    grid.redis("HSET", f"session:{session_id}", "reason", HOSTILE, "client", HOSTILE)
    with (grid.temporary / "grid.log").open("ab") as log:
        log.write(f"a browser said session={session_id} {HOSTILE}\n".encode())
    commands = [("sessions",), ("sessions", "--json"), ("logs", "--session", session_id), ("logs", "-n", "1")]
    for command in commands:
        with on_terminal(grid, *command, columns=200) as shown:
            assert shown.end() == 0
        said = shown.raw.decode()
        assert "owned" in said, command
        assert not any(each in said for each in ("\x1b]", "\x07", "\x9b", "\u202e")), command
    assert HOSTILE in grid.command("logs", "-n", "1").stdout


def test_the_status_is_shown_again_and_again_also_after_a_stop_which_returns_when_the_grid_has_gone() -> None:
    with running_grid("--chromium", "1", environment=WITHOUT_SPARES, fake=True) as grid:
        watch = ("status", "--port", str(grid.port), "--watch", "0.2")
        plain = [sys.executable, "-m", "pwgrid", *watch, "--json"]
        with (
            on_terminal(grid, *watch) as shown,
            subprocess.Popen(plain, cwd=ROOT, env=grid.environment, stdout=subprocess.PIPE) as watching,
        ):
            shown.until_text("POOL", "Ctrl-C ends it", grid.endpoint)
            assert watching.stdout is not None
            looks = (json.loads(line) for line in watching.stdout)
            assert next(looks)["ready"] is True  # before the grid is stopped, however slowly this one starts
            with contextlib.closing(raw.session(grid.port, "/?browser=chromium")):
                shown.until(lambda: "1/5" in shown.text, "the session")
            done = grid.command("stop", "--json")
            assert (done.returncode, json.loads(done.stdout)) == (0, {"stopped": True, "notes": []}), done
            assert grid.process.wait(0) == 0
            assert "no grid is running here" in grid.command("status", "--port", str(grid.port)).stderr
            shown.until_text("is running here on port")
            shown.press("\x03")
            assert shown.end() == 130
            assert shown.is_as_before()
            errors = (look["error"] for look in looks if "error" in look)
            assert "is running here on port" in next(each for each in errors if "does not answer" not in each)
            watching.send_signal(signal.SIGINT)
            assert watching.wait(20) == 130


def test_version_has_what_is_installed_and_what_runs(grid: Grid) -> None:
    found = json.loads(grid.command("version", "--json").stdout)
    assert found["pwgrid"] == __version__
    assert {"endpoint": grid.endpoint, "pid": grid.process.pid, "version": __version__} in found["running"]
    assert f"{grid.endpoint} runs {__version__}" in grid.command("version").stdout


AS_JSON = {
    "config check": {"good", "pools", "totals"},
    "config show": {"port", "max_queue"},
    "token list": set(),
    "sessions": set(),
    "scale chromium=1": {"wanted"},
    "reload": {"changed"},
    "upgrade": {"changed", "through", "message"},
    "restart": {"message"},
    "drain --all": {"draining"},
    "drain --all --wait": {"draining", "good", "outcomes"},
}


@pytest.mark.parametrize("command", AS_JSON)
def test_what_a_command_prints_as_json_is_one_json_text(grid: Grid, command: str) -> None:
    done = grid.command(*command.split(), "--json")
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert isinstance(found, dict if AS_JSON[command] else list)
    assert AS_JSON[command] <= set(found if AS_JSON[command] else ())


def test_status_and_stop_know_a_grid_whose_master_has_gone_and_let_its_live_sessions_end_first(tmp_path: Path) -> None:
    log = tmp_path / "grid.log"
    environment = {**WITHOUT_SPARES, "DETACH_GRACE": "600", "DRAIN_TIMEOUT": "600", "LOG_FILE": str(log)}
    with (
        running_grid("--chromium", "1", environment=environment, fake=True) as grid,
        ThreadPoolExecutor(1) as aside,
        raw.session(grid.port) as client,
    ):
        grid.process.send_signal(signal.SIGUSR1)
        assert grid.process.wait(20) == 0
        status = grid.command("status", "--json")
        assert status.returncode == 3
        found = json.loads(status.stdout)
        assert (found["endpoint"], found["master"]) == (grid.endpoint, None)
        assert found["endsAt"] - found["detachedAt"] == 1200
        assert {child["kind"] for child in found["children"]} == {"proxy", "redis", "worker"}
        assert re.search(r"it admits clients for \d+ s more, and ends in \d+ s", found["reason"])
        assert f"the grid on port {grid.port} has no master: detached since" in grid.command("drain", "--all").stderr
        assert "detached" in grid.command("logs").stdout
        down = re.compile(r"control_link_down .*role=worker")
        eventually(lambda: down.search(log.read_text()) is not None, "the worker has lost its master")
        stop = aside.submit(grid.command, "stop")  # which waits for no other master
        draining = re.compile(r"worker_draining .*role=worker")
        eventually(lambda: draining.search(log.read_text()) is not None, "the worker drains")
        assert raw.goes_on(client)
        assert raw.goes_on(client)
        client.close()
        done = stop.result()
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "stopped"), done
        assert "its master is gone: detached since " in done.stdout
        assert "admits" not in done.stdout
        assert processes_marked(grid.mark) == {}
    assert "grid_ended_without_master" in log.read_text()


def test_a_second_signal_ends_a_proxy_that_waits_for_the_last_worker_without_a_master(tmp_path: Path) -> None:
    log = tmp_path / "grid.log"
    environment = {"DETACH_GRACE": "600", "LOG_FILE": str(log)}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        proxy = psutil.Process(grid.ask("status")["proxy"]["pid"])
        grid.process.send_signal(signal.SIGUSR1)
        assert grid.process.wait(20) == 0
        down = re.compile(r"control_link_down .*role=proxy")
        eventually(lambda: down.search(log.read_text()) is not None, "the proxy has lost its master")
        proxy.terminate()
        eventually(lambda: "refusing_without_master" in log.read_text(), "the proxy refuses clients")
        assert proxy.is_running()
        proxy.terminate()
        proxy.wait(20)
        assert log.read_text().count("refusing_without_master") == 1
        assert grid.command("stop").returncode == 0


def test_what_serve_refuses_scale_refuses_with_the_same_sentence(grid: Grid) -> None:
    scaled = grid.command("scale", "chromium=0")
    served = grid.command("serve", "--port", "0", "--chromium", "0")
    assert (scaled.returncode, served.returncode) == (1, 2)
    assert scaled.stderr == f"pwgrid: {NO_POOL}\n"
    assert NO_POOL in served.stderr


@pytest.fixture(scope="module")
def public() -> Iterator[Grid]:
    """A grid for other hosts too, with two pools, one of which its operator has named as the default."""
    arguments = ("--chromium", "1", "--firefox", "1", "--host", "0.0.0.0", "--token", "s3cret-s3cret-s3cret")
    with running_grid(*arguments, environment={"DEFAULT_BROWSER_TYPE": "chromium"}, fake=True) as grid:
        yield grid


def test_a_default_browser_that_is_named_keeps_a_worker(public: Grid) -> None:
    scaled = public.command("scale", "chromium=0")
    assert scaled.returncode == 1
    assert scaled.stderr.startswith(
        "pwgrid: default_browser_type is chromium (environment DEFAULT_BROWSER_TYPE): a pool of that browser must"
    )
    assert public.command("scale", "firefox=0").stdout.startswith("chromium 1, firefox 0")


def ready_line(grid: Grid) -> str:
    return next(line for line in grid.output().splitlines() if "ready: " in line)


def test_the_ready_line_has_an_address_for_other_hosts_where_it_listens_for_them(public: Grid) -> None:
    local, others = re.findall(r"chromium\.connect\('(ws://[^']*)'\)", ready_line(public))
    assert local == f"ws://127.0.0.1:{public.port}/?token=YOUR_TOKEN"
    assert others.endswith(f":{public.port}/?token=YOUR_TOKEN")
    host = urlsplit(others).hostname
    assert host not in (None, "0.0.0.0", "127.0.0.1", "localhost")
    with urllib.request.urlopen(f"http://{host}:{public.port}/health", timeout=10) as answer:
        assert answer.status == 200
    assert "s3cret" not in public.output()


def test_the_ready_line_of_a_local_grid_names_no_other_host(grid: Grid) -> None:
    assert f"connect with chromium.connect('{grid.endpoint}')" in ready_line(grid)
    assert "other hosts" not in ready_line(grid)
