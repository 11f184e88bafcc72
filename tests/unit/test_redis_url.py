"""What a Redis URL may say, and that nobody reads a password in it."""

import re
import subprocess
import sys
import urllib.parse
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest
from redis.asyncio import SSLConnection
from redis.crc import key_slot

from pwgrid.common import redis_url
from pwgrid.common.redis_url import HASH_TAG, cluster_nodes, is_cluster, is_sentinel, problem, sentinels, service, shown
from pwgrid.registry.open_redis import database, open_async

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://h", "redis://h"),
        ("redis://h:7/2", "redis://h:7/2"),
        ("redis://h?db=3", "redis://h?db=3"),
        (f"rediss://me:{SECRET}%40@[::1]:7/1", "rediss://[::1]:7/1"),
        (f"rediss://:{SECRET}@h?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=required", "rediss://h"),
        (f"unix://:{SECRET}@/run/r%20s.sock?db=4", "unix:///run/r%20s.sock?db=4"),
        ("unix:///run/some@where/redis.sock", "unix:///run/some@where/redis.sock"),
        (
            f"redis+sentinel://me:{SECRET}@a:1,b/main/2?sentinel_username=s&sentinel_password={SECRET}@x",
            "redis+sentinel://a:1,b/main/2",
        ),
        (f"redis+cluster://me:{SECRET}@a:1,[::1]", "redis+cluster://a:1,[::1]"),
        (f"rediss+cluster://:{SECRET}@a/0?ssl_ca_certs=/etc/ca.pem", "rediss+cluster://a/0"),
    ],
)
def test_a_good_url_is_shown_without_its_secrets(url: str, where: str) -> None:
    assert problem(url) == ""
    assert shown(url) == where


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "must begin with redis://"),
        (
            f"http://:{SECRET}@h",
            "must begin with redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://,",
        ),
        (f"redis://:{SECRET}@h/x", "must end in the number of a database: redis://host:port/0"),
        (f"redis://:{SECRET}@h:port", "must be a URL like redis://:password@host:6379/0"),
        (f"redis://:{SECRET}@h:0", "must name a host"),
        (f"redis://:{SECRET}@", "must name a host"),
        (f"redis://:{SECRET}@a,b", "must name a host"),
        (f"redis://:{SECRET}@h?db=x", "must have a number as db"),
        (f"redis://:{SECRET}@h?{SECRET}=1", "may have no other options behind its ? than db"),
        (f"rediss://:{SECRET}@h?ssl_cert_reqs=maybe", "must say none, optional or required as ssl_cert_reqs"),
        (f"rediss://:{SECRET}@h?ssl_ca_certs=ca.pem", "must have absolute paths as ssl_ca_certs, ssl_certfile"),
        (f"rediss://:{SECRET}@h?ssl_keyfile=", "must have absolute paths as ssl_ca_certs, ssl_certfile, ssl_keyfile"),
        # Passwords that are not quoted
        (f"redis://:{SECRET}/@h", "with a / of the password as %2F, an @ as %40 …"),
        (f"redis://:{SECRET}?@h", "with a / of the password as %2F, an @ as %40 …"),
        (f"redis://:{SECRET}#@h", "with a / of the password as %2F, an @ as %40 …"),
        (f"redis://u:[{SECRET}@h", "with a / of the password as %2F, an @ as %40 …"),
        (f"redis://:12/{SECRET}@h", "must name a host"),
        (f"unix://{SECRET}/@/run/redis.sock", "must name a socket: unix:///path/to/redis.sock"),
        ("unix://", "must name a socket"),
        ("unix:///", "must name a socket"),
        (f"redis+cluster://:{SECRET}@a/1", "must be like redis+cluster://host:6379,host2:6379, without a database"),
        ("redis+cluster://a,", "must be like redis+cluster://"),
        ("redis+cluster://a?db=1", "may have no other options behind its ? than none"),
        ("redis+sentinel://h", "must be like redis+sentinel://host:26379,host2:26379/name-of-the-master/0"),
        ("redis+sentinel:///main", "must be like redis+sentinel://"),
        ("redis+sentinel://a,/main", "must be like redis+sentinel://"),
        ("redis+sentinel://a/main/x", "must be like redis+sentinel://"),
        (
            "redis+sentinel://a/main?ssl_ca_certs=/x",
            "may have no other options behind its ? than db, sentinel_",
        ),
    ],
)
def test_a_bad_url_is_explained_without_its_secrets(url: str, sentence: str) -> None:
    assert sentence in problem(url)
    assert SECRET not in problem(url)


def test_a_url_of_sentinels_names_them_and_the_service() -> None:
    url = f"rediss+sentinel://me:{SECRET},@a:1,[::2],c:3/a%2Fb/4"
    assert is_sentinel(url)
    assert sentinels(url) == [("a", 1), ("::2", 26379), ("c", 3)]
    assert service(url) == ("a/b", "4")
    assert service("redis+sentinel://a/main") == ("main", "")
    assert not is_sentinel("rediss://a")


def test_a_url_of_a_cluster_names_nodes() -> None:
    assert cluster_nodes(f"rediss+cluster://me:{SECRET},@a:1,[::2],c:3") == [("a", 1), ("::2", 6379), ("c", 3)]
    assert [is_cluster(f"{scheme}://a") for scheme in ("redis+cluster", "redis")] == [True, False]


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_nodes_of_a_cluster_are_connected_to_as_the_url_says(scheme: str) -> None:
    url = f"{scheme}+cluster://me:{SECRET}@a:1,b" + "?ssl_ca_certs=/ca.pem" * (scheme == "rediss")
    pool = open_async(url, timeout_s=1, step_s=1, prefix="{g}:")
    for opened in (pool, pool.sentinel_manager._open_pool(host="a", port=1)):
        options = opened.connection_kwargs
        assert (options["username"], options["password"]) == ("me", SECRET)
        assert issubclass(opened.connection_class, SSLConnection) == (scheme == "rediss")
        assert options.get("ssl_ca_certs") == ("/ca.pem" if scheme == "rediss" else None)
    assert options["socket_timeout"] == 1 / 3


@pytest.mark.parametrize(
    ("prefix", "is_good"), [("{g}:", True), ("a{g}", True), ("", False), ("g:", False), ("{}g", False)]
)
def test_a_prefix_without_a_hash_tag_does_not_fit_a_cluster(prefix: str, *, is_good: bool) -> None:
    assert bool(HASH_TAG.match(prefix)) == is_good
    assert (len({key_slot(f"{prefix}{key}".encode()) for key in range(99)}) == 1) == is_good


def as_newer_pythons(url: str, *more: Any) -> SplitResult:
    """`urlsplit` with the rule that came with CVE-2025-0938: nothing stands before and behind a host's brackets."""
    netloc = re.split("[/?#]", url.partition("//")[2], maxsplit=1)[0]
    before, bracket, rest = netloc.rpartition("@")[2].partition("[")
    if bracket and (before or not re.fullmatch(r"[^]]*\](:.*)?", rest)):
        raise ValueError("Invalid IPv6 URL")
    return urlsplit(url, *more)


@pytest.mark.parametrize("is_newer", [False, True])
@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("[::1]", [("::1", 26379)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]:1,[::2]:2", [("::1", 1), ("::2", 2)]),
        ("[::1],[::2]", [("::1", 26379), ("::2", 26379)]),
        ("a:1,[::2]:2", [("a", 1), ("::2", 2)]),
        ("[::1],b", [("::1", 26379), ("b", 26379)]),
        (f"me:{SECRET}@a,[::2]:2,c", [("a", 26379), ("::2", 2), ("c", 26379)]),
    ],
)
@pytest.mark.parametrize("end", ["/main", "/main/2", "/main?db=2", "/main/\n"])
def test_sentinels_with_ipv6_addresses_are_read_alike_by_every_python(
    monkeypatch: pytest.MonkeyPatch, hosts: str, found: list[tuple[str, int]], end: str, *, is_newer: bool
) -> None:
    if is_newer:
        monkeypatch.setattr(redis_url, "urlsplit", as_newer_pythons)
        monkeypatch.setattr(urllib.parse, "urlsplit", as_newer_pythons)
    url = f"redis+sentinel://{hosts}{end}"
    assert problem(url) == ""
    assert sentinels(url) == found
    assert service(url)[0] == "main"
    assert shown(url) == f"redis+sentinel://{hosts.rpartition('@')[2]}{end.strip()}"
    assert database(url) == (2 if "2" in end else 0)
    options = open_async(url, timeout_s=1, step_s=1).connection_kwargs
    assert (options.get("username"), options.get("password")) == (("me", SECRET) if "@" in hosts else (None, None))


@pytest.mark.parametrize("hosts", ["a,[::1", "[::1]x,b", "[a],b", "b,]::1[", "b,[::1]:x"])
def test_half_an_ipv6_address_is_none(hosts: str) -> None:
    assert "must be a URL like" in problem(f"redis+sentinel://:{SECRET}@{hosts}/main")


def test_the_master_s_part_imports_no_redis_library() -> None:
    code = (
        "import sys, pwgrid.common.redis_url; print([m for m in {'hiredis', 'redis', 'asyncio'} & sys.modules.keys()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
