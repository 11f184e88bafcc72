"""Tries a Redis as a grid uses it, with commands that change nothing there, and finds out what is wrong with it.

`python -m pwgrid.registry.try_redis` does so for a master, in a process of its own. stdin: JSON with url, timeout_s and
prefix. Exits 0 if it is good, 2 if trying again cannot help, else 1; stdout: what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import orjson
from redis.asyncio import SentinelConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.common.redis_url import split, user_of
from pwgrid.registry.fault_of import fault_of
from pwgrid.registry.open_redis import database, open_async
from pwgrid.registry.rights import tries

LASTING: Final = 2
"""The exit code where trying again cannot help."""

_UNCLEAR: Final = frozenset({FaultKind.SILENT, FaultKind.CLOSED, FaultKind.HANDSHAKE, FaultKind.NO_REDIS})
"""What TLS looks like to who does not expect it, and the other way round."""

_NO_ANSWER: Final = _UNCLEAR | {FaultKind.NOT_LISTENING, FaultKind.UNREACHABLE}
_OTHER_SCHEME: Final = {
    "redis": ("rediss", "ssl_cert_reqs=none", FaultKind.WANTS_TLS),
    "rediss": ("redis", "", FaultKind.HAS_NO_TLS),
}
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found: the version of the Redis ("" if that is unknown), and what is wrong."""

    version: str
    fault: RedisFault | None = None


async def try_redis(url: str, *, timeout_s: float, prefix: str = "") -> Trial:
    """Connects, and tries each command that a grid uses between MULTI and DISCARD. No step takes longer than
    `timeout_s`."""
    version, is_open = "", asyncio.Event()
    try:
        async with _connection(url, timeout_s, is_open, prefix) as connection:
            version = await _version(connection)
            return Trial(version, await _fault_of_commands(connection, url, prefix))
    except Exception as error:  # noqa: BLE001 - a stranger's answer makes redis-py raise anything
        fault = fault_of(error, url=url, during=f"no answer within {timeout_s:g} s")
    if fault.kind in _UNCLEAR and not version:
        fault = await _with_other_scheme(url, timeout_s) or fault
    if fault.kind is FaultKind.CLOSED and is_open.is_set() and split(url).scheme.startswith("rediss") and not version:
        fault = RedisFault(FaultKind.CLIENT_CERTIFICATE)
    return Trial(version, fault)


@contextlib.asynccontextmanager
async def _connection(
    url: str, timeout_s: float, is_open: asyncio.Event, prefix: str = ""
) -> AsyncIterator[AbstractConnection]:
    """A connection that has greeted. Sets `is_open` once there is one, with TLS if the URL asks for that."""

    async def greet(connection: AbstractConnection) -> None:
        is_open.set()
        await connection.on_connect()

    pool = open_async(url, timeout_s=timeout_s, step_s=timeout_s, prefix=prefix)
    pool.connection_kwargs["redis_connect_func"] = greet
    try:
        yield await pool.get_connection()
    finally:
        with contextlib.suppress(RedisError):  # it could not be closed in time
            await pool.aclose()
        if isinstance(pool, SentinelConnectionPool):
            await pool.sentinel_manager.aclose()


async def _version(connection: AbstractConnection) -> str:
    """Raises InvalidResponse for what is no Redis."""
    await connection.send_command("HELLO")  # without arguments: it changes nothing, and no ACL forbids it
    greeting = await connection.read_response()
    if not isinstance(greeting, dict) or not {"version", "proto"} <= greeting.keys():
        raise InvalidResponse(f"it answers HELLO with {greeting!r:.40}")
    return str(greeting["version"])


async def _fault_of_commands(connection: AbstractConnection, url: str, prefix: str) -> RedisFault | None:
    """What Redis says to the commands of a grid, which it only queues."""
    (refusal,) = await _refusals(connection, [("MULTI",)])
    if refusal is not None:  # else it would carry out what follows
        if refusal.kind is not FaultKind.RIGHTS:
            return refusal
        return RedisFault(FaultKind.RIGHTS, f"user {user_of(url)}: no multi, so nothing else was tried")
    tried = [*tries(prefix, database(url)), ("discard", ("DISCARD",))]
    said = await _refusals(connection, [command for _, command in tried])
    answers = [(name, refusal) for (name, _), refusal in zip(tried, said, strict=True) if refusal is not None]
    if refused := list(dict.fromkeys(name for name, refusal in answers if refusal.kind is FaultKind.RIGHTS)):
        more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
        return RedisFault(FaultKind.RIGHTS, f"user {user_of(url)}: no {', '.join(refused[:_MOST_NAMED])}{more}")
    return next((refusal for _, refusal in answers if refusal.kind is not FaultKind.REFUSED), None)


async def _refusals(connection: AbstractConnection, commands: list[tuple[str, ...]]) -> list[RedisFault | None]:
    """What Redis refuses of these, in order; None for what it does not."""
    await connection.send_packed_command(connection.pack_commands(commands))
    return [await _refusal(connection) for _ in commands]


async def _refusal(connection: AbstractConnection) -> RedisFault | None:
    try:
        await connection.read_response()
    except ResponseError as error:
        return fault_of(error)
    return None


async def _with_other_scheme(url: str, timeout_s: float) -> RedisFault | None:
    """Says whether the same port answers with TLS instead of without, or the other way round. Sends no password."""
    parts = split(url)
    if parts.scheme not in _OTHER_SCHEME:
        return None
    scheme, query, kind = _OTHER_SCHEME[parts.scheme]
    other = parts._replace(scheme=scheme, netloc=parts.netloc.rpartition("@")[2], path="", query=query).geturl()
    try:
        async with _connection(other, timeout_s, asyncio.Event()) as connection:
            await _version(connection)
    except Exception as error:  # noqa: BLE001 - as above
        if fault_of(error, url=other).kind in _NO_ANSWER:
            return None
    return RedisFault(kind)


def main() -> int:
    given = orjson.loads(sys.stdin.buffer.read())
    fault = asyncio.run(try_redis(**given)).fault
    if fault is None:
        return 0
    print(fault)  # noqa: T201
    return LASTING if fault.is_lasting else 1


if __name__ == "__main__":
    sys.exit(main())
