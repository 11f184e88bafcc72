"""Connections to Redis that are opened again whenever they are lost: a process's one for commands, and one for each
subscription to channels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import structlog
from redis.asyncio import SentinelConnectionPool
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.backoff import EqualJitterBackoff
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.histogram import Histogram
from pwgrid.common.redis_faults import FaultKind, RedisFault
from pwgrid.common.redis_url import shown
from pwgrid.common.tasks import end_task, first_of
from pwgrid.registry.fault_of import fault_of
from pwgrid.registry.open_redis import open_async
from pwgrid.registry.scripts import Script, packed

log = structlog.get_logger()

# Where there is none, redis-py makes it with the first subscription, and writes to all loggers then: each process would
# have copies of pages that it shares with the master.
logging.getLogger("push_response")

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
Reply = Any
"""What hiredis makes of RESP3: text, a number, None, a list, a dictionary; a ResponseError for a refusal."""

EXCHANGE_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)

HEALTHY_S: Final = 5.0
"""A connection that lasts this long resets the pauses before the next one. A shorter one does not: else a server that
accepts and breaks each connection would be tried, and logged, a thousand times a second."""

_BACKOFF: Final = EqualJitterBackoff(cap=1.0, base=0.02)
_MOST_FAILURES: Final = 10  # 2 ** failures overflows a float in a long outage

CHECK_INTERVAL_S: Final = 10.0
"""How often a silent connection of a subscription gets a ping."""


async def keep_connected(live: Callable[[], Awaitable[None]]) -> NoReturn:
    """Calls `live` again and again, with pauses that grow until one connection lasts."""
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        began = loop.time()
        await live()
        failures = 0 if loop.time() - began >= HEALTHY_S else min(failures + 1, _MOST_FAILURES)
        await asyncio.sleep(_BACKOFF.compute(failures))  # nothing tells when a server comes back


class _KeptConnection:
    """Connects at once, and again after each loss. Make it while an event loop runs."""

    def __init__(self, url: str, *, timeout_s: float, step_s: float | None, prefix: str) -> None:
        self._url, self._name = url, shown(url)
        self._timeout_s = timeout_s
        self._pool = open_async(url, timeout_s=timeout_s, step_s=step_s, prefix=prefix)
        self._connection: AbstractConnection | None = None
        self._task = asyncio.create_task(keep_connected(self._live), name=type(self).__name__)

    async def close(self) -> None:
        """Ends the connection, those to sentinels too, and the background task. Idempotent."""
        await end_task(self._task)
        await self._pool.aclose()
        if isinstance(self._pool, SentinelConnectionPool):
            await self._pool.sentinel_manager.aclose()

    @property
    def server(self) -> tuple[Any, ...] | None:
        """Which server has the connection, by host and port; None without one. Sentinels and clusters change it."""
        one = self._connection
        return None if one is None else (getattr(one, "host", None), getattr(one, "port", None))

    async def _live(self) -> None:
        """Opens one connection, and returns when that is lost, or cannot be opened."""
        raise NotImplementedError

    def _fault_of(self, error: Exception) -> RedisFault:
        return fault_of(error, url=self._url, during=f"no answer within {self._timeout_s:g} s")


@dataclass(slots=True, eq=False)
class _Pipeline:
    """At least one command in wire format, and the replies. `deadline` is in seconds of the loop's clock."""

    commands: list[bytes]
    deadline: float
    all_replies: asyncio.Future[list[Reply]]
    replies: list[Reply] = field(default_factory=list)

    def take(self, reply: Reply) -> bool:
        """Adds a reply. Returns whether it was the last one."""
        self.replies.append(reply)
        is_complete = len(self.replies) == len(self.commands)
        if is_complete and not self.all_replies.done():  # else its caller was cancelled
            self.all_replies.set_result(self.replies)
        return is_complete


class RedisClient(_KeptConnection):
    """The connection for commands, of which each process has one.

    Commands of one turn of the event loop go as one pipeline; those that come before its replies form the next one. The
    connection is read even between them, so that a loss is noticed at once. While Redis is known to be away, a command
    fails at once.
    """

    def __init__(self, url: str, *, timeout_s: float, scripts: Iterable[Script] = (), prefix: str = "") -> None:
        super().__init__(url, timeout_s=timeout_s, step_s=None, prefix=prefix)
        self.fault: RedisFault | None = None
        """Why there is no connection; None before the first attempt, out of date while there is a connection."""
        self.exchanges = Histogram(EXCHANGE_BOUNDS_S)
        """How long Redis took for each pipeline, in seconds."""
        self._scripts = tuple(scripts)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Pipeline] = []
        self._under_way: deque[_Pipeline] = deque()
        self._all_answered = self._loop.create_future()
        self._scripts_are_queued = False
        """Whether a waiting pipeline loads the scripts already."""
        self._asked = asyncio.Event()
        self._tried = asyncio.Event()
        self._connected = asyncio.Event()
        self._is_broken_off = asyncio.Event()
        self._on_connect: list[Callable[[], None]] = []
        self._on_lost: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<RedisClient {self._name} {'connected' if self.connected else f'away ({self.reason})'}>"

    @property
    def reason(self) -> str:
        """`fault` as a sentence."""
        return str(self.fault or "not connected yet")

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    def on_connect(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each later (re)connect."""
        self._on_connect.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each later loss of the connection."""
        self._on_lost.append(callback)

    async def wait_connected(self) -> None:
        """Returns once connected. Has no timeout of its own."""
        await self._connected.wait()

    async def call(self, *arguments: Argument) -> Reply:
        """Sends one command. Raises RegistryUnavailable (also after `timeout_s`) or RegistryError."""
        return (await self.pipeline([arguments]))[0]

    async def run(self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Reply:
        """Runs one of `scripts` by its digest. Raises as `call` does."""
        return (await self.pipeline([("EVALSHA", script.digest, len(keys), *keys, *arguments)]))[0]

    async def pipeline(self, commands: Iterable[Command]) -> list[Reply]:
        """Sends commands, returns all replies in order. Raises as `call` does, for the first that Redis refuses."""
        replies = await self.answers(commands)
        check(replies)
        return replies

    async def answers(self, commands: Iterable[Command]) -> list[Reply]:
        """As `pipeline`, but a command that Redis refuses has a ResponseError for its reply."""
        texts = [packed(command) for command in commands]
        if not texts:
            return []
        replies = await self._ask(texts)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                return await self._retry_with_scripts(texts, replies)
        return replies

    async def close(self) -> None:
        await super().close()
        self._connected.clear()
        self._lost(RedisFault(FaultKind.CLOSED, "by this client"))

    def break_off(self) -> None:
        """Ends the connection: what came over it makes no sense. Another one is opened."""
        self._is_broken_off.set()

    async def _retry_with_scripts(self, texts: list[bytes], replies: list[Reply]) -> list[Reply]:
        """Loads the scripts that Redis has lost, and repeats the commands that failed without them. redis-py's own
        pipelines ask before each run whether Redis has the scripts; this asks nothing."""
        failed = [text for text, reply in zip(texts, replies, strict=True) if isinstance(reply, NoScriptError)]
        loads = [] if self._scripts_are_queued else [script.load for script in self._scripts]
        self._scripts_are_queued = True
        again = iter((await self._ask(loads + failed))[len(loads) :])
        return [next(again) if isinstance(reply, NoScriptError) else reply for reply in replies]

    async def _ask(self, texts: list[bytes]) -> list[Reply]:
        if not self.connected:
            await self._first_attempt()
        asked = self._pipeline(texts)
        self._waiting.append(asked)
        self._asked.set()
        return await asked.all_replies

    def _pipeline(self, texts: list[bytes]) -> _Pipeline:
        return _Pipeline(texts, self._loop.time() + self._timeout_s, self._loop.create_future())

    async def _first_attempt(self) -> None:
        # Callers wait for the very first attempt only. Later, while Redis is away, they fail at once.
        if not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._tried.wait()
        if not self.connected:
            raise RegistryUnavailable(f"Redis at {self._name} is away: {self.reason}", self.fault)

    async def _live(self) -> None:
        connection = None
        try:
            async with asyncio.timeout(self._timeout_s):
                self._connection = connection = await self._pool.get_connection()
            # Not a TaskGroup: one that fails leaves this task with a cancellation that is never taken back, and up to
            # Python 3.11.3 (Debian 12) the next timeout then cancels the task itself.
            self._is_broken_off.clear()
            await first_of(self._read(connection), self._write(connection), self._until_broken_off())
        except Exception as error:  # noqa: BLE001 - also a bug of a library: the next connection may work
            self._lost(self._fault_of(error))
        finally:
            self._connection = None
            # All of the pool: one whose greeting made no sense is open there, and would be taken for a good one.
            with contextlib.suppress(RedisError):  # it could not be closed in time
                await self._pool.disconnect()
            if connection is not None:
                await self._pool.release(connection)

    def _lost(self, fault: RedisFault) -> None:
        was_connected = self.connected
        if was_connected:
            log.warning("redis_connection_lost", redis=self._name, reason=str(fault))
        self.fault = fault
        self._connected.clear()
        self._tried.set()
        unanswered, self._under_way, self._waiting = [*self._under_way, *self._waiting], deque(), []
        self._scripts_are_queued = False
        for each in unanswered:
            if not each.all_replies.done():
                each.all_replies.set_exception(RegistryUnavailable(f"Redis did not answer: {fault}", fault))
                each.all_replies.exception()  # seen: nobody waits for the loading of the scripts
        if was_connected:
            for callback in self._on_lost:
                callback()

    async def _write(self, connection: AbstractConnection) -> NoReturn:
        # A Redis that still loads its data refuses the scripts: it counts as away. What gives another answer than their
        # digests is no Redis.
        if self._scripts:
            loads = self._pipeline([script.load for script in self._scripts])
            await self._exchange(connection, [loads])
            check(loads.replies)
            if loads.replies != [script.digest for script in self._scripts]:
                raise InvalidResponse("it does not load scripts as Redis does")
        self._connected.set()
        self._tried.set()
        for callback in self._on_connect:
            callback()
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._waiting:
                pipelines, self._waiting, self._scripts_are_queued = self._waiting, [], False
                since = time.monotonic()
                await self._exchange(connection, pipelines)
                self.exchanges.observe(time.monotonic() - since)

    async def _exchange(self, connection: AbstractConnection, pipelines: list[_Pipeline]) -> None:
        """Sends all in one write; returns when each has its replies."""
        self._under_way.extend(pipelines)
        self._all_answered = self._loop.create_future()
        await connection.send_packed_command(b"".join([text for each in pipelines for text in each.commands]))
        await self._all_answered

    async def _until_broken_off(self) -> NoReturn:
        await self._is_broken_off.wait()
        raise InvalidResponse("its answer makes no sense")

    async def _read(self, connection: AbstractConnection) -> NoReturn:
        """Raises TimeoutError for a late reply, which would otherwise count as the reply to a later command.

        One timer serves all pipelines within `timeout_s`; a timer for each would cost as much as reading its replies.
        """
        while True:
            try:
                async with asyncio.timeout_at(min(self._deadline, self._loop.time() + self._timeout_s)):
                    await self._take_replies(connection)
            except TimeoutError:
                if self._deadline <= self._loop.time():
                    raise TimeoutError(f"no reply within {self._timeout_s:g} s") from None

    @property
    def _deadline(self) -> float:
        return self._under_way[0].deadline if self._under_way else math.inf

    async def _take_replies(self, connection: AbstractConnection) -> NoReturn:
        while True:
            try:
                reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            if not self._under_way:
                raise InvalidResponse("it sent a reply that nobody asked for")
            if self._under_way[0].take(reply):
                self._under_way.popleft()
                if not self._under_way:
                    self._all_answered.set_result(None)


class Subscription(_KeptConnection):
    """Keeps channels subscribed, and patterns of their names, through redis-py's PubSub. Sends nothing else.

    Calls `on_message` with the channel of each message, and `on_subscribed` after each (re)subscription, since messages
    may have been missed before it.
    """

    def __init__(  # noqa: PLR0913 - what is heard, and where; each is named
        self,
        url: str,
        *,
        timeout_s: float,
        channels: Collection[str] = (),
        patterns: Collection[str] = (),
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], None],
        prefix: str = "",
    ) -> None:
        super().__init__(url, timeout_s=timeout_s, step_s=timeout_s, prefix=prefix)
        self._channels = channels
        self._patterns = patterns
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._is_refusal_told = False
        self._has_moved = asyncio.Event()

    async def _subscribe(self, pubsub: PubSub) -> None:
        if self._channels:
            await pubsub.subscribe(*self._channels)
        if self._patterns:
            await pubsub.psubscribe(*self._patterns)

    def follow(self, server: tuple[Any, ...] | None) -> None:
        """Connects again if this is subscribed at another server than that which now has the keys: what was the primary
        may be cut off, and never say that it has nothing to tell any more."""
        if self._connection is not None and self.server != server:
            self._has_moved.set()

    async def _live(self) -> None:
        unconfirmed = {*self._channels, *self._patterns}
        self._has_moved.clear()
        try:
            async with PubSub(self._pool) as pubsub:
                await self._subscribe(pubsub)
                self._connection = pubsub.connection
                await first_of(self._listen(pubsub, pubsub.connection, unconfirmed), self._has_moved.wait())
        except Exception as error:  # noqa: BLE001 - also a bug of a library: the next connection may work
            fault = self._fault_of(error)
            if not unconfirmed:
                log.warning("redis_subscription_lost", redis=self._name, reason=str(fault))
            elif fault.kind is FaultKind.RIGHTS and not self._is_refusal_told:
                self._is_refusal_told = True
                log.warning("redis_subscription_refused", redis=self._name, reason=str(fault))
        finally:
            self._connection = None
            with contextlib.suppress(RedisError):  # as in RedisClient
                await self._pool.disconnect()

    async def _listen(self, pubsub: PubSub, connection: Any, unconfirmed: set[str]) -> NoReturn:
        is_asked = True  # something must come within `timeout_s`
        while True:
            # Not PubSub's `get_message`: it takes 0.13 ms for a message, of which this is 0.03 ms, and clients that
            # wait for a slot wait for it.
            within_s = self._timeout_s if is_asked else CHECK_INTERVAL_S
            said = await connection.read_response(timeout=within_s, disconnect_on_error=False, push_request=True)
            match said:
                case None if is_asked:
                    raise TimeoutError(f"no answer within {self._timeout_s:g} s")
                case None:
                    await pubsub.ping()
                case ["message", channel, _] | ["pmessage", _, channel, _]:
                    self._on_message(channel)
                case ["subscribe" | "psubscribe", channel, _]:
                    unconfirmed.discard(channel)
                    if not unconfirmed:
                        self._on_subscribed()
            is_asked = said is None or bool(unconfirmed)


def check(replies: list[Reply]) -> None:
    """Raises for the first refusal: RegistryError where it is of the command alone, else RegistryUnavailable."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            fault = fault_of(reply)
            if fault.kind is FaultKind.REFUSED:
                raise RegistryError(f"Redis refused: {fault.said}", fault)
            raise RegistryUnavailable(f"Redis refused: {fault}", fault)
