"""Decides what becomes of an upgrade request: which browser, or which refusal. Reads a parsed head, does no I/O."""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidMethod, InvalidUpgrade
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.common.types import BROWSER_TYPES, BrowserType

CONNECT_HINT: Final = "this is a Playwright grid: connect a Playwright client to ws://<host>:<port>/?browser=chromium"

_PLAYWRIGHT_AGENT: Final = re.compile(r"Playwright/(\d+\.\d+)")
_WORKER_PATH: Final = re.compile(r"/playwright/(?P<type>[a-z]+)/(?P<id>[0-9a-f]+)\.(?P<secret>[0-9A-Za-z_-]+)")

# Nothing else of the client's head is the browser server's business: no token, cookie, address or foreign Host.
_PASSED_ON: Final = frozenset({"user-agent", "upgrade", "connection", "sec-websocket-key", "sec-websocket-version"})
_PASSED_ON_PREFIX: Final = "x-playwright-"
_COMPRESSION: Final = "sec-websocket-extensions"


class Refusal(Exception):
    """An HTTP answer instead of a session. `error` is shown word for word to the user of the Playwright client."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = headers
        self.details = details or {}


@dataclass(frozen=True, slots=True)
class Policy:
    """What the grid allows and offers at this moment."""

    default_browser_type: BrowserType
    pools: frozenset[BrowserType]
    versions: frozenset[str]
    """Playwright major.minor of the workers that serve now; empty when none is known yet."""
    token: str = ""
    allowed_origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session that may be leased: of which type, for which client version, on which worker if one was named."""

    browser_type: BrowserType
    playwright_version: str | None = None
    worker_id: str | None = None
    endpoint_path: str | None = None


def decide(protocol: ServerProtocol, request: Request, policy: Policy) -> Wanted:
    """What this upgrade request wants. Raises Refusal, always before a lease is taken.

    `protocol` is what has parsed the request.
    """
    path, _, query = request.path.partition("?")
    headers, parameters = request.headers, parse_qsl(query, keep_blank_values=True)
    check_token(policy.token, headers, parameters)
    check_origin(headers, policy.allowed_origins)
    _check_handshake(protocol, request)
    version = _client_version(headers)
    if version is not None and policy.versions and version not in policy.versions:
        known = ", ".join(sorted(policy.versions))
        raise Refusal(
            428,
            f"this client is Playwright {version}, the grid's browsers speak {known}: "
            f"install Playwright {known} on the client, or upgrade the grid",
            details={"versions": sorted(policy.versions)},
        )
    named = _WORKER_PATH.fullmatch(path)
    if named is None and path not in ("", "/"):
        raise Refusal(404, f"there is nothing at {path[:100]}: connect to ws://<host>:<port>/?browser=chromium")
    browser_type = _browser_type(headers, parameters, policy, named["type"] if named else None)
    return Wanted(browser_type, version, named["id"] if named else None, path if named else None)


def browser_server_headers(headers: Headers, *, compression: bool) -> dict[str, str]:
    """The headers that the browser server gets, names in lower case.

    Without `compression` the offer of permessage-deflate is left out: between processes of one host it only burns CPU.
    """
    passed_on = {"host": "localhost"}
    for given, value in headers.raw_items():
        name = given.lower()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX) or (compression and name == _COMPRESSION):
            passed_on[name] = f"{passed_on[name]}, {value}" if name in passed_on else value
    return passed_on


def check_token(token: str, headers: Headers, parameters: Iterable[tuple[str, str]]) -> None:
    """Raises Refusal(401) unless the request carries the grid's token as a Bearer header or as `?token=`."""
    if not token:
        return
    given = [value for name, value in parameters if name == "token"]
    for value in headers.get_all("authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            given.append(credentials.strip())
    if any(hmac.compare_digest(candidate.encode(), token.encode()) for candidate in given):
        return
    if any(given):
        sentence = "the token is wrong: it is not the one that this grid was started with (PWGRID_TOKEN)"
    else:
        sentence = (
            "this grid asks for a token: "
            "send the header 'Authorization: Bearer <token>' or add ?token=<token> to the URL"
        )
    raise Refusal(401, sentence, headers=(("WWW-Authenticate", 'Bearer realm="pwgrid"'),))


def check_origin(headers: Headers, allowed: frozenset[str]) -> None:
    """Raises Refusal(403) for a request that a web page of another site makes: browsers send its Origin."""
    for origin in headers.get_all("origin"):
        if origin not in allowed:
            raise Refusal(
                403,
                "a web page may not drive the grid: this origin is not in ALLOWED_ORIGINS",
                details={"origin": origin[:200]},
            )


def _check_handshake(protocol: ServerProtocol, request: Request) -> None:
    """Raises Refusal for what RFC 6455, section 4.2.1, does not allow."""
    try:
        protocol.process_request(request)
    except InvalidHandshake as invalid:
        error = invalid
    else:
        return
    if isinstance(error, InvalidMethod | InvalidUpgrade):
        raise Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"),))
    sentences = {
        "Sec-WebSocket-Key": "Sec-WebSocket-Key must be one base64 value of 16 bytes",
        "Sec-WebSocket-Version": "Sec-WebSocket-Version must be 13",
    }
    name = error.name if isinstance(error, InvalidHeader) else ""
    raise Refusal(
        400,
        f"bad WebSocket handshake: {sentences.get(name, str(error))}",
        headers=(("Sec-WebSocket-Version", "13"),) if name == "Sec-WebSocket-Version" else (),
    )


def _client_version(headers: Headers) -> str | None:
    for agent in headers.get_all("user-agent"):
        if match := _PLAYWRIGHT_AGENT.match(agent):
            return match[1]
    return None


def _browser_type(
    headers: Headers, parameters: Iterable[tuple[str, str]], policy: Policy, from_path: str | None
) -> BrowserType:
    """`?browser=` or the path, else the client's own type, else the default; they may not contradict each other."""
    url = {value.lower() for name, value in parameters if name == "browser"}
    if from_path is not None:
        url.add(from_path)
    client = {value.lower() for value in headers.get_all("x-playwright-browser")}
    for given in sorted(url | client):
        if given not in BROWSER_TYPES:
            raise Refusal(400, f"unknown browser {given[:40]!r}: use one of {', '.join(BROWSER_TYPES)}")
    if len(url) > 1:
        raise Refusal(400, f"the URL asks for {' and '.join(sorted(url))}: name one browser")
    if len(client) > 1 or (url and client and url != client):
        asked = f"the URL asks for {min(url)}" if url else "no browser is named in the URL"
        raise Refusal(400, f"{asked}, but the client is {' and '.join(sorted(client))}: make them agree")
    chosen = min(url or client or {policy.default_browser_type})
    for browser_type in BROWSER_TYPES:
        if browser_type == chosen and browser_type in policy.pools:
            return browser_type
    offered = ", ".join(sorted(policy.pools)) or "none"
    raise Refusal(400, f"this grid runs no {chosen} workers (it has: {offered}): start it with --{chosen} 1 or more")
