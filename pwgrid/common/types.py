"""Names that every part of the grid shares. Holds no behaviour."""

from typing import Final, Literal, get_args

BrowserType = Literal["chromium", "firefox", "webkit"]

ChildKind = Literal["worker", "proxy", "redis"]
"""What the master forks."""

Part = Literal["fixed", "pool", "master", "proxy", "worker", "chromium", "firefox", "webkit"]
"""Whom a setting concerns: a process, the browsers of one type, a pool's size, or nobody, since it cannot change."""

BROWSER_TYPES: Final[tuple[BrowserType, ...]] = get_args(BrowserType)
