"""What a client sends to keep Node busy, and what comes of it: calls of Playwright's protocol with hostile values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.hostile.calls import evaluate, tracing_of
from tests.support.protocol_client import ProtocolClient

TOO_MUCH_WORK: Final = "what its client asked for takes too long"
TOO_LARGE: Final = "is too large for the grid"

PLACE: Final = "http://nowhere.test"
"""No such name: what is not intercepted there fails at once."""


@dataclass(frozen=True, slots=True)
class Heavy:
    """A call that would keep Node busy."""

    name: str
    tries: str
    """The messages whose handling this is about: `Type.method Type.method`."""
    call: Callable[[ProtocolClient, str, str], Awaitable[object]]
    """With the client, and a context and a page of its own."""
    answer: str = ""
    """Part of the client's error, or of the sentence with which its session ends. Empty: it gets what it asked for."""


HEAVY: Final[list[Heavy]] = []


def heavy(tries: str, answer: str = "") -> Callable[[Callable[..., Awaitable[object]]], None]:
    """Puts a call into the list, under the name of its function."""
    return lambda call: HEAVY.append(Heavy(call.__name__, tries, call, answer))


async def fetch(client: ProtocolClient, page: str, path: str) -> None:
    await evaluate(client, page, f"fetch('{PLACE}/' + {path}).catch(() => 0)")


# Patterns


PATTERNS: Final = (
    "Page.setNetworkInterceptionPatterns BrowserContext.setNetworkInterceptionPatterns "
    "Page.setWebSocketInterceptionPatterns BrowserContext.setWebSocketInterceptionPatterns"
)
URL_PARTS: Final = ("hash", "hostname", "password", "pathname", "port", "protocol", "search", "username")


async def routed(client: ProtocolClient, page: str, pattern: dict[str, Any], path: str) -> None:
    await client.send(page, "setNetworkInterceptionPatterns", patterns=[pattern])
    await fetch(client, page, path)


@heavy(PATTERNS)
async def a_pattern_that_backtracks(client: ProtocolClient, _context: str, page: str) -> None:
    await routed(client, page, {"regexSource": "(a+)+b", "regexFlags": ""}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_pattern_that_only_backtracking_can_match(client: ProtocolClient, _context: str, page: str) -> None:
    await routed(client, page, {"regexSource": "(?=a)(a+)+b", "regexFlags": ""}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_glob_with_many_stars(client: ProtocolClient, _context: str, page: str) -> None:
    await routed(client, page, {"glob": "**/" + "*x" * 200 + "y"}, "'x'.repeat(2_000_000)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_url_pattern(client: ProtocolClient, _context: str, page: str) -> None:
    parts = {**dict.fromkeys(URL_PARTS, "*"), "pathname": "/((?:a+)+b)"}
    await routed(client, page, {"urlPattern": parts}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_LARGE)
async def a_pattern_that_takes_long_to_compile(client: ProtocolClient, _context: str, page: str) -> None:
    await routed(client, page, {"regexSource": "\\p{RGI_Emoji}" * 300, "regexFlags": "v"}, "'a'")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_pattern_of_web_sockets(client: ProtocolClient, context: str, page: str) -> None:
    patterns = [{"regexSource": "(a+)+b", "regexFlags": "i"}]
    await client.send(context, "setWebSocketInterceptionPatterns", patterns=patterns)
    await evaluate(client, page, f"void new WebSocket('{PLACE.replace('http', 'ws')}/' + 'a'.repeat(40))")
    await client.ended


@heavy("Tracing.harStart", TOO_MUCH_WORK)
async def a_pattern_of_a_har(client: ProtocolClient, context: str, page: str) -> None:
    options = {"urlRegexSource": "(a+)+b", "urlRegexFlags": "i"}
    await client.send(await tracing_of(client, context), "harStart", options=options)
    await fetch(client, page, "'a'.repeat(40)")


@heavy("BrowserContext.clearCookies", TOO_MUCH_WORK)
async def a_pattern_of_cookies(client: ProtocolClient, context: str, _page: str) -> None:
    cookie = {"name": "a" * 40, "value": "x", "domain": "nowhere.test", "path": "/"}
    await client.send(context, "addCookies", cookies=[cookie])
    await client.send(context, "clearCookies", nameRegexSource="(a+)+b", nameRegexFlags="i")
