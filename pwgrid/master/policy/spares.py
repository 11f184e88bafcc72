"""Foresees how many workers of a pool the next sessions can use up, so that their replacements are warm in time.

A replacement takes a start time to get warm. So it is not enough to count how many sessions a worker has left: what
matters is whether those that begin within a start time can use it up, at the rate that the pool has. As many workers as
they can use up there should be as spares: warm, and chosen by no selection until one of them is let serve, in the very
step that uses another worker up.

A spare does not serve before that: the selection would give it the next sessions and keep all others near their end, so
that more workers would leave no more sessions in the pool (docs/decisions.md). Measures nothing; times are monotonic
seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 1.0
HALF_LIFE_S: Final = 300.0
QUIET_S: Final = 30.0
STARTS: Final = 5
UNKNOWN_START_S: Final = 2.0
_NO_SESSION: Final = 0.1  # fewer expected sessions count as none: a rate that is only halved never gets to 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a pool. `rate` in sessions per second; `start_s` is how long a browser takes to get warm."""

    rate: float
    start_s: float
    max_lifetime: int
    slots: int

    @property
    def sessions(self) -> int:
        """How many may begin before a browser that is started now is warm.

        Those that the rate foresees, and those that may come at once at any time: as many as a worker has slots, but at
        most a fifth of its lifetime, else most workers of a pool with short lifetimes would be spares.
        """
        return math.ceil(self.rate * self.start_s - _NO_SESSION) + max(1, min(self.slots, self.max_lifetime // 5))


def spares(outlook: Outlook, lifetimes: Iterable[int]) -> int:
    """How many spares there should be: as many as the workers that the next sessions can use up at the most.

    `lifetimes` are the sessions so far of all workers that are not on their way out: those that serve, those that
    start, and the spares themselves.
    """
    sessions, number = outlook.sessions, 0
    for lifetime in sorted(lifetimes, reverse=True):
        sessions -= max(0, outlook.max_lifetime - lifetime)
        if sessions < 0:
            break
        number += 1
    return number


def expected_rate(workers: int, slots: int, max_lifetime: int) -> float:
    """Sessions per second in a pool of which nothing is known yet: one a second in each slot, but at most as many as
    use up half of each worker's lifetime.

    With long lives that asks for no spare, with short ones for the few that the first seconds of a load need.
    """
    return workers * min(slots, max_lifetime / 2)


@dataclass(slots=True)
class SessionRate:
    """Sessions that begin in a pool per second: those of its busiest second, halved for every five minutes since then.

    Before anything is known it is `expected`, counted from `last_at` on. A replacement that comes too early costs
    memory, one that comes too late capacity.
    """

    last_at: float
    """When a session was last seen to begin; in the beginning, when counting began."""
    expected: float = 0.0
    _peak: float = field(init=False)
    _peak_at: float = field(init=False)
    _recent: deque[tuple[float, float, int]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._peak, self._peak_at = self.expected, self.last_at

    def count(self, sessions: int, since: float, now: float) -> None:
        """Take in that so many sessions of one worker have begun after `since`, when it was last heard of."""
        self._recent.append((since, now, sessions))
        while self._recent[0][1] <= now - WINDOW_S:
            self._recent.popleft()
        self.last_at = now
        seen = sum(_within_window(begin, end, now) * number for begin, end, number in self._recent) / WINDOW_S
        if seen >= self.per_s(now):
            self._peak, self._peak_at = seen, now

    def per_s(self, now: float) -> float:
        """The rate to expect."""
        return self._peak * math.exp2((self._peak_at - now) / HALF_LIFE_S)

    def is_quiet(self, now: float) -> bool:
        """Whether no session has begun for so long that spares are of no use."""
        return now - self.last_at >= QUIET_S


def _within_window(begin: float, end: float, now: float) -> float:
    """Which part of the time from `begin` to `end` is in the window that ends `now`."""
    window = now - WINDOW_S
    return 1.0 if begin >= window or end <= begin else (end - window) / (end - begin)


@dataclass(slots=True)
class StartTimes:
    """How long the last browsers of a pool took from the fork of their worker until they were warm, in seconds."""

    _last: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS))

    def took(self, seconds: float) -> None:
        """Take in one."""
        self._last.append(seconds)

    @property
    def longest_s(self) -> float:
        """What the next one must be expected to take."""
        return max(self._last, default=UNKNOWN_START_S)
