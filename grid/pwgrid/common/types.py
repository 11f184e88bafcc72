"""Types that every part of the grid shares."""

from typing import Final, Literal, get_args

BrowserType = Literal["chromium", "firefox", "webkit"]

ChildKind = Literal["worker", "proxy", "redis"]
"""The kinds of processes that the master forks."""

BROWSER_TYPES: Final[tuple[BrowserType, ...]] = get_args(BrowserType)

GIVEN_BY_CLIENTS: Final = ("name", "run", "labels")
"""The fields of a session's record that its client itself gives."""
