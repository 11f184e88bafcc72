"""Decides which browser an upgrade request gets, or which refusal: checks its handshake, and reads what it asks for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidMethod, InvalidUpgrade
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.common.playwright_version import minor_of_client
from pwgrid.common.types import BROWSER_TYPES, BrowserType, Isolation, Protocol
from pwgrid.proxy.policy.access import ANYBODY, DIRECT, Access, Identity, check_origin
from pwgrid.proxy.policy.arrival import Address, Arrival
from pwgrid.proxy.policy.choose_pool import (
    Offer,
    Wanted,
    asked_browser_type,
    asked_pool,
    choose_pool,
    serving_pools,
)
from pwgrid.proxy.policy.devtools_request import (
    check_browser_type,
    is_devtools_path,
    is_page_path,
    kept_for_s,
    session_in,
)
from pwgrid.proxy.policy.devtools_request import check_isolation as check_isolation_of_cdp
from pwgrid.proxy.policy.label_match import OfferedLabels
from pwgrid.proxy.policy.launch_options import HEADER, LaunchRules, judged
from pwgrid.proxy.policy.own_browser import (
    OwnBrowser,
    asked_isolation,
    asked_network,
    check,
    isolation_of,
    own_browser,
    pool_with,
    takes_lifetime,
)
from pwgrid.proxy.policy.profile_request import asked_profile, not_with_lease
from pwgrid.proxy.policy.refusal import CLIENT_URL, Refusal, bad_handshake, nothing_at, other_version
from pwgrid.proxy.roster import PoolView

CONNECT_HINT: Final = f"this is a Playwright grid: connect a Playwright client to {CLIENT_URL}"

_WORKER_PATH: Final = re.compile(r"/playwright/(?P<type>[a-z]+)/(?P<id>[0-9a-f]+)\.(?P<secret>[0-9A-Za-z_-]+)")

_LEASE_PATH: Final = re.compile(
    r"/lease/(?P<type>[a-z]+)/(?P<worker>[0-9a-f]+)/(?P<id>[0-9a-f]+)\.(?P<secret>[0-9A-Za-z_-]+)"
    r"(?P<cdp>/cdp)?"
)

# The browser server gets nothing else of the client's head: no token, cookie, address or foreign Host.
_PASSED_ON: Final = frozenset({"user-agent", "upgrade", "connection", "sec-websocket-key", "sec-websocket-version"})
_PASSED_ON_PREFIX: Final = "x-playwright-"
_COMPRESSION: Final = "sec-websocket-extensions"

_HANDSHAKE: Final = ServerProtocol()
"""Judges all requests: making one takes as long as judging. Its state from the last request is not read."""

KEY: Final = "sec-websocket-key"
_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==")

MAX_NAME_CHARACTERS: Final = 128
NAME_RULE: Final = f"at most {MAX_NAME_CHARACTERS} letters (A to Z), digits, spaces, '.', '_' and '-'"
_NAME: Final = re.compile(rf"[0-9A-Za-z ._-]{{0,{MAX_NAME_CHARACTERS}}}")


@dataclass(frozen=True, slots=True)
class Policy:
    """What the grid allows and offers now. `pools` are by name, in the order of the configuration."""

    default_browser_type: BrowserType
    pools: Mapping[str, PoolView]
    access: Access = field(default_factory=Access)
    labels: OfferedLabels = field(default_factory=OfferedLabels)
    launch: LaunchRules = field(default_factory=LaunchRules)
    draining: Mapping[str, PoolView] = field(default_factory=dict)
    """Pools that are offered no more, by name: clients with leases still come to their workers."""
    pools_of_workers: Mapping[str, str] = field(default_factory=dict)
    """The name of each worker's pool, by the worker's id."""
    versions_of_workers: Mapping[str, str] = field(default_factory=dict)
    """Playwright major.minor of each worker, by the worker's id."""
    keep_max_s: float = 0.0
    """KEEP_MAX."""
    profiles: str = "auto"
    """PROFILES."""

    def pool_of(self, worker_id: str) -> PoolView | None:
        """Returns the pool of this worker, offered or draining; None for a worker of which nobody has told."""
        name = self.pools_of_workers.get(worker_id, "")
        return self.pools.get(name) or self.draining.get(name)


@dataclass(frozen=True, slots=True)
class LeasePath:
    """The path of a borrowed lease's endpoint: names the worker and the lease, and has the lease's secret."""

    browser_type: BrowserType
    worker_id: str
    lease_id: str
    secret: str
    own: OwnBrowser | None = None
    """The browser that this client asks for itself; the lease may say that it gets one, too."""
    protocol: Protocol = Protocol.PLAYWRIGHT
    keep_s: float = 0.0
    """How long its browser is kept without a client."""


@dataclass(frozen=True, slots=True)
class SessionPath:
    """The path of one session's browser, to which a CDP client wants a connection. There may be no such session yet."""

    session_id: str
    identity: Identity
    keep_s: float
    is_of_page: bool = False
    """Whether the connection is to the first page of that browser."""


class ConnectRequest(NamedTuple):
    """What an upgrade request asks for, after all checks. `worker_id` and `endpoint_path` are set if the path names a
    worker. `ignored_options` are launch options that the grid ignores.
    """

    browser_type: BrowserType
    pool: str
    playwright_version: str | None = None
    worker_id: str | None = None
    endpoint_path: str = ""
    ignored_options: tuple[str, ...] = ()
    identity: Identity = ANYBODY
    labels: str = ""
    """The label key that the client asks for."""
    name: str = ""
    """What the client calls its run."""
    label_key: str = ""
    """The pool's label key that serves `labels`."""
    own: OwnBrowser | None = None
    """The browser that it gets for itself; None for the one of its worker."""
    isolation: Isolation = Isolation.CONTEXT
    takes_lifetime: bool = True
    """Whether it counts towards the lifetime of its worker."""
    protocol: Protocol = Protocol.PLAYWRIGHT
    keep_s: float = 0.0
    """How long its browser is kept when its last client has gone; 0: not at all."""
    session_id: str = ""
    """The id that the session shall have, by which clients find it again; empty: any."""
    is_of_page: bool = False
    """Whether the connection is to the first page of its browser, and not to the browser."""


@dataclass(eq=False)
class ClientHead(Request):
    """A client's head. Those of clients that say the same but for their key are one object, which has no client's key:
    `with_key` puts that in."""

    decided: tuple[tuple[object, ...], "ConnectRequest | SessionPath"] | None = None
    """What `decide` has returned last, and under what: the same again for a client of which that is true, too."""

    def with_key(self, key: str) -> Request:
        """The head of the client that has this key."""
        headers = self.headers.copy()
        if key:
            del headers[KEY]
            headers[KEY] = key
        return Request(self.path, headers, self.method)


def decide(
    request: ClientHead, policy: Policy, local: Address, arrival: Arrival = DIRECT, *, is_new: bool = False
) -> ConnectRequest | LeasePath | SessionPath:
    """Returns what this upgrade request asks for, or the lease or session that it comes with. Raises Refusal.

    `local` is the address that it has come to. `is_new`: there is no session yet of the id that its path has.
    """
    path, _, query = request.path.partition("?")
    headers, parameters = request.headers, parse_qsl(query, keep_blank_values=True) if query else []
    under = policy, local, arrival.host, arrival.prefix, is_new
    if request.decided is not None and request.decided[0] == under:
        again = request.decided[1]
        if policy.access.identify(headers, parameters, arrival.client) == again.identity:  # it may be revoked
            request.decided = under, again  # the next one need not compare a policy that is as the last one was
            return again
    path = arrival.without_prefix(path)
    if (lent := _LEASE_PATH.fullmatch(path)) is not None:
        lease = _with_lease(request, parameters, policy, lent, local, arrival)
        return replace(lease, own=_own_with_lease(headers, parameters, policy, lease))
    identity = policy.access.check(headers, parameters, local, arrival)
    _check_handshake(request)
    wanted = _read(path, parameters, headers, identity, policy, is_new=is_new)
    request.decided = under, wanted
    return wanted


def _read(
    path: str,
    parameters: Sequence[tuple[str, str]],
    headers: Headers,
    identity: Identity,
    policy: Policy,
    *,
    is_new: bool,
) -> ConnectRequest | SessionPath:
    """Returns what a client asks for that may use the grid. Raises Refusal."""
    is_cdp = is_devtools_path(path)
    keep_s = kept_for_s(_said(headers, parameters, "keep"), policy.keep_max_s, is_cdp=is_cdp)
    session_id = session_in(path) if is_cdp else ""
    if session_id and not is_new:
        return SessionPath(session_id, identity, keep_s, is_page_path(path))
    version = None if is_cdp else _client_version(headers)  # any version of a library speaks CDP
    profile_said = _said(headers, parameters, "profile")
    named = _WORKER_PATH.fullmatch(path)
    if named is None and not is_cdp and path not in ("", "/"):
        raise nothing_at(path)
    labels = _said(headers, parameters, "labels")
    name = run_name(_said(headers, parameters, "name"), "name")
    browser_type = asked_browser_type(headers, parameters, named["type"] if named else None)
    if is_cdp:
        check_browser_type(browser_type or "")
    asked, protocol = asked_isolation(_said(headers, parameters, "isolation")), _protocol(is_cdp=is_cdp)
    if is_cdp:
        check_isolation_of_cdp(asked)
    wanted = Wanted(
        browser_type,
        version if named is None else None,  # a named worker has its version
        asked_pool(parameters, policy.pools, policy.draining),
        labels,
        _client_browser(headers) if labels else None,
        protocol,
    )
    offer = Offer(policy.pools, policy.default_browser_type, policy.labels)
    pool, label_key = choose_pool(offer, wanted, identity)
    if named is None:
        fit = policy.pools
        if asked is Isolation.PROCESS:  # another pool may be taken: one that serves the client's version, too
            fit = {each: fit[each] for each in serving_pools(offer, wanted, fit[pool].browser_type)}
        pool = pool_with(fit, pool, asked, identity, is_named=bool(label_key or wanted.pool))
    else:
        _check_version_of(policy, named["id"], version, "the worker that the URL names is")
    offered = (policy.pool_of(named["id"]) if named else None) or policy.pools[pool]
    check(offered, asked)
    options = judged(headers, parameters, offered, policy.launch)
    own = own_browser(offered, asked, options, asked_network(headers), protocol)
    if (profile := asked_profile(profile_said, policy.profiles, identity, is_cdp=is_cdp)) is not None:
        assert own is not None  # each CDP client has one
        own = replace(own, profile=profile)
    return ConnectRequest(
        browser_type=policy.pools[pool].browser_type,
        pool=pool,
        playwright_version=version,
        worker_id=named["id"] if named else None,
        endpoint_path=path if named else "",
        ignored_options=options.ignored,
        identity=identity,
        labels=labels,
        name=name,
        label_key=str(label_key or ""),
        own=own,
        isolation=isolation_of(offered, own),
        takes_lifetime=takes_lifetime(offered, own),
        protocol=protocol,
        keep_s=keep_s,
        session_id=session_id,
        is_of_page=is_page_path(path),
    )


def _protocol(*, is_cdp: bool) -> Protocol:
    return Protocol.CDP if is_cdp else Protocol.PLAYWRIGHT


def _with_lease(
    request: Request,
    parameters: Iterable[tuple[str, str]],
    policy: Policy,
    lent: re.Match[str],
    local: Address,
    arrival: Arrival,
) -> LeasePath:
    """Decides for a client with a lease. The secret in its path replaces a token."""
    policy.access.check_host(request.headers, local, arrival)
    check_origin(request.headers, policy.access.allowed_origins)
    _check_handshake(request)
    named, client = lent["type"], _client_browser(request.headers)
    browser_type = next((each for each in BROWSER_TYPES if each == named), None)
    if browser_type is None:
        raise Refusal(400, f"unknown browser {named[:40]!r}: use one of {', '.join(BROWSER_TYPES)}")
    if client not in (None, browser_type):
        raise Refusal(400, f"the lease is for {browser_type}, but the client is {client}: make them agree")
    is_cdp = bool(lent["cdp"])
    if is_cdp:
        check_browser_type(browser_type)
    keep_s = kept_for_s(_said(request.headers, parameters, "keep"), policy.keep_max_s, is_cdp=is_cdp)
    protocol = _protocol(is_cdp=is_cdp)
    if not is_cdp:
        version = _client_version(request.headers)
        _check_version_of(policy, lent["worker"], version, "the worker of this lease is")
    return LeasePath(browser_type, lent["worker"], lent["id"], lent["secret"], protocol=protocol, keep_s=keep_s)


def _check_version_of(policy: Policy, worker_id: str, version: str | None, what: str) -> None:
    """Raises Refusal if this worker is known to have another Playwright than the client."""
    has = policy.versions_of_workers.get(worker_id)
    if None not in (version, has) and version != has:
        raise other_version(str(version), f"{what} for", [str(has)], named="it")


def _own_with_lease(
    headers: Headers, parameters: Iterable[tuple[str, str]], policy: Policy, lease: LeasePath
) -> OwnBrowser | None:
    """Returns the browser that a client with a lease asks for itself. Raises Refusal."""
    parameters = [*parameters]
    asked, pool = asked_isolation(_said(headers, parameters, "isolation")), policy.pool_of(lease.worker_id)
    is_cdp = lease.protocol is Protocol.CDP
    if _said(headers, parameters, "profile"):
        raise not_with_lease()
    if is_cdp:
        check_isolation_of_cdp(asked)
    if pool is None:  # its worker has gone
        return OwnBrowser() if is_cdp else None
    if asked is not Isolation.CONTEXT:
        check(pool, asked)
    options = judged(headers, parameters, pool, policy.launch)
    return own_browser(pool, asked, options, asked_network(headers), lease.protocol)


def run_name(text: str | None, what: str) -> str:
    """Checks what a client calls its run; returns it without surrounding spaces, or "". Raises Refusal, which does not
    repeat the text."""
    name = (text or "").strip()
    if not _NAME.fullmatch(name):
        raise Refusal(400, f"{what}: use {NAME_RULE}")
    return name


def browser_server_headers(headers: Headers, *, compression: bool) -> dict[str, str]:
    """Returns the headers that the browser server gets, with names in lower case.

    Without `compression`, leaves out the offer of permessage-deflate: within one host it only costs CPU.
    """
    passed_on = {"host": "localhost"}
    for given, value in headers.raw_items():
        name = given.lower()
        if name == HEADER:  # what counts of it is in the offer
            continue
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX) or (compression and name == _COMPRESSION):
            passed_on[name] = f"{passed_on[name]}, {value}" if name in passed_on else value
    return passed_on


def is_usual_handshake(request: Request) -> bool:
    """Whether the handshake has the form that every known client uses. Reading all that RFC 6455 allows takes five
    times as long, 0.08 ms of a client's first answer."""
    get = request.headers.get_all
    keys = get("sec-websocket-key")
    return (
        get("upgrade") == ["websocket"]
        and get("connection") == ["Upgrade"]
        and get("sec-websocket-version") == ["13"]
        and len(keys) == 1
        and _KEY.fullmatch(keys[0]) is not None
        and request.method == "GET"
        and "sec-websocket-protocol" not in request.headers
        and len(get("origin")) <= 1
    )


def _check_handshake(request: Request) -> None:
    """Raises Refusal for what RFC 6455, section 4.2.1, does not allow."""
    if is_usual_handshake(request):
        return
    if len(request.headers.get_all("upgrade")) > 1:
        raise bad_handshake("there is more than one Upgrade header")
    try:
        _HANDSHAKE.process_request(request)
    except (InvalidMethod, InvalidUpgrade):
        raise Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"),)) from None
    except InvalidHandshake as error:
        sentences = {
            "Sec-WebSocket-Key": "Sec-WebSocket-Key must be one base64 value of 16 bytes",
            "Sec-WebSocket-Version": "Sec-WebSocket-Version must be 13",
        }
        name = error.name if isinstance(error, InvalidHeader) else ""
        headers = (("Sec-WebSocket-Version", "13"),) if name == "Sec-WebSocket-Version" else ()
        raise bad_handshake(sentences.get(name, str(error)), headers) from None


def _client_version(headers: Headers) -> str | None:
    return next(filter(None, map(minor_of_client, headers.get_all("user-agent"))), None)


def _said(headers: Headers, parameters: Iterable[tuple[str, str]], what: str) -> str:
    """Returns the value of `?{what}=` or of the header x-pwgrid-{what}, or "". Raises Refusal if they differ."""
    given = [value for name, value in parameters if name == what] + headers.get_all(f"x-pwgrid-{what}")
    if not given:
        return ""
    said = {value.strip() for value in given} - {""}
    if len(said) > 1:
        who = f"?{what}= and x-pwgrid-{what}" if f"x-pwgrid-{what}" in headers else f"two ?{what}="
        raise Refusal(400, f"{who} say different things: make them agree, or leave one out")
    return min(said, default="")


def _client_browser(headers: Headers) -> BrowserType | None:
    """Returns the client's own browser type; None if it names none, or an unknown one."""
    client = {value.lower() for value in headers.get_all("x-playwright-browser")}
    return next((each for each in BROWSER_TYPES if client == {each}), None)
