"""Decides what becomes of an upgrade request: which browser, or which refusal. Reads a parsed head, does no I/O."""

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidMethod, InvalidUpgrade
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.proxy.policy.launch_options import not_heeded
from pwgrid.proxy.policy.refusal_reasons import RefusalReason, reason_of
from pwgrid.settings.model import is_loopback

CONNECT_HINT: Final = "this is a Playwright grid: connect a Playwright client to ws://<host>:<port>/?browser=chromium"

_PLAYWRIGHT_AGENT: Final = re.compile(r"Playwright/(\d+\.\d+)")
_VERSION_CHARACTERS: Final = 20
_HOST: Final = re.compile(
    r"(\[[0-9A-Fa-f:.%]+\]|[^\x00-\x20\x7f\[\]:/?#@\\,]*)(?::\d*)?"
)  # RFC 9110 7.2, RFC 3986 3.2.2
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
        reason: RefusalReason | None = None,
    ) -> None:
        super().__init__(error)
        self.reason = reason or reason_of(status)
        self.status = status
        self.error = error
        self.headers = headers
        self.details = details or {}


Address = tuple[str, int | None] | None
"""Host and port; None as the port of a Unix socket."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the grid."""

    token: str = ""
    allowed_origins: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    """As the setting has them."""
    own_hosts: frozenset[str] = frozenset()
    """By which the grid itself tells others where it is."""
    loopback_listeners: frozenset[Address] = frozenset()

    def check(self, headers: Headers, parameters: Iterable[tuple[str, str]], local: Address) -> None:
        """Raises Refusal unless the request may be served; `local` is the address that the client has connected to."""
        self.check_host(headers, local)
        check_token(self.token, headers, parameters)
        check_origin(headers, self.allowed_origins)

    def check_host(self, headers: Headers, local: Address) -> None:
        """Raises Refusal for a name that is none of the grid's: a web page whose own name has come to mean our address
        (DNS rebinding) asks by that, and would read the answers as those of its own site.

        A literal address cannot be given to somebody else, so no page gets at us by one.
        """
        given = headers.get_all("host")
        if len(given) != 1 or not (host := _HOST.fullmatch(given[0])):
            raise Refusal(400, "a request names one host in its Host header")
        name = host[1].lower().removeprefix("[").removesuffix("]").removesuffix(".")
        if _is_one_of(name, self.allowed_hosts) or _is_one_of(name, self.own_hosts) or _is_loopback_name(name):
            return
        if local not in self.loopback_listeners and (not self.allowed_hosts or _is_address(name)):
            return
        raise Refusal(
            403,
            "the grid may not be asked for by this name: connect to its address (on the same host 127.0.0.1), "
            "or add the name to ALLOWED_HOSTS",
            details={"host": name[:200]},
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """One pool that wants workers. `options` are the launch options of its browsers that clients may ask for, too."""

    browser_type: BrowserType
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the grid allows and offers at this moment; `pools` by name, in the order of the configuration."""

    default_browser_type: BrowserType
    pools: Mapping[str, Offer]
    versions: frozenset[str]
    """Playwright major.minor of the workers that serve now; empty when none is known yet."""
    access: Access = field(default_factory=Access)

    @property
    def browser_types(self) -> tuple[str, ...]:
        """Those that any pool offers, sorted."""
        return tuple(sorted({offer.browser_type for offer in self.pools.values()}))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session that may be leased: of which type and pool, for which client version, on which worker if one was named.

    `not_heeded` are the launch options that nobody heeds.
    """

    browser_type: BrowserType
    pool: str
    playwright_version: str | None = None
    worker_id: str | None = None
    endpoint_path: str | None = None
    not_heeded: tuple[str, ...] = ()


def decide(request: Request, policy: Policy, local: Address) -> Wanted:
    """What this upgrade request wants. Raises Refusal, always before a lease is taken.

    `local` is the address that the client has connected to.
    """
    path, _, query = request.path.partition("?")
    headers, parameters = request.headers, parse_qsl(query, keep_blank_values=True)
    policy.access.check(headers, parameters, local)
    _check_handshake(request)
    version = _client_version(headers)
    if version is not None and policy.versions and version not in policy.versions:
        known = ", ".join(sorted(policy.versions))
        raise Refusal(
            428,
            f"this client is Playwright {version[:_VERSION_CHARACTERS]}, the grid's browsers speak {known}: "
            f"install Playwright {known} on the client, or upgrade the grid",
            details={"versions": sorted(policy.versions)},
        )
    named = _WORKER_PATH.fullmatch(path)
    if named is None and path not in ("", "/"):
        raise Refusal(404, f"there is nothing at {path[:100]}: connect to ws://<host>:<port>/?browser=chromium")
    pool = _pool(headers, parameters, policy, named["type"] if named else None)
    offer = policy.pools[pool]
    ignored = not_heeded(headers, parameters, offer.options)
    return Wanted(offer.browser_type, pool, version, named["id"] if named else None, path if named else None, ignored)


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


def _is_one_of(name: str, patterns: Iterable[str]) -> bool:
    return any(
        pattern == "*" or name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))
        for pattern in map(str.lower, patterns)
    )


def _is_loopback_name(name: str) -> bool:
    """RFC 6761, section 6.3, keeps all names below localhost for the loopback."""
    return name.endswith(".localhost") or is_loopback(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


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


def _check_handshake(request: Request) -> None:
    """Raises Refusal for what RFC 6455, section 4.2.1, does not allow."""
    if len(request.headers.get_all("upgrade")) > 1:
        raise Refusal(
            400, "bad WebSocket handshake: there is more than one Upgrade header", reason=RefusalReason.BAD_HANDSHAKE
        )
    try:
        ServerProtocol().process_request(request)
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
        reason=RefusalReason.BAD_HANDSHAKE,
    )


def _client_version(headers: Headers) -> str | None:
    for agent in headers.get_all("user-agent"):
        if match := _PLAYWRIGHT_AGENT.match(agent):
            return match[1]
    return None


def _pool(headers: Headers, parameters: Iterable[tuple[str, str]], policy: Policy, from_path: str | None) -> str:
    """The pool that `?pool=` names, else the one named like the browser type, else the first one of that type."""
    browser_type, named = _browser_type(headers, parameters, from_path), _named_pool(parameters, policy)
    if named is not None:
        has = policy.pools[named].browser_type
        if browser_type not in (None, has):
            raise Refusal(400, f"pool {named} has {has} browsers, and {browser_type} is asked for: make them agree")
        return named
    chosen = browser_type or policy.default_browser_type
    fit = [name for name, offer in policy.pools.items() if offer.browser_type == chosen]
    if fit:
        return chosen if chosen in fit else fit[0]
    offered = ", ".join(policy.browser_types) or "none"
    raise _no_such_browser(
        f"this grid runs no {chosen} workers (it has: {offered}): start it with --{chosen} 1 or more"
    )


def _named_pool(parameters: Iterable[tuple[str, str]], policy: Policy) -> str | None:
    named = {value.lower() for name, value in parameters if name == "pool"}
    if len(named) > 1:
        raise Refusal(400, f"the URL asks for the pools {' and '.join(sorted(named))}: name one")
    for name in named - policy.pools.keys():
        there = ", ".join(policy.pools) or "none"
        raise Refusal(404, f"there is no pool {name[:63]!r}; pools are: {there}", details={"pools": [*policy.pools]})
    return min(named, default=None)


def _browser_type(headers: Headers, parameters: Iterable[tuple[str, str]], from_path: str | None) -> str | None:
    """`?browser=` or the path, else the client's own type; None where none is named. They may not contradict each
    other."""
    url = {value.lower() for name, value in parameters if name == "browser"}
    if from_path is not None:
        url.add(from_path)
    client = {value.lower() for value in headers.get_all("x-playwright-browser")}
    for given in sorted(url | client):
        if given not in BROWSER_TYPES:
            raise _no_such_browser(f"unknown browser {given[:40]!r}: use one of {', '.join(BROWSER_TYPES)}")
    if len(url) > 1:
        raise _no_such_browser(f"the URL asks for {' and '.join(sorted(url))}: name one browser")
    if len(client) > 1 or (url and client and url != client):
        asked = f"the URL asks for {min(url)}" if url else "no browser is named in the URL"
        raise _no_such_browser(f"{asked}, but the client is {' and '.join(sorted(client))}: make them agree")
    return min(url or client, default=None)


def _no_such_browser(error: str) -> Refusal:
    return Refusal(400, error, reason=RefusalReason.NO_SUCH_BROWSER)
