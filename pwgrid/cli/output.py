"""What commands print: nothing that a client, a browser or a grid has said may steer the terminal."""

import json
from collections.abc import Callable
from typing import Any

import orjson


def printable(text: str) -> str:
    """The text with everything escaped that is neither visible, a space nor the end of a line."""
    return _escaped(text, repr)


def as_json(found: Any) -> str:
    """Indented JSON; orjson itself escapes only what lies below U+0020."""
    return _escaped(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode(), json.dumps)


def compact(found: Any) -> str:
    """JSON in one line, for a stream of such lines."""
    return _escaped(orjson.dumps(found).decode(), json.dumps)


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return "".join(each if each.isprintable() or each == "\n" else escape(each)[1:-1] for each in text)
