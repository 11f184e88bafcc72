"""Which lines of a log are a session's story, and how its record is told."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pwgrid.cli.logs import naming, record_text, show, story

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


LINES = b'one \x1b[31m\xff\n{"event":"x","said":"\\u001b[2J"}\n{not json}\n[1]\nlast'
PRINT = (sys.executable, "-c", f"import sys; sys.stdout.buffer.write({LINES!r})")


def run_show(*, as_json: bool) -> bytes:
    code = f"from pwgrid.cli.logs import *; show({PRINT!r}, everything, as_json={as_json})"
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
    shown = show(command, lambda line: b"a" in line)
    assert (shown.exit_code, shown.lines) == (3, 2)
