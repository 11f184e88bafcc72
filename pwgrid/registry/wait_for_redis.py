"""Waits for Redis in a process of its own (`python -m pwgrid.registry.wait_for_redis`): the master loads no redis-py.

stdin: JSON with url, attempts, delay_s, timeout_s. stdout: for each failed attempt a line of JSON with attempt, reason,
is_last. Exits 0 once an attempt succeeds.
"""

import json
import sys
import time

from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

from pwgrid.registry.open_redis import open_blocking


def main() -> int:
    given = json.load(sys.stdin)
    for attempt in range(1, given["attempts"] + 1):
        try:
            with open_blocking(given["url"], timeout_s=given["timeout_s"]) as client:
                client.ping()
        except (RedisError, OSError) as error:
            # A Redis that refuses our login will refuse it again.
            is_refused = isinstance(error, AuthenticationError | AuthorizationError)
            is_last = is_refused or attempt == given["attempts"]
            reason = str(error).rstrip(".") or type(error).__name__
            print(json.dumps({"attempt": attempt, "reason": reason, "is_last": is_last}), flush=True)  # noqa: T201
            if is_last:
                return 1
            time.sleep(given["delay_s"])  # noqa: TID251 - no event tells when Redis comes
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
