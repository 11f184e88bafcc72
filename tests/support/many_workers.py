"""Redis with more workers than any test starts, and how much of it is read."""

from tests.support.redis import RedisServer


def many_workers(redis: RedisServer, prefix: str, number: int) -> list[str]:
    """So many workers as another program may register them; returns their fields."""
    fields = [f"chromium:w{each:04}" for each in range(number)]
    with redis.client() as client, client.pipeline() as pipeline:
        for field in fields:
            pipeline.hset(f"{prefix}cluster:active_connections", field, 0)
            pipeline.hset(f"{prefix}worker:{field}", mapping={"status": "available", "slots": 3})
        pipeline.execute()
    return fields


def hashes_read(redis: RedisServer) -> int:
    """How many whole hashes Redis has given until now."""
    with redis.client() as client:
        stats = client.info("commandstats")
    return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])
