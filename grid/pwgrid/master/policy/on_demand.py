"""Decides which pools start only when clients want them, and how many workers such a pool should have now.

The first client that waits has the pool get workers, as many as those in line have room in. It gets another one while
clients wait although all of its workers serve, and none once nobody has used it for ON_DEMAND_IDLE. What clients want
comes as a figure, how many wait now, and not as a request: so a master that takes over, or hears it twice, comes to the
same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pwgrid.settings.pools import PoolSettings


def pools_of_versions(configured: Mapping[str, PoolSettings], installed: Collection[str]) -> Iterator[PoolSettings]:
    """Yields a pool for each browser type and each installed Playwright (major.minor) that no configured pool of that
    type has. It is like the pool that a client of that type gets who names none, but has no label keys: a key has one
    pool of each version. Its name, like chromium-1.58, is none that a configuration may have."""
    for browser_type in dict.fromkeys(pool.browser_type for pool in configured.values()):
        there = [pool for pool in configured.values() if pool.browser_type == browser_type]
        models = [pool for pool in there if pool.workers > 0]
        if not models:
            continue
        like = next((pool for pool in models if pool.name == browser_type), models[0])
        for version in installed:
            if version not in {pool.playwright for pool in there}:
                yield replace(
                    like,
                    name=f"{browser_type}-{version}",
                    playwright=version,
                    labels=(),
                    is_short_form=False,
                    on_demand=True,
                    like=like.name,
                )


GROWS_AFTER_S: Final = 0.5
"""Clients that wait so long although all workers serve need another one. Those in line when a worker begins to serve
are gone sooner, if it has slots for them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A pool that starts on demand, as it is now. Times are monotonic seconds.

    `wanted`, `available` and `starting` count workers, `most` is how many it may have, `slots` are those of each.
    `waiting` are clients in its line, `active` sessions and leases, as reported last. `used_at`: when it was last in
    use; `waits_since`: since when clients wait although all of its workers serve. `failure` says why its last worker
    failed, after which none may start before `not_before`. `room`: how many more workers the host has memory for;
    `hindrance`: why none can start: it has no memory, or what they need is missing.
    """

    wanted: int
    available: int
    starting: int
    most: int
    slots: int
    waiting: int
    active: int
    used_at: float
    waits_since: float | None = None
    failure: str | None = None
    not_before: float = -math.inf
    room: int = 0
    hindrance: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.available or self.starting)


@dataclass(frozen=True, slots=True)
class Answer:
    """How many workers the pool should have. `refusal` says why clients that want it cannot have it now; they hear it
    at once. The next answer may differ from `look_at` on (monotonic seconds)."""

    workers: int
    used_at: float
    waits_since: float | None = None
    refusal: str | None = None
    look_at: float = math.inf


def answer(pool: Demand, now: float, idle_s: float) -> Answer:
    """What follows from the demand for one pool."""
    used_at = now if pool.waiting or pool.active else pool.used_at
    if pool.is_empty and pool.failure and now < pool.not_before:
        return Answer(0, used_at, refusal=pool.failure, look_at=pool.not_before)
    if pool.is_empty and pool.waiting and pool.hindrance:
        return Answer(0, used_at, refusal=pool.hindrance)
    if not pool.waiting and (not pool.wanted or now >= used_at + idle_s):
        return Answer(0, used_at)
    waits = pool.waiting > 0 and 0 < pool.wanted <= pool.available
    waits_since = (now if pool.waits_since is None else pool.waits_since) if waits else None
    needed = max(pool.wanted, math.ceil((pool.waiting + pool.active) / pool.slots))
    if waits_since is not None and now >= waits_since + GROWS_AFTER_S:
        needed, waits_since = max(needed, pool.wanted + 1), now
    there = pool.available + pool.starting
    possible = min(pool.most, max(pool.wanted, there + pool.room))
    look_at = used_at + idle_s if waits_since is None else waits_since + GROWS_AFTER_S
    return Answer(min(needed, possible), used_at, waits_since, look_at=look_at)
