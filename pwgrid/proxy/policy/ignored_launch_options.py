"""Finds launch options of a client that the grid ignores: its browsers run already, and are shared. Refuses nothing.

Playwright Test and pytest-playwright send launch options with each connect, as JSON in a header.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import orjson
from websockets.datastructures import Headers

HEADER: Final = "x-playwright-launch-options"
PARAMETER: Final = "launch-options"

MAX_NAMES: Final = 20
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_CHARACTERS: Final = 40

_OF_THE_CLIENT: Final = frozenset(
    {"timeout", "handleSIGHUP", "handleSIGINT", "handleSIGTERM", "logger", "tracesDir", "artifactsDir"}
)
"""Playwright Test sends these with each connect; they are about the client's own processes and directories."""


def not_heeded(headers: Headers, parameters: Iterable[tuple[str, str]], grid: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the names of ignored options, sorted; no values, which may be secrets. Leaves out options that ask for
    nothing, or for what `grid` has anyway (Playwright's names and values)."""
    given = [value for name, value in parameters if name == PARAMETER] or headers.get_all(HEADER)
    if not given:
        return ()
    try:
        options = orjson.loads(given[0])
    except orjson.JSONDecodeError:  # Playwright's own server ignores that, too
        return ()
    if not isinstance(options, dict):
        return ()
    names = [
        name
        for name, value in options.items()
        if name not in _OF_THE_CLIENT and (value not in (None, grid[name]) if name in grid else value)
    ]
    return tuple(_ODD.sub("?", name[:_NAME_CHARACTERS]) for name in sorted(names)[:MAX_NAMES])
