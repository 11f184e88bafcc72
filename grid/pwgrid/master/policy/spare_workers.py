"""Decides how many spares a pool needs, so that a used-up worker always has a warm replacement. Times are monotonic
seconds.

A worker is used up by the last session of its lifetime. A replacement takes a start time until it is warm, and sessions
go on to begin meanwhile, at the pool's rate. So a pool needs one spare for each worker that these sessions can use up.

A spare is warm, but no selection chooses it. It begins to serve in the very step of the selection that uses another
worker up. It must not serve earlier: a selection gives the next sessions to the newest worker, and keeps the others
near the end of their lifetimes. So with spares that serve, the pool would have more workers, but no more sessions
before all of them are used up (docs/decisions.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

WINDOW_S: Final = 1.0
HALF_LIFE_S: Final = 300.0
QUIET_S: Final = 30.0
STARTS: Final = 5
"""The next browser is expected to take as long to get warm as the slowest of so many before it."""
UNKNOWN_START_S: Final = 2.0
_NO_SESSION: Final = 0.1  # fewer expected sessions count as none: a rate that is only halved never gets to 0


def sessions_to_come(rate: float, start_s: float, max_lifetime: int, slots: int) -> int:
    """How many sessions may begin before a browser that is started now is warm: that takes `start_s`.

    Those that the rate (sessions per second) foresees, and a burst that may come at any time: as many as a worker has
    slots, but at most a fifth of its lifetime, else most workers of a pool with short lifetimes would be spares.
    """
    return math.ceil(rate * start_s - _NO_SESSION) + max(1, min(slots, max_lifetime // 5))


def spares(sessions: int, max_lifetime: int, lifetimes: Iterable[int]) -> int:
    """How many spares there should be: as many as the workers that the next `sessions` can use up at the most.

    `lifetimes` are the sessions so far of all workers that do not drain: those that serve, those that start, and the
    spares themselves.
    """
    number = 0
    for lifetime in sorted(lifetimes, reverse=True):
        sessions -= max(0, max_lifetime - lifetime)
        if sessions < 0:
            break
        number += 1
    return number


def expected_rate(workers: int, slots: int, max_lifetime: int) -> float:
    """Sessions per second to expect of a pool without any yet: one in each slot, but at most half of each worker's
    lifetime.

    With long lifetimes that asks for no spare, with short ones for the few that the first seconds of a load need.
    """
    return workers * min(slots, max_lifetime / 2)


class SessionRate:
    """Sessions that begin in a pool per second: those of its busiest second, halved for every five minutes since then.

    Until sessions begin it is `expected`, halved since `last_at` in the same way. It errs to the high side: a spare too
    many costs memory, one too few costs capacity.
    """

    def __init__(self, last_at: float, expected: float = 0.0) -> None:
        self.last_at = last_at
        """When a session was last seen to begin; in the beginning, when counting began."""
        self._peak, self._peak_at = expected, last_at
        self._recent: deque[tuple[float, float, int]] = deque()

    def count(self, sessions: int, since: float, now: float) -> None:
        """Count sessions of one worker that began after `since`, the time of its report before."""
        self._recent.append((since, now, sessions))
        while self._recent[0][1] <= now - WINDOW_S:
            self._recent.popleft()
        self.last_at = now
        seen = sum(_within_window(begin, end, now) * number for begin, end, number in self._recent) / WINDOW_S
        if seen >= self.per_s(now):
            self._peak, self._peak_at = seen, now

    def per_s(self, now: float) -> float:
        return self._peak * math.exp2((self._peak_at - now) / HALF_LIFE_S)

    def is_quiet(self, now: float) -> bool:
        """Whether no session has begun for QUIET_S, so that spares are of no use."""
        return now - self.last_at >= QUIET_S


def _within_window(begin: float, end: float, now: float) -> float:
    """Which part (0 to 1) of the time from `begin` to `end` is in the window that ends `now`."""
    window = now - WINDOW_S
    return 1.0 if begin >= window or end <= begin else (end - window) / (end - begin)
