"""The rights that a grid's user needs in Redis: as an ACL line, and as commands that try each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pwgrid.registry.records import glob_escape

KEYS: Final = (
    "worker:*",
    "cluster:*",
    "session:*",
    "sessions:*",
    "lease:*",
    "leases:*",
    "slots:wanted:*",
    "page:history",
    "reaper:*",
)
"""All keys of a grid, behind its prefix."""

KEYSPACE: Final = "__keyspace@*__:"
"""Begins the names of the channels on which Redis itself tells of changed keys."""

CHANNELS: Final = ("slots:*", "worker:cmd:*", f"{KEYSPACE}worker:cmd:*")
"""All channels of a grid; its prefix stands before what is its own of them."""

_OF_NO_KEY: Final = (
    ("DISCARD",),
    ("EVALSHA", "0" * 40, "0"),
    ("MULTI",),
    ("PING",),
    ("SCAN", "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SELECT", "0"),
    ("TIME",),
)

_OF_CLUSTER: Final = (("CLUSTER", "INFO"), ("CLUSTER", "NODES"), ("CLUSTER", "SLOTS"))
"""What only a grid on a Redis Cluster needs: it asks for the node that has its keys."""

_OF_KEYS: Final = (
    ("DEL", "worker:cmd:*"),
    ("EXISTS", "session:*"),
    ("GET", "worker:cmd:*"),
    ("HDEL", "cluster:active_connections", "f"),
    ("HGET", "worker:*", "f"),
    ("HGETALL", "worker:*"),
    ("HINCRBY", "cluster:active_connections", "f", "1"),
    ("HKEYS", "cluster:active_connections"),
    ("HLEN", "cluster:active_connections"),
    ("HMGET", "worker:*", "f"),
    ("HSET", "worker:*", "f", "v"),
    ("HSETNX", "session:*", "f", "v"),
    ("LRANGE", "page:history", "0", "0"),
    ("LTRIM", "page:history", "0", "0"),
    ("PEXPIRE", "worker:*", "1"),
    ("PTTL", "worker:*"),
    ("RPUSH", "page:history", "v"),
    ("SADD", "sessions:of:*", "v"),
    ("SCARD", "sessions:of:*"),
    ("SET", "slots:wanted:*", "v"),
    ("SMEMBERS", "sessions:of:*"),
    ("SREM", "sessions:of:*", "v"),
    ("TYPE", "worker:*"),
    ("ZADD", "sessions:index", "0", "v"),
    ("ZCARD", "sessions:live:*"),
    ("ZRANGE", "sessions:live:*", "0", "0"),
    ("ZRANGEBYSCORE", "sessions:index", "0", "0"),
    ("ZREM", "sessions:index", "v"),
    ("ZREMRANGEBYRANK", "sessions:index", "0", "0"),
    ("ZREVRANGE", "sessions:index", "0", "0"),
    ("ZREVRANGEBYSCORE", "sessions:index", "0", "0"),
    ("ZSCORE", "sessions:live:*", "v"),
    *(command for key in KEYS for command in (("HGET", key, "f"), ("HSET", key, "f", "v"))),
)

_OF_CHANNELS: Final = (
    ("PUBLISH", "slots:*", "v"),
    ("PUBLISH", "worker:cmd:*", "v"),
    ("SUBSCRIBE", "worker:cmd:*"),
    ("SUBSCRIBE", f"{KEYSPACE}worker:cmd:*"),
    ("PSUBSCRIBE", "slots:*"),
)

_NAME: Final = "of-no-worker"
"""Stands for each * of a key or channel that is tried."""


def commands(*, of_cluster: bool = False) -> list[str]:
    """The names of all commands, in lower case, as an ACL has them."""
    used = (*_OF_NO_KEY, *_OF_KEYS, *_OF_CHANNELS, *(_OF_CLUSTER if of_cluster else ()))
    return sorted({_as_rule(command) for command in used})


def acl_line(user: str, prefix: str = "", *, of_cluster: bool = False) -> list[str]:
    """The words of the command that gives a user these rights and no others; PASSWORD stands for its password."""
    rules = [f"~{_of_grid(key, glob_escape(prefix))}" for key in KEYS]
    rules += [f"&{_of_grid(channel, glob_escape(prefix))}" for channel in CHANNELS]
    # In Redis 6 a user that is reset may use all channels.
    begin = ("ACL", "SETUSER", user, "reset", "resetchannels", "on", ">PASSWORD")
    return [*begin, *rules, *(f"+{name}" for name in commands(of_cluster=of_cluster))]


def tries(prefix: str, database: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Commands that may stand between MULTI and DISCARD, where they change nothing, each behind its name for people."""
    for command in _OF_NO_KEY:
        if command[0] not in ("MULTI", "DISCARD", "SELECT"):  # the last was needed already if the database is not 0
            yield _as_rule(command), command
    for name, where, *rest in (*_OF_KEYS, *_OF_CHANNELS):
        yield f"{name.lower()} {where}", (name, _tried(name, where, prefix, database), *rest)


def _tried(name: str, where: str, prefix: str, database: int) -> str:
    if name == "PSUBSCRIBE":  # which needs a rule with the same words
        return _of_grid(where, glob_escape(prefix))
    before = KEYSPACE.replace("*", str(database)) if where.startswith(KEYSPACE) else ""
    return before + prefix + where.removeprefix(KEYSPACE).replace("*", _NAME)


def _of_grid(name: str, prefix: str) -> str:
    """The key or channel, with the grid's prefix."""
    before = KEYSPACE if name.startswith(KEYSPACE) else ""
    return f"{before}{prefix}{name.removeprefix(before)}"


def _as_rule(command: tuple[str, ...]) -> str:
    """The command as an ACL names it: with its subcommand, where it has one."""
    return "|".join(command[:2] if command[0] in ("SCRIPT", "CLUSTER") else command[:1]).lower()
