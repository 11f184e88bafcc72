"""Types that every part of the grid shares. Holds no behaviour."""

from typing import Final, Literal, get_args

BrowserType = Literal["chromium", "firefox", "webkit"]

ChildKind = Literal["worker", "proxy", "redis"]
"""The kinds of processes that the master forks."""

Part = Literal["fixed", "pool", "master", "proxy", "worker", "chromium", "firefox", "webkit"]
"""What a setting concerns: a kind of process, the browsers of one type, or a pool's size; "fixed": it cannot change."""

BROWSER_TYPES: Final[tuple[BrowserType, ...]] = get_args(BrowserType)
