"""Keeps the samples for the dashboard's curves in Redis, so that they outlive the proxy that took them."""

from __future__ import annotations

from typing import Final

from pwgrid.registry.client import RedisClient

KEY: Final = "page:history"


async def keep(client: RedisClient, prefix: str, sample: str, *, at_most: int, ttl_s: float) -> None:
    """Adds the newest sample, and drops the oldest beyond `at_most`."""
    key = prefix + KEY
    await client.pipeline([("RPUSH", key, sample), ("LTRIM", key, -at_most, -1), ("PEXPIRE", key, round(ttl_s * 1000))])


async def read(client: RedisClient, prefix: str) -> list[str]:
    """Returns all samples, the newest last."""
    found: list[str] = await client.call("LRANGE", prefix + KEY, 0, -1)
    return found
