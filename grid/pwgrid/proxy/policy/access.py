"""Decides who may use the grid, and with which identity, by Host, token and Origin."""

import hmac
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

from websockets.datastructures import Headers

from pwgrid.proxy.policy.arrival import Address, Arrival, Arrivals
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.settings.model import is_loopback
from pwgrid.tokens.tokens import NO_TOKENS, OPERATORS_TOKEN, Role, Tokens, operators_token_id

TOKEN_HEADER: Final = "x-hub-secret"
WRONG_OR_REVOKED: Final = "the token is wrong, or was revoked: pwgrid token list shows those that this grid knows"

MOST_TOKENS: Final = 3
"""How many tokens of one request are looked at: else one request would be a thousand guesses."""

GUESSABLE_CHARACTERS: Final = 16
"""While a peer has to wait, it cannot log in with a token of the settings that is shorter than this."""

MOST_FAILURES: Final = 10
FAILURES_WITHIN_S: Final = 60.0
"""A peer gets 401 for MOST_FAILURES wrong tokens within this time, then 429."""

MAX_PEERS: Final = 10_000
"""Beyond these the peer that failed longest ago is forgotten."""

_NETWORK_BITS: Final = 64
"""The bits of an IPv6 address that a host chooses itself; the other bits identify the peer."""

_HOST: Final = re.compile(
    r"(\[[0-9A-Fa-f:.%]+\]|[^\x00-\x20\x7f\[\]:/?#@\\,]*)(?::\d*)?"
)  # RFC 9110 7.2, RFC 3986 3.2.2


ONE_HOST: Final = "a request names one host in its Host header"

DIRECT: Final = Arrival()
"""A request without a reverse proxy, from whom does not matter."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who uses the grid. `max_sessions` may live at once (0: no limit), in `pools` (empty: all)."""

    name: str = ""
    """The token's name; empty if the grid asks for none."""
    role: Role = Role.OPERATOR
    max_sessions: int = 0
    pools: frozenset[str] = frozenset()
    token_id: str = ""
    """Empty where no token was given."""

    @property
    def is_operator(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def sees_only(self) -> str | None:
        """The name of the token whose sessions and leases it may see and end; None for all."""
        return None if self.is_operator else self.name

    def may_see(self, token: str | None) -> bool:
        """Whether it may see and end a session or lease of this token; None for one that came without."""
        return self.is_operator or token == self.name

    def may_use(self, pool: str) -> bool:
        return not self.pools or pool in self.pools

    def check_pool(self, pool: str, like: str = "") -> None:
        """Raises Refusal(403) for a pool that is not allowed. Who may use the pool `like` may use this one, too."""
        if not self.may_use(pool) and not (like and self.may_use(like)):
            raise Refusal(
                403,
                f"the token {self.name} may not use the pool {pool}: it may use {', '.join(sorted(self.pools))}",
                details={"pools": sorted(self.pools)},
            )


ANYBODY: Final = Identity()
"""Everybody, if the grid asks for no token: may do everything."""


class FailedLogins:
    """Who has sent wrong tokens, and when, in seconds of a monotonic clock, so that guessing stays slow."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, host: str, now: float) -> float:
        """Returns how long this host has to wait before it may try another wrong token; mostly 0."""
        failures = self._failures.get(_peer(host)) if self._failures else None
        if failures is None or len(failures) < MOST_FAILURES:
            return 0.0
        return max(0.0, failures[0] + FAILURES_WITHIN_S - now)

    def note(self, host: str, now: float) -> None:
        peer = _peer(host)
        failures = self._failures.setdefault(peer, deque(maxlen=MOST_FAILURES))
        failures.append(now)
        self._failures.move_to_end(peer)
        if len(self._failures) > MAX_PEERS:
            self._failures.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for who may use the grid, and who has failed."""

    token: str = ""
    allowed_origins: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    """ALLOWED_HOSTS."""
    own_hosts: frozenset[str] = frozenset()
    """Names by which the grid advertises itself."""
    own_origins: frozenset[str] = frozenset()
    """Where the dashboard is, besides under the Host that its requests name."""
    loopback_listeners: frozenset[Address] = frozenset()
    tokens: Callable[[], Tokens] = lambda: NO_TOKENS
    """Returns the present tokens of `pwgrid token`."""
    is_closed: bool = False
    """Whether the grid asks for a token even if none exists: other hosts reach it, and no setting allows that."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    failed: FailedLogins = field(default_factory=FailedLogins)
    is_token_replaced: Callable[[], bool] = lambda: False
    """Whether a reload has given the grid another `token`, and another proxy serves with that."""
    now: Callable[[], float] = lambda: 0.0
    """Returns seconds of a monotonic clock."""

    def check(
        self,
        headers: Headers,
        parameters: Iterable[tuple[str, str]],
        local: Address,
        arrival: Arrival = DIRECT,
        *,
        from_own_page: bool = False,
    ) -> Identity:
        """Returns who asks. Raises Refusal if the request may not be served. `local` is the address that it has come
        to. `from_own_page`: the dashboard may make this request, too."""
        self.check_host(headers, local, arrival)
        identity = self.identify(headers, parameters, arrival.client)
        own = self._own_origins(headers, arrival) if from_own_page else frozenset()
        check_origin(headers, self.allowed_origins | own)
        return identity

    def _own_origins(self, headers: Headers, arrival: Arrival) -> frozenset[str]:
        """Returns the origins of the dashboard under the Host that its client has asked for, if that is no name that
        somebody else may have pointed at the grid's address (DNS rebinding)."""
        given = arrival.host or headers["host"]
        name = _name_in(given) or ""
        named = self.allowed_hosts - {"*"} | self.own_hosts
        is_ours = _is_address(name) or _is_loopback_name(name) or _is_one_of(name, named)
        return self.own_origins | ({f"http://{given}", f"https://{given}"} if is_ours else set())

    def identify(self, headers: Headers, parameters: Iterable[tuple[str, str]], peer: str) -> Identity:
        """Returns the identity of the request's token. Raises Refusal(401), or 429 after too many wrong tokens."""
        tokens = self.tokens()
        if not self._asks_for_one(tokens):
            return ANYBODY
        given = _given(headers, parameters)
        if not given:
            raise _unknown(
                "this grid asks for a token: "
                "send the header 'Authorization: Bearer <token>' or add ?token=<token> to the URL"
            )
        is_replaced = bool(self.token) and self.is_token_replaced()
        now = self.now()
        wait_s = self.failed.wait_s(peer, now)
        for text in given:
            if (token := tokens.find(text)) is not None:
                return Identity(token.name, token.role, token.max_sessions, frozenset(token.pools), token.id)
            is_looked_at = self.token and (not wait_s or len(self.token) >= GUESSABLE_CHARACTERS)
            if is_looked_at and not is_replaced and self._is_operators(text):
                return Identity(OPERATORS_TOKEN, token_id=operators_token_id(self.token))
        if is_replaced:  # it may be the new one
            error = f"this grid has another {OPERATORS_TOKEN} now: connect again"
            raise Refusal(503, error, retry_after_s=1, headers=(("Connection", "close"),))
        if wait_s:
            seconds = math.ceil(wait_s)
            error = f"too many wrong tokens have come from this address: try again in {seconds} s"
            raise Refusal(429, error, retry_after_s=seconds)
        for _ in given:
            self.failed.note(peer, now)
        if tokens.are_there or not self.token:
            raise _unknown(WRONG_OR_REVOKED)
        raise _unknown("the token is wrong: it is not the one that this grid was started with (PWGRID_TOKEN)")

    def revoked(self, identity: Identity) -> Refusal | None:
        """Returns the refusal for a client whose token has been revoked since `check`; else None."""
        if not identity.token_id or not self._asks_for_one(tokens := self.tokens()):
            return None
        is_operators = identity.name == OPERATORS_TOKEN
        if not self.is_token_replaced() if is_operators else tokens.has(identity.token_id):
            return None
        return _unknown(WRONG_OR_REVOKED)

    def _is_operators(self, text: str) -> bool:
        """Whether this is the token of the settings. A `+` that nobody has escaped in a URL comes as a blank."""
        given, ours = (each.replace("+", " ").encode() for each in (text, self.token))
        return hmac.compare_digest(given, ours)

    def _asks_for_one(self, tokens: Tokens) -> bool:
        return bool(self.token or tokens.are_there or self.is_closed)

    def check_host(self, headers: Headers, local: Address, arrival: Arrival = DIRECT) -> None:
        """Raises Refusal if the Host is no name of the grid, or the one that the client has asked a reverse proxy for.
        A web page may point its own name at the grid's address (DNS rebinding), and would then read the answers as
        those of its own site; it can send the fields of a reverse proxy, too.

        A literal address in the Host is safe: no page can redefine it.
        """
        given = headers.get_all("host")
        if len(given) != 1:
            raise Refusal(400, ONE_HOST)
        for each in (*given, *([arrival.host] if arrival.host else ())):
            self._check_host(each, local)

    def _check_host(self, given: str, local: Address) -> None:
        if (name := _name_in(given)) is None:
            raise Refusal(400, ONE_HOST)
        if _is_one_of(name, self.allowed_hosts | self.own_hosts) or _is_loopback_name(name):
            return
        if local not in self.loopback_listeners and (not self.allowed_hosts or _is_address(name)):
            return
        raise Refusal(
            403,
            "the grid may not be asked for by this name: connect to its address (on the same host 127.0.0.1), "
            "or add the name to ALLOWED_HOSTS",
            details={"host": name[:200]},
        )


def check_origin(headers: Headers, allowed: frozenset[str]) -> None:
    """Raises Refusal(403) for a request from a web page of another site, which browsers mark with its Origin."""
    for origin in headers.get_all("origin"):
        if origin not in allowed:
            raise Refusal(
                403,
                "a web page may not drive the grid: this origin is not in ALLOWED_ORIGINS",
                details={"origin": origin[:200]},
            )


def _given(headers: Headers, parameters: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the tokens of a request: `?token=`, `x-hub-secret`, `Authorization: Bearer`."""
    given = [value for name, value in parameters if name == "token"]
    given += [value.strip() for value in headers.get_all(TOKEN_HEADER)]
    for value in headers.get_all("authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            given.append(credentials.strip())
    return [text for text in given if text][:MOST_TOKENS]


def _unknown(sentence: str) -> Refusal:
    return Refusal(401, sentence, headers=(("WWW-Authenticate", 'Bearer realm="pwgrid"'),))


def _name_in(host: str) -> str | None:
    """Returns the name or address in a Host header, in lower case, or None if it is malformed."""
    found = _HOST.fullmatch(host)
    return found and found[1].lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_one_of(name: str, patterns: Collection[str]) -> bool:
    return name in patterns or any(
        pattern == "*" or name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))
        for pattern in map(str.lower, patterns)
    )


def _is_loopback_name(name: str) -> bool:
    """RFC 6761, section 6.3, reserves all names below localhost for the loopback."""
    return name.endswith(".localhost") or is_loopback(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _peer(host: str) -> str:
    """Returns one name for all addresses that one host may use."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket has no address
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> _NETWORK_BITS:x}"
