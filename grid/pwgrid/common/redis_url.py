"""Checks Redis URLs, takes them apart, and shows them without secrets; the master uses it, too."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_DATABASE: Final = ("db",)
_TLS: Final = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL: Final = ("sentinel_password", "sentinel_username")
OPTIONS: Final = {
    "redis": _DATABASE,
    "rediss": _DATABASE + _TLS,
    "unix": _DATABASE,
    "redis+sentinel": _DATABASE + _SENTINEL,
    "rediss+sentinel": _DATABASE + _SENTINEL + _TLS,
    "redis+cluster": (),
    "rediss+cluster": _TLS,
}
"""The options of a URL, by scheme: redis-py's own names, and the sentinels' user and password."""

HASH_TAG: Final = re.compile(r"[^{]*\{[^}]+\}")
"""Begins each key prefix that puts all keys into one slot of a Redis Cluster."""

_BRACKETED: Final = re.compile(r"\[[^\[\]]+\](:.*)?")
_NETLOC: Final = re.compile("[^/?#]*")
_DROPPED: Final = str.maketrans("", "", "\t\r\n")
"""As `urlsplit` drops them."""


def problem(url: str) -> str:
    """The rule that the URL breaks; empty for a good one. It quotes nothing of the URL, which may hold a password."""
    try:
        parts = split(url)
        hosts = _hosts(parts)
    except ValueError:
        hosts = None
    if hosts is None or parts.fragment:
        return "must be a URL like redis://:password@host:6379/0, with a / of the password as %2F, an @ as %40 …"
    if parts.scheme not in OPTIONS:
        return f"must begin with {', '.join(f'{scheme}://' for scheme in OPTIONS)}"
    if fault := _wrong_place(parts, hosts):
        return fault
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not options.keys() <= set(OPTIONS[parts.scheme]):
        return f"may have no other options behind its ? than {', '.join(OPTIONS[parts.scheme]) or 'none'}"
    if options.get("ssl_cert_reqs", "none") not in ("none", "optional", "required"):
        return "must say none, optional or required as ssl_cert_reqs"
    if not all(options.get(name, "/").startswith("/") for name in _FILES):
        return f"must have absolute paths as {', '.join(_FILES)}"
    return "" if _is_number(options.get("db", "")) else "must have a number as db"


def split(url: str) -> SplitResult:
    """What `urlsplit` gives, which takes one host: newer Pythons (CVE-2025-0938) raise ValueError for several of which
    one is an IPv6 address. `problem` tells whether the hosts make sense."""
    scheme, separator, rest = url.translate(_DROPPED).partition("://")
    found = _NETLOC.match(rest)
    netloc = found[0] if found and separator else ""
    return urlsplit(f"{scheme}{separator}{rest.removeprefix(netloc)}")._replace(netloc=netloc)


def is_sentinel(url: str) -> bool:
    """Whether the URL names sentinels instead of the Redis itself."""
    return url.partition("://")[0].endswith("+sentinel")


def sentinels(url: str) -> list[tuple[str, int]]:
    """Hosts and ports of the sentinels."""
    return [(host, port or SENTINEL_PORT) for host, port in _hosts(split(url))]


def is_cluster(url: str) -> bool:
    """Whether the URL names nodes of a Redis Cluster."""
    return url.partition("://")[0].endswith("+cluster")


def cluster_nodes(url: str) -> list[tuple[str, int]]:
    """Hosts and ports of the nodes that the URL names."""
    return [(host, port or PORT) for host, port in _hosts(split(url))]


def service(url: str) -> tuple[str, str]:
    """The name by which the sentinels know the Redis, and the database; "" where the URL names none."""
    name, _, database = split(url).path.strip("/").partition("/")
    return unquote(name), database


def shown(url: str) -> str:
    """A good URL without its user, password and options."""
    parts = split(url)
    database = dict(parse_qsl(parts.query)).get("db")
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{where}?db={database}" if database else where


def user_of(url: str) -> str:
    """The user of a good URL."""
    return unquote(split(url).username or "") or "default"


def _hosts(parts: SplitResult) -> list[tuple[str, int | None]]:
    """Host and port of each address. Raises ValueError for a port that is none."""
    user, at, hosts = parts.netloc.rpartition("@")
    if any(set("[]") & set(host) and not _BRACKETED.fullmatch(host) for host in hosts.split(",")):
        raise ValueError("something stands before or behind the brackets")  # older Pythons do not mind
    return [(each.hostname or "", each.port) for each in (urlsplit(f"//{user}{at}{host}") for host in hosts.split(","))]


def _wrong_place(parts: SplitResult, hosts: list[tuple[str, int | None]]) -> str:
    if parts.scheme == "unix":
        # Text before the path without an @ is the beginning of a password that has a / in it.
        is_good = len(parts.path) > 1 and parts.netloc.rpartition("@")[2] == ""
        return "" if is_good else "must name a socket: unix:///path/to/redis.sock"
    has_hosts = all(host and port != 0 for host, port in hosts)
    if parts.scheme.endswith("+sentinel"):
        name, database = service(parts.geturl())
        is_good = has_hosts and bool(name) and _is_number(database)
        return "" if is_good else "must be like redis+sentinel://host:26379,host2:26379/name-of-the-master/0"
    if parts.scheme.endswith("+cluster"):
        is_good = has_hosts and parts.path in ("", "/", "/0")
        return "" if is_good else "must be like redis+cluster://host:6379,host2:6379, without a database"
    if not has_hosts or len(hosts) > 1:
        return "must name a host: redis://host:port/database"
    return (
        "" if _is_number(parts.path.removeprefix("/")) else "must end in the number of a database: redis://host:port/0"
    )


def _is_number(database: str) -> bool:
    return database == "" or (database.isdecimal() and len(database) <= 5)
