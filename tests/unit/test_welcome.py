"""The lines to paste at the end of a start."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from pwgrid.cli import own_command
from pwgrid.cli.announce_ready import StartMessages, is_by_hand
from pwgrid.installed.browsers import SearchPaths, ffmpeg_paths
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.value_types import Secret


@pytest.mark.parametrize(
    ("token", "has_tokens", "query", "said"),
    [
        ("", False, "", None),
        ("s3cret", False, "/?token=YOUR_TOKEN", None),
        ("", True, "/?token=YOUR_TOKEN", r"YOUR_TOKEN is what \S.* token create --name NAME --port 7 prints"),
        ("s3cret", True, "/?token=YOUR_TOKEN", r"YOUR_TOKEN is PWGRID_TOKEN, or what \S.* token create --name NAME .*"),
    ],
)
def test_a_token_is_named_wherever_the_grid_asks_for_one(
    token: str,
    has_tokens: bool,
    query: str,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("INVOCATION_ID", "NOTIFY_SOCKET", "SUPERVISOR_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings().model_copy(update={"token": Secret(token), "port": 7})
    file = tmp_path / "tokens.json"
    if has_tokens:
        file.touch()
    StartMessages(settings, RuntimeDir.create("/nowhere", 7), None, "a private one", file).ready(
        {"ready": True, "reason": None, "pools": []}
    )
    text = capsys.readouterr().out
    words = dict(re.findall(r"(?m)^  (\w+): +(.+)$", text))
    assert words["Python"] == f'browser = p.chromium.connect("ws://127.0.0.1:7{query}")'
    assert words["Node"] == f"const browser = await chromium.connect('ws://127.0.0.1:7{query}');"
    assert (said is None) == ("token" not in words)
    assert said is None or re.fullmatch(said, words["token"])
    assert "s3cret" not in text


def test_a_removed_current_directory_does_not_keep_a_grid_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    command = tmp_path / "pwgrid"
    command.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(Path, "cwd", gone)
    assert own_command.typed() == str(command)


def test_a_command_in_a_directory_with_a_space_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "my grid"
    place.mkdir()
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", "")
    assert shlex.split(own_command.typed()) == [f"{place}/python", "-m", "pwgrid"]
    (place / "pwgrid").touch(mode=0o755)
    assert shlex.split(own_command.typed()) == [f"{place}/pwgrid"]
    monkeypatch.chdir(tmp_path)
    assert shlex.split(own_command.typed()) == ["my grid/pwgrid"]


def test_run_is_told_an_address_that_keeps_the_host_s_name() -> None:
    ready_in, ready_out = os.pipe()
    settings = Settings().model_copy(update={"host": "news"})
    messages = StartMessages(settings, RuntimeDir.create("/nowhere", 8080), ready_out, None)
    messages.ready({"ready": True, "reason": None, "pools": []})
    with os.fdopen(ready_in) as told:
        assert json.loads(told.read())["http"] == "http://news:8080"


def test_a_file_of_tokens_where_nobody_may_look_keeps_no_ready_grid_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """For root, who may look everywhere, a name that is too long stands in: Path.exists raises OSError for it, too."""
    messages = StartMessages(Settings(), RuntimeDir.create("/nowhere", 8080), None, None, Path("/", "x" * 1000))
    messages.ready({"ready": True, "reason": None, "pools": []})
    assert capsys.readouterr().out.startswith("pwgrid ready: ws://")


@pytest.mark.parametrize("is_there", [False, True])
def test_the_ready_line_says_where_videos_lack_ffmpeg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_there: bool
) -> None:
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setattr(own_command, "typed", lambda: "pwgrid")
    if is_there:
        for path in ffmpeg_paths(SearchPaths()):
            path.parent.mkdir()
            path.touch()
    messages = StartMessages(Settings(), RuntimeDir.create("/nowhere", 8080), None, None)
    messages.ready({"ready": True, "reason": None, "pools": []})
    line = capsys.readouterr().out.splitlines()[0]
    assert (" | no videos: pwgrid setup --video gets ffmpeg | " in line) is not is_there


@pytest.mark.parametrize(
    ("variable", "on_terminal", "off_terminal"),
    [
        ("INVOCATION_ID", True, False),  # a desktop's terminal has it from the systemd of its user
        ("NOTIFY_SOCKET", False, False),
        ("SUPERVISOR_ENABLED", False, False),
        ("HOME", True, True),
    ],
)
def test_a_person_is_one_on_a_terminal_whatever_started_that(
    variable: str, on_terminal: bool, off_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INVOCATION_ID", "NOTIFY_SOCKET", "SUPERVISOR_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/x")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert is_by_hand() is on_terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert is_by_hand() is off_terminal
