"""A Redis for the scripts, and a grid of made-up workers on it; once without and once with a key prefix."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from pwgrid.registry.rights import KEYS
from tests.lua.model import LuaGrid
from tests.support.redis import RedisServer, own_redis, redis, shared_redis

__all__ = ["own_redis", "redis", "shared_redis"]


@pytest.fixture(params=["", "{pwgrid}:"], ids=["no prefix", "prefix"])
def grid(redis: RedisServer, request: pytest.FixtureRequest) -> Iterator[LuaGrid]:
    grid = LuaGrid(redis.client(), request.param)
    yield grid
    # Those that the prefix begins, and the ACL line of docs/redis.md allows.
    allowed = [f"{request.param}{key}" for key in KEYS]
    stray = [key for key in grid.client.scan_iter() if not any(fnmatchcase(key, each) for each in allowed)]
    grid.client.close()
    assert stray == []
