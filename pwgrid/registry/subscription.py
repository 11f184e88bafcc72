"""Channels of Redis that stay subscribed, by redis-py's PubSub on a connection of its own. Sends nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from typing import Final

import structlog
from redis.asyncio.client import PubSub

from pwgrid.common.redis_url import shown
from pwgrid.common.waiting import end_task
from pwgrid.registry.connect import close_async, open_async
from pwgrid.registry.reconnect import keep_connected

log = structlog.get_logger()

CHECK_INTERVAL_S: Final = 10.0
"""A silent connection is asked whether it is alive this often."""


def glob_escape(text: str) -> str:
    """A pattern of Redis that this text alone matches."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


class Subscription:
    """Subscribes to channels, and to patterns of their names, in the background, and again after each loss. Needs a
    running loop from its making on.

    `on_message` gets the channel of each message; `on_subscribed` is called after each (re)subscription, since messages
    may have been missed before it.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        channels: Collection[str] = (),
        patterns: Collection[str] = (),
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        self._name = shown(url)
        self._timeout_s = timeout_s
        self._channels = channels
        self._patterns = patterns
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._redis = open_async(url, timeout_s=timeout_s, step_s=timeout_s)
        self._task = asyncio.create_task(keep_connected(self._live), name="redis subscription")

    async def close(self) -> None:
        """Ends the subscription. Idempotent."""
        await end_task(self._task)
        await close_async(self._redis)

    async def _subscribe(self, pubsub: PubSub) -> None:
        if self._channels:
            await pubsub.subscribe(*self._channels)
        if self._patterns:
            await pubsub.psubscribe(*self._patterns)

    async def _live(self) -> None:
        """One subscription, until it is lost."""
        missing = {*self._channels, *self._patterns}
        try:
            async with self._redis.pubsub() as pubsub:
                await self._subscribe(pubsub)
                is_asked = True  # something must come within `timeout_s`
                while True:
                    message = await pubsub.get_message(timeout=self._timeout_s if is_asked else CHECK_INTERVAL_S)
                    if message is None and is_asked:
                        raise TimeoutError(f"no answer within {self._timeout_s:g} s")
                    if message is None:
                        await pubsub.ping()
                    elif message["type"].endswith("message"):
                        self._on_message(message["channel"])
                    elif message["type"].endswith("subscribe"):
                        missing.discard(message["channel"])
                        if not missing:
                            self._on_subscribed()
                    is_asked = message is None or bool(missing)
        except Exception as error:  # noqa: BLE001 - also a bug of a library: the next connection may work
            if not missing:
                log.warning("redis_subscription_lost", redis=self._name, reason=str(error) or repr(error))
