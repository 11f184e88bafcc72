"""What commands print of what others have said."""

import json

import pytest

from pwgrid.cli.output import as_json, printable


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert printable("two\nlines of 'text' äöü €") == "two\nlines of 'text' äöü €"
    assert printable("a\x1b[31m\x9b\u202e\r") == r"a\x1b[31m\x9b\u202e\r"


@pytest.mark.parametrize("found", [{"a": "\x1b[2J\x9b\u202e\x7f"}, ["ä", 1, None]])
def test_json_is_the_same_json_without_a_control_character(found: object) -> None:
    text = as_json(found)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == found
