"""Opens a connection again whenever it is lost, with pauses that grow until one connection lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from redis.backoff import EqualJitterBackoff

HEALTHY_S: Final = 5.0
"""A connection that lasts this long resets the pauses. A shorter one does not: else a server that accepts and breaks
each connection would be tried, and logged, a thousand times a second."""

_BACKOFF: Final = EqualJitterBackoff(cap=1.0, base=0.02)
_MOST_FAILURES: Final = 10  # 2 ** failures overflows a float in a long outage


async def keep_connected(live: Callable[[], Awaitable[None]]) -> NoReturn:
    """Calls `live` again and again; it opens a connection and returns when that is lost, or cannot be opened."""
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        began = loop.time()
        await live()
        failures = 0 if loop.time() - began >= HEALTHY_S else min(failures + 1, _MOST_FAILURES)
        await asyncio.sleep(_BACKOFF.compute(failures))  # nothing tells when a server comes back
