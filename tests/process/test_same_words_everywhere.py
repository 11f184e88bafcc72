"""What the grid says of itself is the same wherever it says it, and it says each thing once."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.raw import session

CALL_LOG = (
    "Protocol error (Browser.getVersion): Internal server error, session closed. Failed to launch browser.\n"
    "<launching> /usr/lib/chromium/chromium --user-data-dir=/run/secret/profile\n"
    "<launched> pid=22433\n"
    "[pid=22433][err] /usr/lib/chromium/chromium: the moon is in the way of pid 22433\n"
    "[pid=22433] <process did exit: exitCode=1, signal=null>"
)
SENTENCE = "chromium did not start: chromium: the moon is in the way of"


def events(grid: Grid, name: str = "", **fields: Any) -> list[dict[str, Any]]:
    """The lines of the grid's log with this event and these fields."""
    lines = [json.loads(line) for line in grid.output().splitlines() if line.startswith("{")]
    return [
        line
        for line in lines
        if name in ("", line["event"]) and all(line.get(field) == value for field, value in fields.items())
    ]


def test_a_browser_that_does_not_start_is_one_sentence_in_log_status_and_answers() -> None:
    environment = {"FAKE_FAIL_START": CALL_LOG, "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        failed = events(grid, "worker_failed")
        assert {line["reason"] for line in failed} == {SENTENCE}
        status, _, body = grid.get("/health/ready")
        assert (status, SENTENCE in json.loads(body)["error"]) == (503, True)
        (pool,) = [pool for pool in json.loads(grid.command("status", "--json").stdout)["pools"] if pool["wanted"]]
        assert pool["reason"].startswith(SENTENCE)
        assert SENTENCE in grid.command("status").stdout
        assert b"/usr/lib" not in body
        assert b"22433" not in body
        # All that Playwright and the browser said is there once for each attempt, for who debugs it.
        said = [line for line in events(grid) if "--user-data-dir" in str(line)]
        assert {line["event"] for line in said} == {"browser_did_not_start"}
        assert {line["level"] for line in said} == {"debug"}
        attempts = [line["worker"] for line in said]
        assert len(attempts) == len(set(attempts)) >= 3
        # Who has said why it ends is not lost.
        for worker in {line["worker"] for line in failed[:-1]}:
            eventually(lambda worker=worker: events(grid, "worker_exited", worker=worker), "its process has ended")
        assert events(grid, "worker_lost") == []
        assert {line["level"] for line in events(grid, "worker_exited")} == {"info"}


def test_a_worker_and_a_session_are_logged_once_each_when_they_begin_and_end() -> None:
    environment = {**WITHOUT_SPARES, "LOG_FORMAT": "json"}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        workers = [worker["id"] for worker in grid.status()["workers"]]
        assert sorted(line["worker"] for line in events(grid, "worker_available")) == sorted(workers)
        assert {line["browser"] for line in events(grid, "worker_available")} == {"fake"}
        with session(grid.port) as sock:
            client = ":".join(map(str, sock.getsockname()))
            (started,) = eventually(lambda: events(grid, "session_started"), "its start is logged")
            assert (started["client"], started["worker"] in workers) == (client, True)
        (ended,) = eventually(lambda: events(grid, "session_ended"), "its end is logged")
        assert (ended["session"], ended["status"]) == (started["session"], "completed")
        assert len(events(grid, "session_started")) == 1


def test_with_json_every_line_is_json_on_one_stream(tmp_path: Path) -> None:
    with running_grid("--chromium", "1", environment={"LOG_FORMAT": "json"}, fake=True) as grid:
        session(grid.port).close()
        (ready,) = events(grid, "grid_ready")
        assert (ready["endpoint"], ready["pools"]) == (grid.endpoint, "chromium 1 x 5 slots")
        eventually(lambda: events(grid, "session_ended"), "its end is logged")
        grid.process.terminate()
        assert grid.process.wait(60) == 0
        lines = grid.output().splitlines()
        assert all({"time", "level", "event"} <= json.loads(line).keys() for line in lines)
        assert json.loads(lines[-1])["event"] == "master_stopped"


@pytest.mark.parametrize(
    ("setting", "code", "sentence"),
    [
        ({"PWGRID_PORT": "none"}, 2, "the configuration has 1 fault"),
        ({"PWGRID_PORT": "none", "PWGRID_LOG_FORMAT": " JSON"}, 2, "the configuration has 1 fault"),
        ({"PWGRID_PORT": "none", "PWGRID_LOG_FORMAT": "", "LOG_FORMAT": "json"}, 2, "the configuration has 1 fault"),
        ({"CHROMIUM_EXECUTABLE": "/nonexistent"}, 1, "CHROMIUM_EXECUTABLE is /nonexistent, where there is no file"),
    ],
)
def test_with_json_a_grid_that_cannot_start_says_so_in_json_too(
    tmp_path: Path, setting: dict[str, str], code: int, sentence: str
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PWGRID_LOG_FORMAT": "json", **setting}
    done = subprocess.run(
        [sys.executable, "-m", "pwgrid", "serve", "--chromium", "1"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["reason"].startswith(sentence)) == ("grid_not_started", "critical", True)


def all_that_was_notified(manager: socket.socket) -> str:
    """What the service manager was told so far."""
    told = []
    while True:
        try:
            told.append(manager.recv(4096).decode())
        except BlockingIOError:
            return "\n".join(told)


def test_ready_means_the_same_in_the_line_to_the_service_manager_in_the_api_and_in_the_status(tmp_path: Path) -> None:
    broken, notify = tmp_path / "broken", tmp_path / "notify"
    broken.touch()
    sentence = "no firefox worker is available: firefox did not start: no way"
    environment = {
        "NOTIFY_SOCKET": str(notify),
        "FIREFOX_EXECUTABLE": "/bin/true",
        "FAKE_FAIL_START": "no way",
        "FAKE_FAIL_TYPE": "firefox",
        "FAKE_FAIL_WHILE": str(broken),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notify))
        manager.setblocking(False)
        with running_grid("--chromium", "1", "--firefox", "1", environment=environment, fake=True) as grid:
            assert (grid.ready["ready"], grid.ready["reason"].startswith(sentence)) == (False, True)
            assert f"pwgrid not ready: {sentence}" in grid.output()
            assert "pwgrid ready:" not in grid.output()
            status, _, body = grid.get("/health/ready")
            assert (status, json.loads(body)["error"].startswith(sentence)) == (503, True)
            told = all_that_was_notified(manager)
            assert f"STATUS=not ready: {sentence}" in told
            assert "EXTEND_TIMEOUT_USEC=" in told  # it serves Chromium: not to be killed for being late
            assert "READY=1" not in told
            done = grid.command("status")
            assert (done.returncode, f"NOT READY: {sentence}" in done.stdout) == (3, True)
            session(grid.port).close()

            broken.unlink()
            eventually(lambda: "pwgrid ready: " in grid.output(), "the line says that it is ready")
            assert grid.get("/health/ready")[0] == 200
            eventually(lambda: "READY=1" in all_that_was_notified(manager), "the service manager hears it")
            assert (grid.command("status").returncode, grid.status()["ready"]) == (0, True)
        done = grid.command("status", "--port", str(grid.port))
        assert (done.returncode, "no grid" in done.stderr) == (4, True)
