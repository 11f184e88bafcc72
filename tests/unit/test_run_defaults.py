"""What `pwgrid run` sets where nobody has, and what it says at the end, from literal figures."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from pwgrid.cli import run
from pwgrid.cli.main import main
from pwgrid.cli.run import (
    ReadyReport,
    as_environment,
    closing_text,
    private_settings,
    readable_paths,
    slots_of_worker,
    usable_cores,
)
from pwgrid.settings.load import load

SERVERS_OWN = {
    "BLOCK_FILE_URLS": "true",
    "LOG_LEVEL": "debug",
    "MEMORY_CHECK_INTERVAL": "7",
    "MAX_CONCURRENT_SESSIONS": "3",
    "MAX_LIFETIME_SESSIONS": "9",
    "MAX_LAUNCHES": "9",
    "WORKER_SELECT_TIMEOUT": "1",
}


@pytest.mark.parametrize(
    ("workers", "cores", "free_mib", "slots"),
    [
        (2, 2.0, 16_000, 4),
        (2, 8.0, 64_000, 16),
        (1, 0.5, 16_000, 2),
        (2, 8.0, 4_096, 7),  # 14 sessions of 256 MiB beside two browsers
        (8, 2.0, 64_000, 1),
        (2, 8.0, 300, 1),
    ],
)
def test_slots_are_what_cores_and_memory_bear(workers: int, cores: float, free_mib: int, slots: int) -> None:
    assert slots_of_worker(workers, cores, free_mib) == slots


def test_a_cgroups_quota_counts_as_so_many_cores(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/ci/job\n")
    inner = tmp_path / "ci" / "job"
    inner.mkdir(parents=True)
    ours = len(os.sched_getaffinity(0))
    (inner / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path, tmp_path / "membership") == ours
    (tmp_path / "ci" / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path, tmp_path / "membership") == 0.5


def test_a_private_grid_has_its_own_defaults() -> None:
    values = as_environment(private_settings(load(None, {}, {})))
    settings = load(None, values, {}).settings
    assert (settings.worker_select_timeout, settings.max_lifetime_sessions) == (600.0, 1_000_000_000)
    assert settings.max_launches == 0
    assert settings.log_level == "warning"
    assert settings.max_concurrent_sessions >= 1
    assert settings.block_file_urls == "off"


def test_browsers_of_a_private_grid_read_what_is_where_the_command_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "a work space"
    here.mkdir()
    monkeypatch.chdir(here)
    settings = load(None, {"BROWSER_READ_PATHS": "/srv/pages"}, {}).settings
    assert readable_paths(settings) == ["/srv/pages", str(here)]
    here.rmdir()
    assert readable_paths(settings) == ["/srv/pages"]


def test_a_private_grid_finds_place_where_the_temp_directory_has_too_long_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runtime_dir" not in private_settings(load(None, {}, {}))
    long = tmp_path / ("x" * 130)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    values = as_environment(private_settings(load(None, {}, {})))
    assert values["PWGRID_RUNTIME_DIR"] == f"/tmp/pwgrid-{os.getuid()}"
    assert "runtime_dir" not in private_settings(load(None, {"PWGRID_RUNTIME_DIR": "/somewhere"}, {}))


def test_what_somebody_has_set_stays() -> None:
    assert private_settings(load(None, SERVERS_OWN, {})) == {}
    assert "max_concurrent_sessions" not in private_settings(load(None, {}, {"max_concurrent_sessions": 2}))


def test_the_closing_line_has_sessions_waits_refusals_cuts_and_memory() -> None:
    status = {
        "outcomes": {"completed": 4, "failed": 1, "ended": 1, "expired": 1},
        "activeConnections": 1,
        "clients": {"longestWaitS": 12.34, "refused": 3},
    }
    said = "7 sessions, longest wait for a slot 12.3 s, 3 refused, 2 cut, peak memory 812 MiB"
    assert closing_text(status, 812) == said
    status |= {"outcomes": {"completed": 1}, "activeConnections": 0}
    assert closing_text(status, 812).startswith("1 session, ")
    assert closing_text(status, 812).endswith(" MiB")


def test_the_closing_line_says_that_the_command_has_used_no_grid() -> None:
    status = {"outcomes": {}, "activeConnections": 0, "clients": {"longestWaitS": 0.0, "refused": 0}}
    said = "; nothing has connected to $PWGRID_WS_ENDPOINT, see pwgrid help ci"
    assert closing_text(status, 812).endswith(said)
    status["clients"] = {"longestWaitS": 0.0, "refused": 1}
    assert not closing_text(status, 812).endswith(said)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-what\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
def test_a_grid_that_ends_in_the_middle_of_its_answer_fails_no_command(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ask", lambda *_: {"host": {"peakMib": 812}})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(65536)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        here = f"127.0.0.1:{port}"
        ready = ReadyReport(f"ws://{here}", f"ws://{here}", f"http://{here}", "", Path("/nowhere"), 1, port, None)
        assert run.closing_line(ready).startswith("no figures of the sessions: ")
        thread.join()


def test_help_says_what_holds_for_the_command() -> None:
    def help_of(command: str) -> str:
        return " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())

    assert "0 to 65535. [a free one]" in help_of("run")
    assert "Slots of each worker. 1 to 1000. [from cores and memory]" in help_of("run")
    assert "--queue-timeout SECONDS How long a client waits for a slot. Seconds, 0 to 2000000. [600]" in help_of("run")
    assert "Slots of each worker. 1 to 1000. [5]" in help_of("serve")
    assert "[8080]" in help_of("serve")
    assert "--chromium N" in help_of("setup")
    assert all(flag not in help_of("setup") for flag in ("--port", "--host", "--token", "--slots"))


def test_set_up_takes_the_flags_of_serve() -> None:
    flags = ["--port", "9000", "--slots", "3", "--queue-timeout", "60.5", "--chromium", "1"]
    assert CliRunner().invoke(main, ["config", "check", *flags]).exit_code == 0
    assert "No such option" not in CliRunner().invoke(main, ["setup", *flags[:-1], "none"]).output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_the_start_of_the_grid_gets_the_exit_code_of_the_signal(
    signum: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PrivateGrid", lambda *_: signal.raise_signal(signum))
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *run._FORWARDED)}
    try:
        assert run.run_command([], ["true"], {}) == 128 + signum
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
