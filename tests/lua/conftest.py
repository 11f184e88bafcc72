"""A Redis for the scripts, and a grid of made-up workers on it; once without and once with a key prefix."""

from collections.abc import Iterator

import pytest

from tests.lua.model import LuaGrid
from tests.support.redis import RedisServer, own_redis, redis, shared_redis

__all__ = ["own_redis", "redis", "shared_redis"]


@pytest.fixture(params=["", "{pwgrid}:"], ids=["no prefix", "prefix"])
def grid(redis: RedisServer, request: pytest.FixtureRequest) -> Iterator[LuaGrid]:
    grid = LuaGrid(redis.client(), request.param)
    yield grid
    stray = [key for key in grid.client.scan_iter() if not key.startswith(request.param)]
    grid.client.close()
    assert stray == []
