"""Finds the node of a Redis Cluster that has all keys of a grid: the primary of the slot of their hash tag.

Stands where redis-py has a Sentinel: its pool asks `discover_master` before each new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

import redis
from redis import asyncio as aredis
from redis.asyncio.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, RedisError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

Address = tuple[str, int]
"""Host and port."""

Answer = list[Any]
"""A node's replies to QUESTIONS."""

QUESTIONS: Final = (("CLUSTER", "SLOTS"), ("CLUSTER", "NODES"), ("CLUSTER", "INFO"))
"""The first has the addresses as clients are to use them, the second says which node's view is the newest one, and the
third whether the node serves anybody now."""

NOT_LOCAL: Final = "attempted to access a non local key in a cluster node"
"""Of a script's error, when some of the keys that it uses have moved and others have not."""

_EPOCH, _SLOTS = 6, 8  # of the words of a line of CLUSTER NODES


class _Claim(NamedTuple):
    """What one node says of the slot. The greatest is the newest: of two primaries the later one has the higher epoch,
    and of equals it is the primary itself that knows whether it gives the slot away."""

    epoch: int
    is_of_primary: bool
    address: Address
    is_moving: bool
    is_up: bool


def find_primary(
    named: Sequence[Address], prefix: str
) -> Generator[Sequence[Address], Sequence[Answer | Exception], Address]:
    """Yields the nodes to ask next, is sent their answers, or why there is none, and returns the primary's address.

    All that are named are asked, since one that is cut off, or has just come back, may not know of a failover yet.
    Raises what the last one failed with if none answers, ClusterDownError if no node has the slot or its primary serves
    nobody, and TryAgainError while it moves: a script that met only a part of its keys would take that for all.
    """
    slot, answers = key_slot(prefix.encode()), (yield named)
    faults = [answer for answer in answers if isinstance(answer, Exception)]
    if len(faults) == len(answers):
        raise faults[-1]
    asked = zip(named, answers, strict=True)
    views = [_claim(answer, address, slot) for address, answer in asked if not isinstance(answer, Exception)]
    claims = [claim for claim in views if claim is not None]
    if not claims:
        raise ClusterDownError(f"CLUSTERDOWN no node has slot {slot}", status_code="CLUSTERDOWN")
    newest = max(claims)
    if not newest.is_of_primary:
        (answer,) = yield [newest.address]
        if isinstance(answer, Exception):
            raise answer
        newest = max(newest, _claim(answer, newest.address, slot) or newest)
    if not newest.is_up:
        raise ClusterDownError("CLUSTERDOWN cluster_state is not ok", status_code="CLUSTERDOWN")
    if newest.is_moving:
        where = f"{newest.address[0]}:{newest.address[1]}"
        raise TryAgainError(f"slot {slot} is on its way from {where}", status_code="TRYAGAIN")
    return newest.address


def _claim(answer: Answer, asked: Address, slot: int) -> _Claim | None:
    """None if this node knows of no primary for the slot."""
    slots, nodes, info = answer
    lines = {words[0]: words for words in (line.split(" ") for line in nodes.splitlines())}
    for first, last, (host, port, node, *_), *_ in slots:
        if first <= slot <= last:
            words = lines[node]
            is_of_primary = "myself" in words[2].split(",")
            # What a node gives away stands in its own line alone.
            is_moving = any(each.startswith(f"[{slot}->-") for each in words[_SLOTS:])
            is_up = "cluster_state:ok" in info
            return _Claim(int(words[_EPOCH]), is_of_primary, (host or asked[0], port), is_moving, is_up)
    return None


class ClusterNodes:
    """The nodes that a URL names, which are asked all at once. `open_pool` makes a pool of connections to one node."""

    def __init__(self, named: list[Address], prefix: str, open_pool: Callable[..., aredis.ConnectionPool]) -> None:
        self._named, self._prefix, self._open_pool = named, prefix, open_pool

    async def discover_master(self, _service: str) -> Address:
        """As `find_primary`."""
        search = find_primary(self._named, self._prefix)
        nodes = next(search)
        while True:
            answers = await asyncio.gather(*(self._answer(node) for node in nodes))
            try:
                nodes = search.send(answers)
            except StopIteration as found:
                primary: Address = found.value
                return primary

    async def aclose(self) -> None:
        """Does nothing: between questions there is no connection."""

    async def _answer(self, node: Address) -> Answer | Exception:
        pool = self._open_pool(host=node[0], port=node[1])
        try:
            connection = await pool.get_connection()
            await connection.send_packed_command(connection.pack_commands(QUESTIONS))
            return [await connection.read_response() for _ in QUESTIONS]
        except (RedisError, OSError) as error:
            return error
        finally:
            with contextlib.suppress(RedisError):  # it could not be closed in time
                await pool.aclose()


class BlockingClusterNodes:
    """As ClusterNodes, for redis-py's blocking pools: they are asked one after the other."""

    def __init__(self, named: list[Address], prefix: str, open_pool: Callable[..., redis.ConnectionPool]) -> None:
        self._named, self._prefix, self._open_pool = named, prefix, open_pool

    def discover_master(self, _service: str) -> Address:
        """As `find_primary`."""
        search = find_primary(self._named, self._prefix)
        nodes = next(search)
        while True:
            answers = [self._answer(node) for node in nodes]
            try:
                nodes = search.send(answers)
            except StopIteration as found:
                primary: Address = found.value
                return primary

    def _answer(self, node: Address) -> Answer | Exception:
        pool = self._open_pool(host=node[0], port=node[1])
        try:
            connection = pool.get_connection()
            connection.send_packed_command(connection.pack_commands(QUESTIONS))
            return [connection.read_response() for _ in QUESTIONS]
        except (RedisError, OSError) as error:
            return error
        finally:
            pool.close()


class ClusterConnection(SentinelManagedConnection):
    """A connection to the primary, which is lost when that has not got all keys any more: the next one goes to the node
    that has. An ASK is not followed: a script that met only a part of its keys would take that for all."""

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ResponseError as error:
            if isinstance(error, ClusterDownError):
                raise RedisConnectionError(str(error), status_code="CLUSTERDOWN") from error
            if isinstance(error, AskError | TryAgainError) or NOT_LOCAL in str(error):  # MOVED is an AskError, too
                raise RedisConnectionError(str(error), status_code="TRYAGAIN") from error
            raise


class ClusterSSLConnection(ClusterConnection, SentinelManagedSSLConnection):
    """The same over TLS."""
