"""One pipelined connection to Redis on asyncio, kept up in the background. Knows no keys and no scripts by name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, cast

import hiredis
import structlog

from pwgrid.common.errors import GridError, RegistryUnavailable
from pwgrid.registry.redis_address import RedisAddress
from pwgrid.registry.resp import Argument, RegistryError, Reply, checked, pack
from pwgrid.registry.scripts import Script

log = structlog.get_logger()

BACKOFF_FIRST_S: Final = 0.02
BACKOFF_LAST_S: Final = 1.0
_INCOMPLETE: Final = object()

OnReply = Callable[[Reply], None]
"""Gets the reply, which may be an error: one that Redis sent, or RegistryUnavailable. Must not raise."""


class RedisProtocol(asyncio.Protocol):
    """Requests and replies of one connection, matched by their order."""

    def __init__(self, timeout_s: float, on_push: Callable[[Reply], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._on_push = on_push
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace", notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[OnReply, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[str] = self._loop.create_future()
        """Done, with why, once the connection is of no use any more."""
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio.Transport by inheritance
        self._transport = cast(asyncio.Transport, transport)

    def send(self, packed: bytes, replies: int = 1) -> list[asyncio.Future[Reply]]:
        """Writes commands that are packed already; one future for each reply. A caller may cancel its future: the reply
        is still taken off the line in its turn. Raises RegistryUnavailable on a closed connection."""
        futures = [self._loop.create_future() for _ in range(replies)]
        self.ask(packed, *(partial(_settle, future) for future in futures))
        return futures

    def ask(self, packed: bytes, *receivers: OnReply) -> None:
        """As `send`; each reply, or the error in its place, goes to its receiver the moment it comes."""
        if self.closed.done() or self._transport is None:
            raise RegistryUnavailable(f"the connection to Redis is closed: {self.closed.result()}")
        deadline = self._loop.time() + self._timeout_s
        for receiver in receivers:
            self._waiting.append((receiver, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadline)
        self._transport.write(packed)

    def send_unanswered(self, packed: bytes) -> None:
        """Writes a command whose reply goes to `on_push`, as all replies of a subscriber do."""
        if self._transport is not None and not self.closed.done():
            self._transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                if self._on_push is not None:
                    self._on_push(reply)
                elif not self._waiting:
                    return self.drop("it sent a reply that nobody asked for")
                else:
                    receiver, _ = self._waiting.popleft()
                    receiver(reply)
        except hiredis.ProtocolError as error:
            self.drop(f"it does not speak Redis: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(str(exc) if exc else "it closed the connection")
        self._lost.set()

    async def end(self, why: str) -> None:
        """As `drop`, and returns once the socket is closed."""
        self.drop(why)
        if self._transport is not None:
            await self._lost.wait()

    def drop(self, why: str) -> None:
        """Ends the connection; what still waits for a reply fails. Harmless when said twice."""
        if self.closed.done():
            return
        self.closed.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for receiver, _ in waiting:
            receiver(RegistryUnavailable(f"Redis did not answer: {why}"))

    def _check_deadline(self) -> None:
        # Replies come in order, so the oldest request is the first to be late: one timer serves all of them.
        self._timer = None
        if not self._waiting:
            return
        deadline = self._waiting[0][1]
        if deadline > self._loop.time():
            self._timer = self._loop.call_at(deadline, self._check_deadline)
            return
        # A late reply would be taken for that of a later request, so the connection cannot be kept.
        self.drop(f"no reply within {self._timeout_s:g} s")


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if future.done():
        return  # its caller was cancelled
    if isinstance(reply, RegistryUnavailable):
        future.set_exception(reply)
    else:
        future.set_result(reply)


async def open_connection(
    address: RedisAddress, timeout_s: float, on_push: Callable[[Reply], None] | None = None
) -> RedisProtocol:
    """Connects, authenticates and selects the database within `timeout_s`. Raises RegistryUnavailable, or RegistryError
    where Redis refuses."""
    loop = asyncio.get_running_loop()
    greeted: asyncio.Queue[Reply] = asyncio.Queue()
    # A subscriber's replies all go to one place: to this queue until the greeting is over.
    sink = greeted.put_nowait if on_push is not None else None
    protocol: RedisProtocol | None = None
    try:
        async with asyncio.timeout(timeout_s):
            protocol = await _connect(loop, address, lambda: RedisProtocol(timeout_s, sink))
            for command in address.greeting():
                packed = pack(*command)
                if on_push is not None:
                    protocol.send_unanswered(packed)
                    reply = await greeted.get()
                else:
                    reply = await protocol.send(packed)[0]
                if isinstance(reply, hiredis.ReplyError):
                    raise RegistryError(f"Redis at {address} refused {command[0]}: {reply}")
    except BaseException as error:
        if protocol is not None:
            await protocol.end("the greeting failed")
        if isinstance(error, TimeoutError):
            raise RegistryUnavailable(f"Redis at {address} did not answer within {timeout_s:g} s") from None
        if isinstance(error, OSError):
            raise RegistryUnavailable(f"Redis at {address} cannot be reached: {error}") from None
        raise
    if on_push is not None:
        protocol._on_push = on_push
    return protocol


async def _connect(
    loop: asyncio.AbstractEventLoop, address: RedisAddress, factory: Callable[[], RedisProtocol]
) -> RedisProtocol:
    if address.unix_path:
        return (await loop.create_unix_connection(factory, address.unix_path))[1]
    context = ssl.create_default_context() if address.tls else None
    transport, protocol = await loop.create_connection(factory, address.host, address.port, ssl=context)
    # A peer that vanished without a word shall be noticed also where only we listen.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return protocol


class RedisClient:
    """A connection that reconnects by itself. Needs a running loop from its making on."""

    def __init__(self, address: RedisAddress, *, timeout_s: float, scripts: Iterable[Script] = ()) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._scripts = tuple(scripts)
        self._protocol: RedisProtocol | None = None
        self.reason = "not connected yet"
        """Why there is no connection, while there is none."""
        self._tried = asyncio.Event()
        self._up = asyncio.Event()
        self._on_connect: list[Callable[[], None]] = []
        self._task = asyncio.create_task(self._keep_connected(), name="redis connection")

    def __repr__(self) -> str:
        state = "connected" if self._protocol is not None else f"away ({self.reason})"
        return f"<RedisClient {self._address} {state}>"

    @property
    def connected(self) -> bool:
        """Whether commands can be sent now."""
        return self._protocol is not None

    def on_connect(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each later (re)connect."""
        self._on_connect.append(callback)

    async def wait_connected(self) -> None:
        """Returns once there is a connection; bounded by nothing but the caller."""
        await self._up.wait()

    async def call(self, *arguments: Argument) -> Reply:
        """One command. Raises RegistryUnavailable (also after `timeout_s`) or RegistryError."""
        protocol = self._protocol or await self._first_connection()
        return checked(await protocol.send(pack(*arguments))[0])

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several commands in one write; all replies in order. Raises as `call` does, for the first that fails."""
        packed = [pack(*command) for command in commands]
        if not packed:
            return []
        protocol = self._protocol or await self._first_connection()
        # Errors of the connection come to all at once, so gathering leaves none unseen.
        replies = await asyncio.gather(*protocol.send(b"".join(packed), len(packed)), return_exceptions=True)
        return [checked(reply) for reply in replies]

    async def run(self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Reply:
        """Runs a script by its digest; one that Redis has forgotten is sent anew. Raises as `call` does."""
        protocol = self._protocol or await self._first_connection()
        reply = await protocol.send(pack("EVALSHA", script.digest, len(keys), *keys, *arguments))[0]
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            reply = await protocol.send(pack("EVAL", script.source, len(keys), *keys, *arguments))[0]
        return checked(reply)

    def ask(self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...], on_reply: OnReply) -> bool:
        """Runs a script by its digest where there is a connection; False where there is none, and then sends nothing.
        `on_reply` gets what came of it, also that Redis has forgotten the script."""
        protocol = self._protocol
        if protocol is None or protocol.closed.done():
            return False
        protocol.ask(pack("EVALSHA", script.digest, len(keys), *keys, *arguments), on_reply)
        return True

    async def close(self) -> None:
        """Ends the connection and the background task. Idempotent."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            await protocol.end("closed by us")
        self.reason = "the client is closed"
        self._tried.set()

    async def _first_connection(self) -> RedisProtocol:
        # Only the very first attempt is waited for. Later, while Redis is away, callers shall know at once.
        if not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._tried.wait()
        if self._protocol is None:
            raise RegistryUnavailable(f"Redis at {self._address} is away: {self.reason}")
        return self._protocol

    async def _keep_connected(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                protocol = await self._connect()
            except GridError as error:
                self.reason = error.sentence
                self._tried.set()
                await asyncio.sleep(backoff_s)  # nothing tells when a server comes back, so it has to be tried
                backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            self._protocol = protocol
            self._tried.set()
            self._up.set()
            for callback in self._on_connect:
                callback()
            self.reason = await asyncio.shield(protocol.closed)
            self._protocol = None
            self._up.clear()
            await protocol.end(self.reason)
            log.warning("redis_connection_lost", redis=str(self._address), reason=self.reason)

    async def _connect(self) -> RedisProtocol:
        protocol = await open_connection(self._address, self._timeout_s)
        loads = [pack("SCRIPT", "LOAD", script.source) for script in self._scripts]
        try:
            for reply in await asyncio.gather(*protocol.send(b"".join(loads), len(loads)), return_exceptions=True):
                checked(reply)  # refused for example while it loads its data
        except BaseException:
            await protocol.end("it did not take the scripts")
            raise
        return protocol
