"""Makes redis-py pools and clients from a URL, including a Sentinel's or a Cluster's, and sets all their options."""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import redis
from redis import asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.redis_url import cluster_nodes, is_cluster, is_sentinel, sentinels, service, shown, split
from pwgrid.registry.cluster_primary import (
    BlockingClusterNodes,
    ClusterConnection,
    ClusterNodes,
    ClusterSSLConnection,
)
from pwgrid.registry.fault_of import NONSENSE, fault_of

_OPTIONS: Final = {
    "decode_responses": True,
    "encoding_errors": "replace",  # what other programs write must not end our connection
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    # Else each connection tells Redis its version, which many an ACL forbids, and reads it from the installed package's
    # files: 8 ms, and 1.5 MiB of each worker.
    "driver_info": DriverInfo(name=None, lib_version=None),
}
_REDIS_CLI: Final = {
    "db": "-n",
    "username": "--user",
    "ssl_ca_certs": "--cacert",
    "ssl_certfile": "--cert",
    "ssl_keyfile": "--key",
}


def open_async(url: str, *, timeout_s: float, step_s: float | None, prefix: str = "") -> aredis.ConnectionPool:
    """Returns a pool whose connections are not open yet and never retry by themselves. Connecting takes at most
    `timeout_s`, each read or write at most `step_s` (None: no limit). `prefix` is that of the keys.

    It is a pool, since redis-py's client would add a table of all its commands to each process, which nobody here uses.
    """
    options = {**_OPTIONS, **_timeouts(timeout_s, step_s), "retry": AsyncRetry(NoBackoff(), 0)}
    if is_cluster(url):
        node = _node_options(url, aredis.SSLConnection)
        step_s = timeout_s / 3  # the nodes, then perhaps the one that they name, then the connection itself
        asked = {**options, **node, **_timeouts(step_s, step_s)}
        nodes = ClusterNodes(cluster_nodes(url), prefix, partial(aredis.ConnectionPool, **asked))
        kind = ClusterSSLConnection if "connection_class" in node else ClusterConnection
        return aredis.SentinelConnectionPool("", nodes, **{**options, **node, "connection_class": kind})
    if not is_sentinel(url):
        return aredis.ConnectionPool.from_url(url, **options)
    manager = aredis.Sentinel(sentinels(url), sentinel_kwargs={**options, **_sentinel_options(url, timeout_s)})
    return aredis.SentinelConnectionPool(service(url)[0], manager, **{**options, **_master_options(url)})


def database(url: str) -> int:
    """Returns the number of the URL's database."""
    if is_cluster(url):
        return 0
    return int((_master_options(url) if is_sentinel(url) else parse_url(url)).get("db", 0))


def open_blocking(url: str, *, timeout_s: float, prefix: str = "") -> redis.Redis:
    """As `open_async`, for a command that reads something and exits."""
    options = {**_OPTIONS, **_timeouts(timeout_s, timeout_s), "retry": Retry(NoBackoff(), 0)}
    if is_cluster(url):
        node = _node_options(url, redis.SSLConnection)
        step_s = timeout_s / (len(cluster_nodes(url)) + 2)  # as above, but one after the other
        asked = {**options, **node, **_timeouts(step_s, step_s)}
        nodes = BlockingClusterNodes(cluster_nodes(url), prefix, partial(redis.ConnectionPool, **asked))
        kind = SentinelManagedSSLConnection if "connection_class" in node else SentinelManagedConnection
        pool = redis.SentinelConnectionPool("", nodes, **{**options, **node, "connection_class": kind})
        return redis.Redis.from_pool(pool)
    if not is_sentinel(url):
        return redis.Redis.from_url(url, **options)
    manager = redis.Sentinel(sentinels(url), sentinel_kwargs={**options, **_sentinel_options(url, timeout_s)})
    client: redis.Redis = manager.master_for(service(url)[0], **{**options, **_master_options(url)})
    return client


def redis_cli_arguments(url: str, *, timeout_s: float, prefix: str = "") -> tuple[list[str], str]:
    """Returns redis-cli's arguments for this Redis, and its password apart from them, since ps shows arguments.

    For sentinels, connects to the master that they name now, for a cluster to the node that has the grid's keys; raises
    RegistryUnavailable when there is none.
    """
    pool = open_blocking(url, timeout_s=timeout_s, prefix=prefix).connection_pool
    options = pool.connection_kwargs
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    if isinstance(pool, redis.SentinelConnectionPool):
        try:
            host, port = pool.get_master_address()
        except (RedisError, OSError, *NONSENSE) as error:
            raise RegistryUnavailable(f"{shown(url)}: {fault_of(error, url=url)}") from None
    arguments = ["-s", options["path"]] if "path" in options else ["-h", host, "-p", str(port)]
    arguments += ["-c"] * is_cluster(url)
    if issubclass(pool.connection_class, redis.SSLConnection):
        arguments += ["--tls", *["--insecure"] * (options.get("ssl_cert_reqs") == "none")]
    for name, flag in _REDIS_CLI.items():
        arguments += [flag, str(options[name])] if options.get(name) else []
    return arguments, options.get("password") or ""


def _timeouts(connect_s: float, step_s: float | None) -> dict[str, Any]:
    return {"socket_timeout": step_s, "socket_connect_timeout": connect_s}


def _master_options(url: str) -> dict[str, Any]:
    """The options of connections to the Redis behind sentinels, as redis-py parses them from a URL of that Redis."""
    parts = split(url)
    scheme = parts.scheme.removesuffix("+sentinel")
    userinfo, at, _ = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if not name.startswith("sentinel_")])
    options = parse_url(f"{scheme}://{userinfo}{at}/{service(url)[1]}?{query}")
    options.pop("connection_class", None)
    return {**options, "ssl": True} if scheme == "rediss" else options


def _node_options(url: str, of_tls: type) -> dict[str, Any]:
    """The options of connections to the nodes of a cluster, as redis-py parses them from a URL of one; for TLS with
    `of_tls` as their class."""
    parts = split(url)
    scheme, userinfo = parts.scheme.removesuffix("+cluster"), parts.netloc.rpartition("@")[0]
    options = parse_url(f"{scheme}://{userinfo}@?{parts.query}" if userinfo else f"{scheme}://?{parts.query}")
    return {**options, "connection_class": of_tls} if scheme == "rediss" else options


def _sentinel_options(url: str, timeout_s: float) -> dict[str, Any]:
    """The options of connections to the sentinels. Each may take an equal part of `timeout_s`, so that a frozen one
    leaves time for the others and for Redis itself."""
    query = dict(parse_qsl(split(url).query))
    step_s = timeout_s / (len(sentinels(url)) + 1)
    return {
        **{name: value for name, value in _master_options(url).items() if name.startswith("ssl")},
        **_timeouts(step_s, step_s),
        "username": query.get("sentinel_username"),
        "password": query.get("sentinel_password"),
    }
