"""Names that every part of the grid shares. Holds no behaviour."""

from typing import Final, Literal, get_args

BrowserType = Literal["chromium", "firefox", "webkit"]

BROWSER_TYPES: Final[tuple[BrowserType, ...]] = get_args(BrowserType)
