"""Which lines of a log are a session's story, and how its record is told."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Never

import pytest

from pwgrid.cli.ask_grid import WithoutMasterError
from pwgrid.cli.logs import command_for, logs, naming, record_text, show, story
from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.common.types import ChildKind
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.directory import LockContent
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid

SESSION: dict[str, Any] = {
    "id": "0123456789abcdef",
    "browserType": "chromium",
    "workerId": "89abcdef",
    "status": "failed",
    "reason": "memory limit",
    "createdAt": 1_700_000_000.0,
    "startedAt": 1_700_000_000.25,
    "drainAt": None,
    "endedAt": 1_700_000_012.5,
    "client": "127.0.0.1:54321",
    "bytesIn": 0,
    "ignoredOptions": ["headless", "slowMo"],
}
BEFORE, DURING, AFTER = "2023-11-14T22:13:19.9Z", "2023-11-14T22:13:25.000001Z", "2023-11-14T22:13:33Z"


@pytest.mark.parametrize(
    ("line", "is_wanted"),
    [
        (f"{DURING} [info     ] session_started session=0123456789abcdef role=worker worker=89abcdef", True),
        (f"{AFTER} [info     ] session_ended session=0123456789abcdef", True),
        (f"{DURING} [info     ] worker_draining reason=memory role=worker worker=89abcdef", True),
        (f'{{"time":"{DURING}","level":"info","event":"worker_draining","worker":"89abcdef"}}', True),
        (f"Nov 14 22:13:25 host pwgrid[7]: {DURING} [info     ] worker_draining worker=89abcdef", True),
        (f"{BEFORE} [info     ] worker_available worker=89abcdef", False),
        (f"{AFTER} [info     ] worker_exited worker=89abcdef", False),
        ("a line without a time of worker=89abcdef", False),
        (f"{DURING} [info     ] session_started session=ffffffffffffffff worker=89abcdef", False),
        (f'{{"time":"{DURING}","event":"session_ended","session":"ffffffffffffffff","worker":"89abcdef"}}', False),
        (f"{DURING} [info     ] worker_draining worker=89abcdefff", False),
        (f"{DURING} [info     ] session_started session=0123456789abcdef00", False),
    ],
)
def test_a_story_has_the_session_s_lines_and_its_worker_s_of_that_time(line: str, is_wanted: bool) -> None:
    assert story(SESSION)(line.encode()) is is_wanted


def test_the_story_of_a_live_session_goes_on() -> None:
    line = f"{AFTER} [info     ] worker_draining worker=89abcdef".encode()
    assert story({**SESSION, "endedAt": None})(line)


def test_lines_name_every_id_that_is_asked_for() -> None:
    assert naming("a1", "b2")(b"worker=a1 session=b2")
    assert not naming("a1", "b2")(b"worker=a1")
    assert naming()(b"worker=a1")


def test_a_record_is_told_a_field_a_line_in_the_log_s_own_time_and_steers_no_terminal() -> None:
    text = record_text({**SESSION, "client": "\x1b[2J\x9b"})
    fields = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert fields["session"] == "0123456789abcdef"
    assert fields["createdAt"] == "2023-11-14T22:13:20.000Z"
    assert fields["lasted"] == "12.5 s"
    assert fields["ignoredOptions"] == "headless, slowMo"
    assert fields["bytesIn"] == "0"
    assert "drainAt" not in fields
    assert all(line.isprintable() for line in text.splitlines())


def run(**options: Any) -> object:
    """The exit code of `pwgrid logs` with these options."""
    assert logs.callback is not None
    nothing = {"port": None, "runtime_dir": None, "session": None, "worker": None, "lines": None}
    with pytest.raises(SystemExit) as ended:
        logs.callback(**nothing | {"follow": False, "as_json": False} | options)
    return ended.value.code


LINES = b'one \x1b[31m\xff\n{"event":"x","said":"\\u001b[2J"}\n{not json}\n[1]\nlast'
PRINT = (sys.executable, "-c", f"import sys; sys.stdout.buffer.write({LINES!r})")


def run_show(*, as_json: bool) -> bytes:
    code = f"from pwgrid.cli.logs import *; show({PRINT!r}, naming(), as_json={as_json})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout


def test_lines_are_left_as_they_are_in_a_pipe() -> None:
    assert run_show(as_json=False) == LINES


def test_each_line_is_one_json_object_if_asked_for() -> None:
    found = run_show(as_json=True).decode().splitlines()
    assert all(line.isprintable() for line in found)
    assert [json.loads(line) for line in found] == [
        {"line": "one \x1b[31m�"},
        {"event": "x", "said": "\x1b[2J"},
        {"line": "{not json}"},
        {"line": "[1]"},
        {"line": "last"},
    ]


def test_the_exit_code_and_the_number_of_lines_are_told(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    command = (sys.executable, "-c", "print('a'); print('b'); print('ab'); raise SystemExit(3)")
    assert show(command, lambda line: b"a" in line) == (3, 2)


@contextlib.contextmanager
def left_with(*kinds: ChildKind, logs: Path) -> Iterator[GridWithoutMaster]:
    """A grid without a master, with a process of each of these kinds. Each has a line in a log of its own."""
    with contextlib.ExitStack() as stack:
        children = []
        for kind in kinds:
            (logs / kind).write_text(f"the log of a {kind}\n")
            log = stack.enter_context((logs / kind).open("a"))
            command = (sys.executable, "-c", "input()")
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log))
            stack.callback(process.kill)
            children.append(ChildState(kind, kind, process.pid, 0.0, "", "", "", 0.0, 0.0))
        yield GridWithoutMaster(logs, 8080, LockContent(1, 0.0, ""), tuple(children))


@pytest.mark.parametrize("kinds", [("redis", "worker"), ("redis", "proxy", "worker"), ("proxy", "redis")])
def test_the_log_of_a_grid_without_a_master_is_that_of_a_proxy_or_worker(
    kinds: tuple[ChildKind, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    with left_with(*kinds, logs=tmp_path) as left:
        monkeypatch.setattr("pwgrid.cli.logs.find_grid", raising(WithoutMasterError([left])))
        assert run() == 0
    first = next(kind for kind in kinds if kind != "redis")
    assert capfdbinary.readouterr().out == f"the log of a {first}\n".encode()


@pytest.mark.parametrize(("session", "is_there"), [("0123456789abcdef", True), ("ffffffffffffffff", False)])
def test_a_session_s_lines_are_shown_also_while_redis_is_away(
    session: str,
    is_there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "log").write_text(f"{DURING} session_started session=0123456789abcdef\n{DURING} another line\n")
    monkeypatch.setattr("pwgrid.cli.logs.find_grid", lambda *_: RunningGrid(tmp_path, 8080, 7, "ws://grid"))
    away = RegistryUnavailable("Redis at redis://there does not answer: Connection refused")
    monkeypatch.setattr("pwgrid.cli.logs._record", raising(away))
    monkeypatch.setattr("pwgrid.cli.logs.command_for", lambda *_, **_options: ["cat", str(tmp_path / "log")])
    with contextlib.nullcontext() if is_there else pytest.raises(GridError, match="its record cannot be read now"):
        assert run(session=session) == 0
    shown = capfd.readouterr()
    assert shown.out == f"{DURING} session_started session=0123456789abcdef\n" * is_there
    assert shown.err == f"pwgrid: without the record of the session: {away}\n"


def test_no_line_of_a_worker_is_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwgrid.cli.logs.find_grid", lambda *_: RunningGrid(tmp_path, 8080, 7, "ws://grid"))
    monkeypatch.setattr("pwgrid.cli.logs.command_for", lambda *_, **_options: ["echo", "worker=89abcdef"])
    assert run(worker="89abcdef", lines=0) == 0


def test_where_only_a_redis_is_left_nobody_has_the_log_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with left_with("redis", logs=tmp_path) as left:
        monkeypatch.setattr("pwgrid.cli.logs.find_grid", raising(WithoutMasterError([left])))
        with pytest.raises(GridError, match="has no master, proxy or worker any more"):
            run()


def test_of_several_grids_without_a_master_none_is_taken_for_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with left_with("worker", logs=tmp_path) as left:
        monkeypatch.setattr("pwgrid.cli.logs.find_grid", raising(WithoutMasterError([left, left])))
        with pytest.raises(WithoutMasterError):
            run()


def test_a_reader_of_logs_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(GridError, match="cannot run tail, which reads the log: No such file or directory"):
        show(["tail", "/dev/null"], naming())


def test_a_process_that_ends_while_its_log_is_looked_for_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.readlink", lambda _path: "socket:[1]")
    monkeypatch.setattr("pwgrid.cli.logs._unit_of", raising(ProcessLookupError(3, "No such process")))
    with pytest.raises(GridError, match="cannot see where the log of process 77 goes: No such process"):
        command_for(77, None, follow=False)


@pytest.fixture
def under_supervisord(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A grid without a master that has logged these lines; a script prints them as supervisorctl does."""
    lines = [json.dumps({"time": DURING, "event": "x", "number": number, "said": "y" * 700}) for number in range(9)]
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "supervisorctl").write_text(
        f"""#!/bin/sh
        case "$4" in
            -f) echo "==> Press Ctrl-C to exit <=="; tail -c 1024 {tmp_path}/log ;;
            *) tail -c "${{4#-}}" {tmp_path}/log; echo ;;
        esac"""
    )
    (tmp_path / "supervisorctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SUPERVISOR_SERVER_URL", "unix:///sock")
    monkeypatch.setenv("SUPERVISOR_PROCESS_NAME", "pwgrid")
    command = (sys.executable, "-c", "print(flush=True); input()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # while exec is under way, /proc/PID/environ is still empty
            child = ChildState("worker", "worker", process.pid, 0.0, "", "", "", 0.0, 0.0)
            left = GridWithoutMaster(tmp_path, 8080, LockContent(1, 0.0, ""), (child,))
            monkeypatch.setattr("pwgrid.cli.logs.find_grid", raising(WithoutMasterError([left])))
            yield lines
        finally:
            process.kill()


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_supervisord_s_log_has_as_many_whole_lines_as_were_asked_for(
    under_supervisord: list[str], count: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(lines=count, as_json=True) == 0
    shown = [json.loads(line)["number"] for line in capfdbinary.readouterr().out.splitlines()]
    assert shown == list(range(9))[max(0, 9 - count) :]


def test_supervisord_s_log_is_followed_from_a_whole_line_on(
    under_supervisord: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(follow=True) == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == under_supervisord[-1:]


def raising(error: Exception) -> Callable[..., Never]:
    def raises(*_: object) -> Never:
        raise error

    return raises
