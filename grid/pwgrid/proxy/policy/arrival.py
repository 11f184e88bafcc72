"""How a request has come: from which client, and to which address of the grid. What the header fields of reverse
proxies say of that counts only from trusted ones."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from pwgrid.common.grid_url import GridUrl, is_path
from pwgrid.proxy.policy.refusal import Refusal

UNIX: Final = "unix"
"""In TRUSTED_PROXIES: whoever connects to a Unix socket of ours."""

_FIELDS: Final = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix", "forwarded")
_NODE: Final = re.compile(
    r"\[(?P<v6>[0-9A-Fa-f:.]+)\](?::(?P<v6port>\d{1,5}))?|(?P<v4>[0-9.]+)(?::(?P<v4port>\d{1,5}))?"
)
_PAIR: Final = re.compile(r"""\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*))\s*(;|,|$)""")
_DIFFERENT: Final = (
    "Forwarded and X-Forwarded-For name different clients: the reverse proxy writes one of them, and should remove the "
    "other one from what its clients send"
)

Address = tuple[str, int | None] | None
"""Host and port; for a Unix socket its path and None."""


class Arrival(NamedTuple):
    """How one request has come. `client` and `port` are its client's, empty on a Unix socket; `port` is None also where
    a reverse proxy does not tell it. `prefix` is the path below which the client sees the grid."""

    client: str = ""
    port: int | None = None
    host: str = ""
    """The Host that its client has asked for; empty where no trusted reverse proxy tells it."""
    prefix: str = ""
    endpoint: str = ""
    """The grid's ws or wss URL for this client, with the prefix, perhaps a password, and no slash at its end."""

    def __str__(self) -> str:
        if not self.client:
            return "unknown"
        return self.client if self.port is None else f"{self.client}:{self.port}"

    def without_prefix(self, path: str) -> str:
        """The path as the grid's own; that of a request whose prefix a reverse proxy has removed already is."""
        if not self.prefix or not f"{path}/".startswith(f"{self.prefix}/"):
            return path
        return path[len(self.prefix) :] or "/"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What tells how requests have come. `advertised` is ADVERTISED_URL, `advertised_host` ADVERTISED_HOST; `listener`
    is the grid's address for requests that name no Host."""

    listener: GridUrl = field(default_factory=lambda: GridUrl(False, "127.0.0.1", 8080))
    advertised: GridUrl | None = None
    advertised_host: str = ""
    trusted: tuple[str, ...] = ()
    """TRUSTED_PROXIES."""
    on_disbelieved: Callable[[str], None] = lambda _host: None
    """Called with the host of a peer that sends such fields and is not trusted."""
    _networks: tuple[IPv4Network | IPv6Network, ...] = field(init=False)

    def __post_init__(self) -> None:
        networks = tuple(ip_network(each) for each in self.trusted if each != UNIX)
        object.__setattr__(self, "_networks", networks)

    def of(self, values: Callable[[str], list[str]], peer: tuple[str, int] | None, local: Address) -> Arrival:
        """How a request has come. `values` returns those of a header field, `peer` is who has connected, to `local`.
        Raises Refusal(400) where two header fields contradict each other."""
        host, port = peer[:2] if peer else ("", None)
        is_trusted = self._trusts(host) if host else local is not None and local[1] is None and UNIX in self.trusted
        given = {name: text for name in _FIELDS if (found := values(name)) and (text := ",".join(found))}
        if given and not is_trusted:
            self.on_disbelieved(host)
            given = {}
        said: dict[str, list[str]] = {}
        client = host, port
        if given:
            said = _said(given)
            client = self._client(client, given.get("x-forwarded-for"), said.get("for", []))
        host_asked, scheme = said["host"][-1] if "host" in said else "", said["proto"][-1] if "proto" in said else ""
        prefix = said["prefix"][-1].rstrip("/") if "prefix" in said else ""
        if not prefix or not is_path(prefix):
            prefix = self.advertised.path if self.advertised else ""
        is_own_tls = self.listener.is_encrypted and (local is None or local[1] is not None)  # a Unix socket has none
        endpoint = self._endpoint(scheme.lower(), host_asked, next(iter(values("host")), ""), prefix, is_own_tls)
        return Arrival(*client, host_asked, prefix, endpoint)

    def _client(
        self, peer: tuple[str, int | None], x_forwarded_for: str | None, forwarded_for: list[str]
    ) -> tuple[str, int | None]:
        """The last one of the way that is no trusted reverse proxy. Each of these has added from whom it had the
        request; what stands before an untrusted one may be that one's invention."""
        found = {self._follow(peer, nodes) for nodes in (_items(x_forwarded_for or ""), forwarded_for) if nodes}
        if len({host for host, _ in found}) > 1:
            raise Refusal(400, _DIFFERENT)
        return min(found, default=peer, key=lambda each: each[1] is None)

    def _follow(self, peer: tuple[str, int | None], nodes: list[str]) -> tuple[str, int | None]:
        client = peer
        for text in reversed(nodes):
            if (node := _node(text)) is None:  # "unknown", "_hidden"
                break
            client = node
            if not self._trusts(node[0]):
                break
        return client

    def _trusts(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)

    def _endpoint(self, scheme: str, host_asked: str, host: str, prefix: str, is_own_tls: bool) -> str:
        if self.advertised is not None:
            return self.advertised.web_socket
        encrypted = "s" * (scheme in ("https", "wss") if scheme else is_own_tls)
        address = host_asked or host or self.listener.address
        if self.advertised_host:
            # A reverse proxy that tells a scheme, but no Host, has another port than ours: its scheme's own.
            port = _port_of(host_asked) if host_asked else "" if scheme else f":{self.listener.port}"
            address = GridUrl(False, self.advertised_host).address + port
        return f"ws{encrypted}://{address}{prefix}"


def _said(given: dict[str, str]) -> dict[str, list[str]]:
    """What the fields say, by the names that Forwarded has, and `prefix`. X-Forwarded-* comes first."""
    found: dict[str, list[str]] = {}
    for name, value in _pairs(given.get("forwarded", "")):
        found.setdefault(name, []).append(value)
    for name in ("host", "proto", "prefix"):
        if items := _items(given.get(f"x-forwarded-{name}", "")):
            found[name] = items
    return found


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of all elements of a Forwarded field (RFC 7239, 4); none of a malformed one."""
    found, at = [], 0
    while at < len(text):
        if (pair := _PAIR.match(text, at)) is None:
            return
        value = pair[3] if pair[2] is None else re.sub(r"\\(.)", r"\1", pair[2])
        found.append((pair[1].lower(), value))
        at = pair.end()
    yield from found


def _items(text: str) -> list[str]:
    return [item for each in text.split(",") if (item := each.strip())]


def _node(text: str) -> tuple[str, int | None] | None:
    """Host and port of a node; None for one that is not told by its address."""
    if (found := _NODE.fullmatch(text)) is None:
        host, port = text, None  # IPv6 without brackets, as X-Forwarded-For has it
    else:
        host, port = found["v6"] or found["v4"], found["v6port"] or found["v4port"]
    try:
        return str(ip_address(host)), None if port is None else int(port)
    except ValueError:
        return None


def _port_of(host: str) -> str:
    """`:port` of a Host, or nothing."""
    return found[0] if (found := re.search(r":\d+$", host)) else ""
