"""One event, one line, one write: whatever the event holds and whatever has become of stderr."""

import ast
import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.common import log
from pwgrid.common.log import StandardHandler, text_renderer, text_value, to_json


class Stderr:
    """The reading end of a pipe that is taken for stderr. (Not as number 2: that belongs to pytest's capture.)"""

    def __init__(self) -> None:
        self.reader, self.number = os.pipe()
        os.set_blocking(self.reader, False)

    def read(self) -> list[str]:
        """Everything since the last call, by line."""
        parts = []
        try:
            while part := os.read(self.reader, 1 << 20):
                parts.append(part)
        except BlockingIOError:
            pass
        return b"".join(parts).decode().splitlines()


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stderr]:
    pipe = Stderr()
    monkeypatch.setattr(log, "STDERR", pipe.number)
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.number)
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardHandler)]:
        root.removeHandler(handler)


def test_a_text_line_has_time_level_event_and_its_fields(stderr: Stderr) -> None:
    log.configure("info", "text", "master")
    structlog.get_logger().error("worker_exited", pid=7, signal="SIGKILL", was="ready")
    (line,) = stderr.read()
    at, _, rest = line.partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at)
    assert rest == "[error    ] worker_exited pid=7 signal=SIGKILL was=ready role=master"


def test_a_json_line_is_one_object(stderr: Stderr) -> None:
    log.configure("info", "json", "worker", worker="0123abcd")
    structlog.get_logger(pool="firefox").info("available", ms=1.5, none=None, odd={1, 2}, text="ä\n")
    (line,) = stderr.read()
    event = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.pop("time"))
    assert event == {
        "level": "info",
        "event": "available",
        "pool": "firefox",
        "ms": 1.5,
        "none": None,
        "odd": "{1, 2}",
        "text": "ä\n",
        "role": "worker",
        "worker": "0123abcd",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_journal_hears_the_level_of_each_line_and_nobody_else_does(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    status = os.fstat(stderr.number)
    for journal, expected in ((f"{status.st_dev}:{status.st_ino}", ["<6>", "<4>", "<3>", "<2>"]), ("1:2", [])):
        monkeypatch.setenv("JOURNAL_STREAM", journal)
        log.configure("info", log_format, "master")
        for level in ("info", "warning", "error", "critical"):
            getattr(structlog.get_logger(), level)("something")
        assert [line[:3] for line in stderr.read() if line.startswith("<")] == expected


def test_events_below_the_level_are_not_logged(stderr: Stderr) -> None:
    log.configure("warning", "text", "proxy")
    logger = structlog.get_logger()
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(logger, level)("event")
    assert [line.split()[1] for line in stderr.read()] == ["[warning", "[error", "[critical"]


def test_a_child_s_events_carry_its_own_fields_alone_in_its_parent_s_format(stderr: Stderr) -> None:
    log.configure("warning", "json", "master", run="nightly")
    log.bind("worker", worker="0123abcd")
    structlog.get_logger().info("too little")
    structlog.get_logger().warning("event")
    (line,) = stderr.read()
    event = json.loads(line)
    del event["time"]
    assert event == {"level": "warning", "event": "event", "role": "worker", "worker": "0123abcd"}


def test_an_unknown_level_is_a_fault_of_the_caller() -> None:
    with pytest.raises(KeyError):
        log.configure("loud", "text", "master")


def test_a_logger_made_before_configure_follows_it_and_every_later_one(stderr: Stderr) -> None:
    logger = structlog.get_logger()
    log.configure("info", "text", "master", run="nightly")
    logger.info("first")
    log.configure("info", "json", "worker")
    logger.info("second")
    structlog.get_logger().info("third")
    first, second, third = stderr.read()
    assert " first " in first
    assert set(first.split()[-2:]) == {"role=master", "run=nightly"}
    for event in map(json.loads, (second, third)):
        assert event["role"] == "worker"
        assert "run" not in event


def test_an_exception_is_one_line_with_its_traceback(stderr: Stderr) -> None:
    log.configure("info", "json", "proxy")
    logger = structlog.get_logger()
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        logger.exception("failed")
        caught = error
    logger.error("later", exc_info=caught)
    logger.exception("outside")
    failed, later, outside = map(json.loads, stderr.read())
    for event in (failed, later):
        assert event["traceback"].endswith("\nValueError: two\nlines")
        assert "raise ValueError" in event["traceback"]
    assert "traceback" not in outside


def test_the_standard_library_s_warnings_come_through_and_its_chatter_does_not(stderr: Stderr) -> None:
    log.configure("debug", "json", "proxy")
    log.configure("debug", "json", "proxy")
    logger = logging.getLogger("uvicorn.error")
    logger.info("started")
    logger.warning("Invalid HTTP request from %s", "x")
    try:
        raise OSError(5, "gone")
    except OSError:
        logger.exception("Task died")
    logger.critical("%d", "not a number")
    warning, failed, broken = map(json.loads, stderr.read())
    assert (warning["logger"], warning["event"]) == ("uvicorn.error", "Invalid HTTP request from x")
    assert (warning["level"], warning["role"]) == ("warning", "proxy")
    assert (failed["level"], failed["event"]) == ("error", "Task died")
    assert failed["traceback"].endswith("OSError: [Errno 5] gone")
    assert broken["event"].startswith("'%d' (cannot be formatted: ")


def test_a_standard_handler_has_no_lock_that_a_fork_could_leave_held() -> None:
    assert StandardHandler(logging.WARNING, log.LineWriter()).lock is None


def test_a_line_that_a_pipe_would_not_take_in_one_piece_loses_the_middle_of_its_longest_values(stderr: Stderr) -> None:
    log.configure("info", "json", "worker")
    structlog.get_logger().error("died", evidence="<" + "ä" * 100_000 + ">", other="o" * 5000, short="kept", pid=7)
    (line,) = stderr.read()
    assert len(line) < log.PIPE_LINE_BYTES
    event = json.loads(line)
    assert (event["short"], event["pid"], event["event"]) == ("kept", 7, "died")
    assert re.fullmatch("<ä+ .+ ä+>", event["evidence"])


def test_a_reader_that_does_not_read_loses_lines_but_stops_nobody(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "STALL_MS", 1)
    log.configure("info", "text", "master")
    fcntl.fcntl(stderr.number, fcntl.F_SETPIPE_SZ, 4096)
    logger = structlog.get_logger()
    for number in range(100):
        logger.info("event", number=number, filler="x" * 200)
    before = stderr.read()
    assert 0 < len(before) < 100
    logger.info("again")
    (again,) = stderr.read()
    logger.info("once")
    (once,) = stderr.read()
    assert f"lines_dropped={100 - len(before)}" in again
    assert "lines_dropped" not in once


def test_lines_lost_before_a_fork_are_told_by_the_parent_alone() -> None:
    code = """
import os
import structlog
from pwgrid.common import log
reader, log.STDERR = os.pipe()
log.STALL_MS = 1
log.configure("info", "json", "master")
logger = structlog.get_logger()
for _ in range(1000):
    logger.info("fills it", filler="x" * 200)
os.read(reader, 1 << 20)  # there is room again
if (child := os.fork()) == 0:
    logger.info("child")
    os._exit(0)
os.waitpid(child, 0)
logger.info("parent")
os.write(1, os.read(reader, 1 << 20))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_child, of_parent = (json.loads(line) for line in done.stdout.splitlines())
    assert of_child["event"] == "child"
    assert "lines_dropped" not in of_child
    assert of_parent["lines_dropped"] > 0


def test_a_non_blocking_stderr_that_is_full_raises_nothing(stderr: Stderr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "STALL_MS", 1)
    log.configure("info", "text", "master")
    os.set_blocking(stderr.number, False)
    for _ in range(2000):
        structlog.get_logger().info("event", filler="x" * 200)
    assert stderr.read()


def test_a_stderr_whose_reader_is_gone_raises_nothing(stderr: Stderr) -> None:
    log.configure("info", "text", "master")
    os.close(stderr.reader)
    structlog.get_logger().info("event")
    stderr.reader = os.open(os.devnull, os.O_RDONLY)


def test_a_full_disk_raises_nothing(stderr: Stderr) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, stderr.number)
    os.close(full)
    log.configure("info", "text", "master")
    structlog.get_logger().info("event")


def test_a_stderr_closed_later_raises_nothing(stderr: Stderr) -> None:
    log.configure("info", "text", "master")
    os.close(stderr.number)
    structlog.get_logger().info("event")
    os.dup2(stderr.reader, stderr.number)


def test_without_a_stderr_no_other_file_gets_its_number_and_the_log_lines() -> None:
    code = """
import os, sys
os.closerange(0, 3) if sys.argv[1] == "all" else os.close(2)
import structlog
from pwgrid.common import log
log.configure("info", "text", "master")
structlog.get_logger().info("event")
socket = os.open("/dev/zero", os.O_RDONLY)
os._exit(0 if os.readlink("/proc/self/fd/2") == "/dev/null" and socket != 2 else 1)
"""
    for closed in ("all", "stderr"):
        assert subprocess.run([sys.executable, "-c", code, closed], check=False).returncode == 0


def test_lines_of_forked_processes_never_mix() -> None:
    code = """
import os
import structlog
from pwgrid.common import log
log.configure("info", "json", "master")
logger = structlog.get_logger()
pids = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        log.configure("info", "json", "worker", worker=child)
        for number in range(200):
            logger.info("event", number=number, filler=str(child) * 3500)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(event["filler"] == str(event["worker"]) * 3500 for event in events)
    written = sum(1 + event.get("lines_dropped", 0) for event in events)
    assert {event["worker"] for event in events} == {0, 1, 2, 3}
    assert written <= 800


def test_a_terminal_gets_colours_and_a_short_time() -> None:
    code = (
        "from pwgrid.common import log; import structlog; log.configure('info', 'text', 'master');"
        "structlog.get_logger().warning('event', a=1)"
    )
    leader, terminal = os.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stderr=terminal, env=environ, check=True)
    os.close(terminal)
    line = os.read(leader, 10_000).decode()
    os.close(leader)
    plain = re.sub(r"\x1b\[\d+m", "", line)
    assert plain != line
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6} \[warning  \] event a=1 role=master\r\n", plain)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (0.5, "0.5"),
        (True, "True"),
        (None, "None"),
        ("", "''"),
        ("a b", "'a b'"),
        ("a=b", "'a=b'"),
        ('say "x"', "'say \"x\"'"),
        ("a\nb", "'a\\nb'"),
        ("\x1b[31m", "'\\x1b[31m'"),
        (("a", 1), "('a', 1)"),
        ("größer", "größer"),
    ],
)
def test_values_are_bare_where_that_is_unmistakable(value: object, text: str) -> None:
    assert text_value(value) == text


@given(st.text())
def test_no_text_ends_its_line_and_every_text_can_be_read_back(text: str) -> None:
    shown = text_value(text)
    assert shown.isprintable()
    assert (ast.literal_eval(shown) if shown.startswith(("'", '"')) else shown) == text


class Odd:
    """Something that has only a repr."""

    def __repr__(self) -> str:
        return "odd\nthing"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(Odd()),
            lambda inner: st.lists(inner) | st.dictionaries(st.tuples(st.integers()) | st.text(), inner),
            max_leaves=4,
        ),
    ),
    st.text(),
)
def test_whatever_an_event_holds_is_one_line(fields: dict[str, object], name: str) -> None:
    event = {**fields, "event": name, "level": "info", "time": "12:34"}
    as_json, as_text = to_json(event, default=str), str(text_renderer(colors=False)(None, "info", event))
    json.loads(as_json)
    assert as_json.isprintable()
    assert as_text.isprintable()


def test_an_event_that_holds_itself_is_still_logged() -> None:
    circle: dict[str, object] = {}
    circle["self"] = circle
    line = to_json({"event": "event", "circle": circle}, default=str)
    assert json.loads(line)["circle"] == "{'self': {...}}"


def test_the_grid_s_processes_load_nothing_that_libraries_take_only_where_it_is_installed() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pwgrid", "serve", "--check-only"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environ["CHROMIUM_EXECUTABLE"] = sys.executable
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"structlog.dev", "structlog.threadlocal", "redis.observability.providers"} <= loaded
    # The packages themselves are asked for in vain.
    unused = ("rich.", "greenlet.", "opentelemetry.sdk.metrics.", "pydantic.v1.")
    assert not {name for name in loaded if name.startswith(unused)}
