"""Makes text safe to print: what a client, a browser or a grid has said must not steer the terminal."""

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from rich.console import Console


def printable(text: str) -> str:
    """The text with all characters escaped except visible ones, spaces and line ends."""
    return _escaped(text, repr)


def one_line(text: str) -> str:
    """The same as one line."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n")


def clock(at: float | None = None) -> str:
    """The time of day here; `at` is in Unix seconds, None is now."""
    return f"{datetime.fromtimestamp(time.time() if at is None else at).astimezone():%H:%M:%S}"


def as_json(found: Any) -> str:
    """Indented JSON with the same characters escaped; orjson itself escapes only those below U+0020."""
    return _escaped(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode(), json.dumps)


def compact(found: Any) -> str:
    """The same in one line."""
    return _escaped(orjson.dumps(found).decode(), json.dumps)


def is_live(console: "Console") -> bool:
    """Whether lines may be drawn anew there. FORCE_COLOR makes rich take a pipe for a terminal: it asks for colours."""
    return console.is_interactive and sys.stdout.isatty()


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return "".join(each if each.isprintable() or each == "\n" else escape(each)[1:-1] for each in text)
