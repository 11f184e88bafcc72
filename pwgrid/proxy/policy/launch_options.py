"""Which of a client's launch options nobody heeds: the grid's browsers run already, and are shared. Refuses nothing.

Playwright Test and pytest-playwright send them with each connect, as JSON in a header.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from websockets.datastructures import Headers

HEADER: Final = "x-playwright-launch-options"
PARAMETER: Final = "launch-options"

MAX_NAMES: Final = 20
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_CHARACTERS: Final = 40

_OF_THE_CLIENT: Final = frozenset(
    {"timeout", "handleSIGHUP", "handleSIGINT", "handleSIGTERM", "logger", "tracesDir", "artifactsDir"}
)
"""They concern a process or a directory of the client's own, and come with each connect of Playwright Test."""


def not_heeded(headers: Headers, parameters: Iterable[tuple[str, str]], grid: Mapping[str, object]) -> tuple[str, ...]:
    """The names of those options, sorted. Not of those that ask for nothing, or for what the browsers of the `grid` are
    anyway (options and values as Playwright has them). Values are not told: they may be secrets."""
    given = [value for name, value in parameters if name == PARAMETER] or headers.get_all(HEADER)
    if not given:
        return ()
    try:
        options = json.loads(given[0])
    except ValueError:  # Playwright's own server takes that for none, too
        return ()
    if not isinstance(options, dict):
        return ()
    names = [
        name
        for name, value in options.items()
        if name not in _OF_THE_CLIENT and (value not in (None, grid[name]) if name in grid else value)
    ]
    return tuple(_ODD.sub("?", name[:_NAME_CHARACTERS]) for name in sorted(names)[:MAX_NAMES])
