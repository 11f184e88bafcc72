"""Makes text, JSON and tables safe to print: what a client, a browser or a grid says must not steer the terminal."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED: Final = 10_000
_NARROW: Final = 80
_MAY_WRAP: Final = ("BEGAN", "CLIENT", "REASON", "RUN", "TOKEN", "LABELS", "")


def printable(text: str) -> str:
    """The text with all characters escaped except visible ones, spaces and line ends."""
    return _escaped(text, repr)


def one_line(text: str) -> str:
    """The text on one line, with all characters escaped except visible ones and spaces."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n")


def clock(at: float | None = None) -> str:
    """The time of day here; `at` is in Unix seconds, None is now."""
    return f"{datetime.fromtimestamp(time.time() if at is None else at).astimezone():%H:%M:%S}"


def as_json(found: Any) -> str:
    """Indented JSON with the same characters escaped; orjson itself escapes only those below U+0020."""
    return _escaped(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode(), json.dumps)


def compact(found: Any) -> str:
    """JSON on one line, escaped likewise."""
    return _escaped(orjson.dumps(found).decode(), json.dumps)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under a head: as wide as the terminal, elsewhere as wide as they need."""
    from rich.console import Console  # the master and its children, which print as well, never load it
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    if not sys.stdout.isatty():  # rich takes a pipe for a terminal, too, where FORCE_COLOR is set
        console.width = _UNBOUNDED
    gap = 1 if console.width <= _NARROW else 2
    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in head:
        drawn.add_column(name, no_wrap=name not in _MAY_WRAP, overflow="fold")
    for row in rows:
        drawn.add_row(*(one_line(str(each)) for each in row))
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def is_live(console: "Console") -> bool:
    """Whether lines may be drawn anew there. FORCE_COLOR makes rich take a pipe for a terminal: it asks for colours."""
    return console.is_interactive and sys.stdout.isatty()


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return "".join(each if each.isprintable() or each == "\n" else escape(each)[1:-1] for each in text)
