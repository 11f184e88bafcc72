"""The one connection to Redis for all that a process asks of it, kept up in the background. Knows no keys.

What is asked in one turn of the loop goes as one pipeline, and what is asked while that is under way as the next.
Nobody waits for a Redis that is known to be away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

import structlog
from redis.exceptions import NoScriptError, RedisError, ResponseError

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.histogram import Histogram
from pwgrid.common.redis_url import shown
from pwgrid.common.waiting import end_task
from pwgrid.registry.connect import close_async, open_async
from pwgrid.registry.pipelined_connection import Argument, Command, Pipeline, PipelinedConnection, Reply, packed
from pwgrid.registry.reconnect import keep_connected
from pwgrid.registry.scripts import Script

log = structlog.get_logger()

_PASSING_CODES: Final = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
)
"""What Redis says while it cannot serve; the same command may succeed later."""


EXCHANGE_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class RedisClient:
    """Connects at once, and again after each loss. To be made while a loop runs."""

    def __init__(self, url: str, *, timeout_s: float, scripts: Iterable[Script] = ()) -> None:
        self.reason = "not connected yet"
        """Why there is no connection, while there is none."""
        self.exchanges = Histogram(EXCHANGE_BOUNDS_S)
        """How long Redis took for a pipeline, in seconds."""
        self._name = shown(url)
        self._timeout_s = timeout_s
        self._loads = [script.load for script in scripts]
        self._loop = asyncio.get_running_loop()
        self._redis = open_async(url, timeout_s=timeout_s, step_s=None)
        self._waiting: list[Pipeline] = []
        self._under_way: list[Pipeline] = []
        self._scripts_wait = False
        """Whether one of those that wait has the scripts with it."""
        self._asked = asyncio.Event()
        self._tried = asyncio.Event()
        self._connected = asyncio.Event()
        self._on_connect: list[Callable[[], None]] = []
        self._task = asyncio.create_task(keep_connected(self._live), name="redis connection")

    def __repr__(self) -> str:
        return f"<RedisClient {self._name} {'connected' if self.connected else f'away ({self.reason})'}>"

    @property
    def connected(self) -> bool:
        """Whether commands can be sent now."""
        return self._connected.is_set()

    def on_connect(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each later (re)connect."""
        self._on_connect.append(callback)

    async def wait_connected(self) -> None:
        """Returns once there is a connection; bounded by nothing but the caller."""
        await self._connected.wait()

    async def call(self, *arguments: Argument) -> Reply:
        """One command. Raises RegistryUnavailable (also after `timeout_s`) or RegistryError."""
        return (await self.pipeline([arguments]))[0]

    async def run(self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Reply:
        """Runs one of `scripts` by its digest. Raises as `call` does."""
        return (await self.pipeline([("EVALSHA", script.digest, len(keys), *keys, *arguments)]))[0]

    async def pipeline(self, commands: Iterable[Command]) -> list[Reply]:
        """Several commands; all replies in order. Raises as `call` does, for the first that is refused."""
        texts = packed(commands)
        if not texts:
            return []
        replies = await self._ask(texts)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                replies = await self._again(texts, replies)
                break
        _check(replies)
        return replies

    async def close(self) -> None:
        """Ends the connection and the background task. Idempotent."""
        await end_task(self._task)
        await close_async(self._redis)
        self._connected.clear()
        self._lost("the client is closed")

    async def _again(self, texts: list[bytes], replies: list[Reply]) -> list[Reply]:
        """The replies once more, where Redis has lost the scripts: redis-py's own pipelines ask before each run whether
        they are there; here that costs nothing."""
        failed = [text for text, reply in zip(texts, replies, strict=True) if isinstance(reply, NoScriptError)]
        loads, self._scripts_wait = ([] if self._scripts_wait else self._loads), True
        again = iter((await self._ask(loads + failed))[len(loads) :])
        return [next(again) if isinstance(reply, NoScriptError) else reply for reply in replies]

    async def _ask(self, texts: list[bytes]) -> list[Reply]:
        if not self.connected:
            await self._first_attempt()
        asked = self._pipeline(texts)
        self._waiting.append(asked)
        self._asked.set()
        return await asked.all_replies

    def _pipeline(self, texts: list[bytes]) -> Pipeline:
        return Pipeline(texts, self._loop.time() + self._timeout_s, self._loop.create_future())

    async def _first_attempt(self) -> None:
        # Only the very first attempt is waited for. Later, while Redis is away, callers are told at once.
        if not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._tried.wait()
        if not self.connected:
            raise RegistryUnavailable(f"Redis at {self._name} is away: {self.reason}")

    async def _live(self) -> None:
        """One connection, from its opening until it is lost."""
        pool, connection = self._redis.connection_pool, None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await pool.get_connection()
            pipelines = PipelinedConnection(connection, self._timeout_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pipelines.read())
                tasks.create_task(self._serve(pipelines))
        except TimeoutError:
            self._lost(f"it did not answer within {self._timeout_s:g} s")
        except ExceptionGroup as errors:
            self._lost(str(errors.exceptions[0]) or repr(errors.exceptions[0]))
        except Exception as error:  # noqa: BLE001 - also a bug of a library: the next connection may work
            self._lost(str(error) or repr(error))
        finally:
            if connection is not None:
                with contextlib.suppress(RedisError):  # it could not be closed in time
                    await connection.disconnect()
                await pool.release(connection)

    def _lost(self, reason: str) -> None:
        if self.connected:
            log.warning("redis_connection_lost", redis=self._name, reason=reason)
        self.reason = reason
        self._connected.clear()
        self._tried.set()
        unanswered, self._under_way, self._waiting = self._under_way + self._waiting, [], []
        self._scripts_wait = False
        for each in unanswered:
            if not each.all_replies.done():
                each.all_replies.set_exception(RegistryUnavailable(f"Redis did not answer: {reason}"))

    async def _serve(self, pipelines: PipelinedConnection) -> NoReturn:
        # Redis refuses the scripts, for example, while it loads its data: that is as good as away.
        if self._loads:
            loads = self._pipeline(self._loads)
            await pipelines.exchange([loads])
            _check(loads.replies)
        self._connected.set()
        self._tried.set()
        for callback in self._on_connect:
            callback()
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._waiting:
                self._under_way, self._waiting, self._scripts_wait = self._waiting, [], False
                since = time.monotonic()
                await pipelines.exchange(self._under_way)
                self.exchanges.observe(time.monotonic() - since)
                self._under_way = []


def _check(replies: list[Reply]) -> None:
    """Raises for the first that is a refusal: RegistryUnavailable where it may pass, else RegistryError."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            sentence = f"Redis refused: {reply}"
            raise RegistryUnavailable(sentence) if _may_pass(reply) else RegistryError(sentence)


def _may_pass(error: ResponseError) -> bool:
    text = str(error)
    code = error.status_code or text.partition(" ")[0]
    # Redis 6 wraps what a script's own command said: "ERR Error running script (…): … -OOM command not allowed …".
    return code in _PASSING_CODES or any(f"-{passing} " in text for passing in _PASSING_CODES)
