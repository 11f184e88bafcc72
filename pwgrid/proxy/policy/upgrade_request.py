"""Decides what becomes of an upgrade request: which browser, or which refusal. Reads bytes, does no I/O."""

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from pwgrid.common.types import BROWSER_TYPES, BrowserType

MAX_HEAD_BYTES: Final = 32 * 1024

Headers = Sequence[tuple[bytes, bytes]]
"""Pairs of lower-case name and value, in the order they came, as httptools gives them."""

_PLAYWRIGHT_AGENT: Final = re.compile(rb"Playwright/(\d+\.\d+)")
_WORKER_PATH: Final = re.compile(r"/playwright/(?P<type>[a-z]+)/(?P<id>[0-9a-f]+)\.(?P<secret>[0-9A-Za-z_-]+)")

# Nothing else of the client's head is the browser server's business: no token, cookie, address or foreign Host.
_PASSED_ON: Final = frozenset(
    {b"user-agent", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version"}
)
_PASSED_ON_PREFIX: Final = b"x-playwright-"


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


def decide(target: bytes, headers: Headers, policy: Policy) -> Wanted:
    """What this upgrade request wants. Raises Refusal, always before a lease is taken.

    `target` is the request target as it came ("/?browser=firefox").
    """
    path, _, query = target.decode("latin-1").partition("?")
    parameters = parse_qsl(query, keep_blank_values=True)
    check_token(policy.token, headers, parameters)
    check_origin(headers, policy.allowed_origins)
    _check_handshake(headers)
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


def browser_server_headers(headers: Headers, *, compression: bool) -> bytes:
    """The header lines that the browser server gets, each ended by CRLF, and the empty line after them.

    The request line is missing: only the worker knows the path of its browser server. Without `compression` the
    offer of permessage-deflate is left out: between processes of one host it only burns CPU.
    """
    lines = [b"host: localhost\r\n"]
    for name, value in headers:
        if (
            name in _PASSED_ON
            or name.startswith(_PASSED_ON_PREFIX)
            or (compression and name == b"sec-websocket-extensions")
        ):
            lines.append(b"%s: %s\r\n" % (name, value))
    lines.append(b"\r\n")
    return b"".join(lines)


def check_token(token: str, headers: Headers, parameters: Iterable[tuple[str, str]]) -> None:
    """Raises Refusal(401) unless the request carries the grid's token as a Bearer header or as `?token=`."""
    if not token:
        return
    given = [value for name, value in parameters if name == "token"]
    for name, value in headers:
        scheme, _, credentials = value.decode("latin-1").partition(" ")
        if name == b"authorization" and scheme.lower() == "bearer":
            given.append(credentials.strip())
    if not any(hmac.compare_digest(candidate.encode(), token.encode()) for candidate in given):
        raise Refusal(
            401,
            "this grid asks for a token: "
            "send the header 'Authorization: Bearer <token>' or add ?token=<token> to the URL",
            headers=(("WWW-Authenticate", 'Bearer realm="pwgrid"'),),
        )


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def check_origin(headers: Headers, allowed: frozenset[str]) -> None:
    """Raises Refusal(403) for a request that a web page of another site makes: browsers send its Origin."""
    for origin in _values(headers, b"origin"):
        if origin.decode("latin-1") not in allowed:
            raise Refusal(
                403,
                "a web page may not drive the grid: this origin is not in ALLOWED_ORIGINS",
                details={"origin": origin.decode("latin-1")[:200]},
            )


def _check_handshake(headers: Headers) -> None:
    keys = _values(headers, b"sec-websocket-key")
    versions = _values(headers, b"sec-websocket-version")
    if len(keys) != 1 or not _is_nonce(keys[0]):
        raise Refusal(400, "bad WebSocket handshake: Sec-WebSocket-Key must be one base64 value of 16 bytes")
    if versions != [b"13"]:
        raise Refusal(
            400,
            "bad WebSocket handshake: Sec-WebSocket-Version must be 13",
            headers=(("Sec-WebSocket-Version", "13"),),
        )


def _is_nonce(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value.strip(), validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _client_version(headers: Headers) -> str | None:
    for agent in _values(headers, b"user-agent"):
        if match := _PLAYWRIGHT_AGENT.match(agent):
            return match[1].decode()
    return None


def _browser_type(
    headers: Headers, parameters: Iterable[tuple[str, str]], policy: Policy, from_path: str | None
) -> BrowserType:
    """`?browser=` or the path, else the client's own type, else the default; they may not contradict each other."""
    url = {value.lower() for name, value in parameters if name == "browser"}
    if from_path is not None:
        url.add(from_path)
    client = {value.decode("latin-1").lower() for value in _values(headers, b"x-playwright-browser")}
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
