"""What commands print of what others have said."""

import json

import pytest

from pwgrid.cli.announce_ready import say, say_for_now
from pwgrid.cli.output import as_json, compact, one_line, printable
from pwgrid.cli.sessions import follow_sessions


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert printable("two\nlines of 'text' äöü €") == "two\nlines of 'text' äöü €"
    assert printable("a\x1b[31m\x9b\u202e\r") == r"a\x1b[31m\x9b\u202e\r"


def test_one_line_is_one_line() -> None:
    assert one_line("it's\n\\ \x1b[2J ä") == r"it's\n\ \x1b[2J ä"
    assert one_line("it's \\ fine") == "it's \\ fine"


@pytest.mark.parametrize("found", [{"a": "\x1b[2J\x9b\u202e\x7f"}, ["ä", 1, None]])
def test_json_is_the_same_json_without_a_control_character(found: object) -> None:
    text = as_json(found)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == found
    assert compact(found).isprintable()
    assert json.loads(compact(found)) == found


def test_the_lines_of_a_start_steer_no_terminal_though_a_browser_may_have_said_why_it_is_not_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("not ready: \x1b]0;owned\x07")
    say_for_now("launching \x9b2J")
    assert capsys.readouterr().out == (
        "pwgrid not ready: \\x1b]0;owned\\x07\n" + "\r\x1b[K" + "pwgrid launching \\x9b2J" + "\r"
    )


def test_a_session_that_begins_as_the_latest_ones_are_read_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    def session(name: str, status: str) -> dict[str, str]:
        return {"id": name, "status": status}

    latest = [session("b", "running"), session("a", "running")]
    news = [[session("b", "running"), session("a", "completed")], [session("b", "failed"), session("a", "running")]]
    follow_sessions(latest, iter(news), as_json=True)
    shown = [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]
    assert shown == [("a", "running"), ("b", "running"), ("a", "completed"), ("b", "failed"), ("a", "running")]
