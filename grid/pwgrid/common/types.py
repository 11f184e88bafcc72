"""Types that every part of the grid shares."""

from enum import StrEnum
from typing import Final, Literal, get_args

BrowserType = Literal["chromium", "firefox", "webkit"]

ChildKind = Literal["worker", "proxy", "forwarder", "tls", "redis"]
"""The kinds of processes that the master forks."""

BROWSER_TYPES: Final[tuple[BrowserType, ...]] = get_args(BrowserType)


class Isolation(StrEnum):
    """What a session shares with others. The values stand in settings, records, packets and the API."""

    CONTEXT = "context"  # a browser, in which it has contexts of its own
    BROWSER = "browser"  # a Node process; the browser is its own
    PROCESS = "process"  # nothing but the host


class Protocol(StrEnum):
    """What a client speaks. The values stand in records, packets and the API."""

    PLAYWRIGHT = "playwright"
    CDP = "cdp"  # the Chrome DevTools Protocol: Puppeteer, connect_over_cdp(), most agents


def spoken_by(browser_type: str) -> tuple[Protocol, ...]:
    """Returns the protocols in which a worker of this version serves its browsers."""
    return (Protocol.PLAYWRIGHT, Protocol.CDP) if browser_type == "chromium" else (Protocol.PLAYWRIGHT,)


GIVEN_BY_CLIENTS: Final = ("name", "run", "labels")
"""The fields of a session's record that its client itself gives."""
