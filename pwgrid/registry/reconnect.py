"""Keeps something connected: opens one connection after the other, with pauses that grow until one has lasted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from redis.backoff import EqualJitterBackoff

HEALTHY_S: Final = 5.0
"""After a connection that has lasted so long the pauses begin anew. One that Redis accepts and breaks does not count:
else a server that does so would be tried, and complained about, a thousand times a second."""

_BACKOFF: Final = EqualJitterBackoff(cap=1.0, base=0.02)
_MOST_FAILURES: Final = 10  # 2 to the power of all the failures of a long outage is too large for a float


async def keep_connected(live: Callable[[], Awaitable[None]]) -> NoReturn:
    """`live` opens a connection and returns when it is lost, or cannot be had."""
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        began = loop.time()
        await live()
        failures = 0 if loop.time() - began >= HEALTHY_S else min(failures + 1, _MOST_FAILURES)
        await asyncio.sleep(_BACKOFF.compute(failures))  # nothing tells when a server comes back
