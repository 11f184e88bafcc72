"""Keeps channels of Redis subscribed, through redis-py's PubSub on a connection of its own. Sends nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from typing import Final

import structlog
from redis.asyncio.client import PubSub

from pwgrid.common.redis_url import shown
from pwgrid.common.tasks import end_task
from pwgrid.registry.open_redis import close_async, open_async
from pwgrid.registry.reconnect import keep_connected

log = structlog.get_logger()

CHECK_INTERVAL_S: Final = 10.0
"""How often a silent connection gets a ping."""


def glob_escape(text: str) -> str:
    """Returns a Redis pattern that matches only this text."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


class Subscription:
    """Subscribes to channels, and to patterns of their names, in the background, and again after each loss. Make it
    while an event loop runs.

    Calls `on_message` with the channel of each message, and `on_subscribed` after each (re)subscription, since messages
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
        self._pool = open_async(url, timeout_s=timeout_s, step_s=timeout_s)
        self._task = asyncio.create_task(keep_connected(self._live), name="redis subscription")

    async def close(self) -> None:
        """Ends the subscription. Idempotent."""
        await end_task(self._task)
        await close_async(self._pool)

    async def _subscribe(self, pubsub: PubSub) -> None:
        if self._channels:
            await pubsub.subscribe(*self._channels)
        if self._patterns:
            await pubsub.psubscribe(*self._patterns)

    async def _live(self) -> None:
        """Subscribes once and listens until that is lost."""
        unconfirmed = {*self._channels, *self._patterns}
        is_asked = True  # something must come within `timeout_s`
        try:
            async with PubSub(self._pool) as pubsub:
                await self._subscribe(pubsub)
                while True:
                    # Not PubSub's `get_message`: it takes 0.13 ms for a message, of which this is 0.03 ms, and clients
                    # that wait for a slot wait for it.
                    within_s = self._timeout_s if is_asked else CHECK_INTERVAL_S
                    said = await pubsub.connection.read_response(
                        timeout=within_s, disconnect_on_error=False, push_request=True
                    )
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
        except Exception as error:  # noqa: BLE001 - also a bug of a library: the next connection may work
            if not unconfirmed:
                log.warning("redis_subscription_lost", redis=self._name, reason=str(error) or repr(error))
