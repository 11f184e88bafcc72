"""Listens to Redis channels on a connection of its own, and subscribes again after each loss. Sends nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import hiredis
import structlog

from pwgrid.common.errors import GridError
from pwgrid.registry.client import BACKOFF_FIRST_S, BACKOFF_LAST_S, RedisProtocol, open_connection
from pwgrid.registry.redis_address import RedisAddress
from pwgrid.registry.resp import Reply, pack

log = structlog.get_logger()

CHECK_INTERVAL_S: Final = 10.0
"""A silent connection is asked whether it is alive this often."""

OnMessage = Callable[[str, str], None]
"""Gets the channel and the message."""


class Subscriber:
    """Channels and patterns that stay subscribed. Needs a running loop from its making on.

    `on_message` is called for each message; `on_subscribed` after each (re)subscription, since messages may have been
    missed before it.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout_s: float,
        on_message: OnMessage,
        on_subscribed: Callable[[], None],
        channels: Iterable[str] = (),
        patterns: Iterable[str] = (),
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._channels = tuple(channels)
        self._patterns = tuple(patterns)
        self._confirmations = 0
        self._answered = asyncio.Event()
        self._protocol: RedisProtocol | None = None
        self._task = asyncio.create_task(self._keep_subscribed(), name="redis subscriber")

    async def close(self) -> None:
        """Ends the subscription. Idempotent."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._protocol is not None:
            await self._protocol.end("closed by us")

    async def _keep_subscribed(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                self._protocol = await open_connection(self._address, self._timeout_s, self._on_push)
            except GridError:
                await asyncio.sleep(backoff_s)  # nothing tells when a server comes back, so it has to be tried
                backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
                continue
            self._subscribe(self._protocol)
            if await self._answers(self._protocol):
                backoff_s = BACKOFF_FIRST_S
            while not await self._ended_within(self._protocol, CHECK_INTERVAL_S):
                self._protocol.send_unanswered(pack("PING"))
                await self._answers(self._protocol)
            await self._protocol.end("it is lost")
            log.warning("redis_subscription_lost", redis=str(self._address), reason=self._protocol.closed.result())

    def _subscribe(self, protocol: RedisProtocol) -> None:
        self._confirmations = len(self._channels) + len(self._patterns)
        self._answered.clear()
        for command, names in (("SUBSCRIBE", self._channels), ("PSUBSCRIBE", self._patterns)):
            if names:
                protocol.send_unanswered(pack(command, *names))

    async def _answers(self, protocol: RedisProtocol) -> bool:
        """Waits for an answer; drops the connection when there is none in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._answered.wait()
        except TimeoutError:
            protocol.drop(f"no answer within {self._timeout_s:g} s")
            return False
        finally:
            self._answered.clear()
        return True

    @staticmethod
    async def _ended_within(protocol: RedisProtocol, period_s: float) -> bool:
        await asyncio.wait([protocol.closed], timeout=period_s)
        return protocol.closed.done()

    def _on_push(self, reply: Reply) -> None:
        if isinstance(reply, hiredis.ReplyError):
            assert self._protocol is not None
            self._protocol.drop(f"Redis refused the subscription: {reply}")
            return
        kind = reply[0] if isinstance(reply, list) else reply
        if kind == "message":
            self._on_message(reply[1], reply[2])
        elif kind == "pmessage":
            self._on_message(reply[2], reply[3])
        elif kind in ("subscribe", "psubscribe"):
            self._confirmations -= 1
            if self._confirmations == 0:
                self._answered.set()
                self._on_subscribed()
        elif kind == "pong":
            self._answered.set()
