"""Reads what a client of the Chrome DevTools Protocol (CDP) asks for: a new browser or one that is there, and how long
it is kept without a client."""

from __future__ import annotations

import math
import re
from typing import Final

from pwgrid.common.types import Isolation
from pwgrid.proxy.policy.refusal import Refusal

CDP_PATH: Final = "/cdp"
BROWSER_PATH: Final = "/devtools/browser/"
"""What follows is the id of a session, or anything: so do Chromium's own URLs begin."""

PAGE_PATH: Final = "/devtools/page/"
"""What follows is the id of a session: the connection is to the first page of its browser."""

_SESSION_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAMES: Final = {"firefox": "Firefox", "webkit": "WebKit"}


def is_devtools_path(path: str) -> bool:
    """Whether a WebSocket at this path speaks CDP. Raises Refusal for those of Chromium that the grid does not have."""
    if is_page_path(path):
        if not session_in(path):
            raise Refusal(
                404,
                "this grid has connections to the first page of a session's browser alone (/json/list has the address "
                "of a new one): for others connect to /cdp, and attach to the page there (Target.attachToTarget with "
                "flatten: true)",
            )
        return True
    return path == CDP_PATH or (path.startswith(BROWSER_PATH) and path != BROWSER_PATH)


def is_page_path(path: str) -> bool:
    """Whether a connection to this path is to a page, and not to its browser."""
    return path.startswith(PAGE_PATH)


def session_in(path: str) -> str:
    """Returns the id of a session that this path has, or "" where it has none: then each connection gets a browser."""
    named = path.removeprefix(BROWSER_PATH).removeprefix(PAGE_PATH)
    return named if named != path and _SESSION_ID.fullmatch(named) else ""


def kept_for_s(said: str, most_s: float, *, is_cdp: bool) -> float:
    """Returns for how many seconds the browser is to be kept when its last client has gone. `said` is what the client
    says, `most_s` is KEEP_MAX. Raises Refusal."""
    if not said:
        return 0.0
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Refusal(400, f"keep: {said[:40]!r} is no number of seconds: say ?keep=300, for example")
    if not is_cdp and seconds:
        raise Refusal(
            400,
            "keep: what connect() of Playwright has made ends with its connection, and cannot be kept: leave keep out, "
            "or connect by connect_over_cdp()",
        )
    if seconds > most_s:
        what = f"no browser longer than {most_s:g} s" if most_s else "no browser without a client"
        raise Refusal(
            400, f"keep: this grid keeps {what} (KEEP_MAX={most_s:g}): ask for less, or have its operator raise it"
        )
    return seconds


def check_browser_type(browser_type: str) -> None:
    """Raises Refusal for browsers without CDP."""
    if (name := _NAMES.get(browser_type)) is not None:
        raise Refusal(
            400,
            f"{name} has no CDP, the protocol that this client speaks: connect to it by Playwright's connect(), or "
            "leave the browser out to get Chromium",
        )


def check_isolation(asked: Isolation | None) -> None:
    """Raises Refusal for a client that wants to share a browser: in CDP each client sees all of it."""
    if asked is Isolation.CONTEXT:
        raise Refusal(
            400, "a CDP client has a browser of its own: leave isolation=context out, or use Playwright's connect()"
        )


def speaks_no_cdp() -> Refusal:
    """409: the worker of a lease is one of before an upgrade."""
    return Refusal(
        409,
        "the worker of this lease is of a version of the grid without CDP: give the lease back, and borrow another one",
    )


def session_over(status: str, reason: str | None) -> Refusal:
    """404: the session of a URL has ended."""
    why = f"{status}: {reason}" if reason else status
    return Refusal(
        404,
        f"this session has ended ({why}), and its browser with it: connect to /cdp, or ask /json/version, for another",
        details={"reason": reason},
    )


def not_yours() -> Refusal:
    """404, in the same words whether there is such a session of another token or not."""
    return Refusal(404, "there is no such session (any more): connect to /cdp for a browser")
