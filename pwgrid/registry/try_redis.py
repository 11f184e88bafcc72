"""Tries a Redis once, in a process of its own (`python -m pwgrid.registry.try_redis`): the master loads no redis-py.

stdin: JSON with url and timeout_s. Exits 0 if it answers, 2 if it refuses our login, else 1; stdout: why.
"""

import sys

import orjson
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

from pwgrid.registry.open_redis import open_blocking


def main() -> int:
    given = orjson.loads(sys.stdin.buffer.read())
    try:
        with open_blocking(given["url"], timeout_s=given["timeout_s"]) as client:
            client.ping()
    except (RedisError, OSError) as error:
        print(str(error).rstrip(".") or type(error).__name__)  # noqa: T201
        return 2 if isinstance(error, AuthenticationError | AuthorizationError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
