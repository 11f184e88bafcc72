"""The master's state frames, as far as tests say what is in them."""

from typing import Any

_POOL = {
    **{"browserType": "chromium", "wanted": 1, "available": 1, "starting": 0, "spare": 0, "draining": 0},
    **{"drainTimeouts": 0, "slots": 5, "lifetime": 50, "labels": [], "removed": False, "reason": None},
    **{"headless": True, "args": []},
}


def told_of_pool(**said: Any) -> dict[str, Any]:
    """What the master tells of a pool: what is said, and the rest as of a pool with one Chromium worker."""
    return {**_POOL, **said}
