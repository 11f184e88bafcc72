"""Foresees how many workers of a pool the next sessions can use up, so that their replacements are there in time.

A pool has workers that serve and, when lives are short beside the rate of sessions, spares: warm ones that no selection
knows yet. There are two leads, both in sessions, from the measured rate of the pool:

- what may begin until a spare that is told to serve does so: they must use up no worker that is not replaced;
- what may begin until a browser that is started now is warm: they must use up no more workers than there are spares.

Spares wait outside of the selection. It gives new workers the next sessions, and keeps old ones a few sessions before
their end: the more workers serve, the fewer sessions are left in all of them together. Measures nothing; times are
monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 1.0
HALF_LIFE_S: Final = 300.0
QUIET_S: Final = 30.0
STARTS: Final = 5
UNKNOWN_START_S: Final = 2.0
SERVE_S: Final = 0.1
"""What a spare needs to serve on a busy host: the count that shows the need, the command, one write to Redis."""


@dataclass(frozen=True, slots=True)
class Life:
    """One worker that serves or will: its sessions so far, whether it is a spare, whether another has its place."""

    worker_id: str
    lifetime: int
    spare: bool = False
    leaves_soon: bool = False


@dataclass(frozen=True, slots=True)
class Foresight:
    """Who counts no more from now on, because another one must serve when it goes; how many spares there should be."""

    leaving: tuple[str, ...] = ()
    spares: int = 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a pool. `rate` in sessions per second; `start_s` is how long a browser takes to get warm."""

    rate: float
    start_s: float
    max_lifetime: int
    slots: int

    def sessions_within(self, seconds: float) -> int:
        """How many sessions may begin in that time.

        Those of the rate, and those that may come at once at any time: as many as a worker has slots, but not more than
        a fifth of a life, else most workers of a pool with short lives would be spares.
        """
        return math.ceil(self.rate * seconds) + max(1, min(self.slots, self.max_lifetime // 5))


def foresee(outlook: Outlook, lives: Collection[Life]) -> Foresight:
    """What it takes to have as many workers as wanted all the time. `lives` are all that are not on their way out."""
    serving = [life for life in lives if not life.spare]
    soon = used_up_by(outlook.sessions_within(SERVE_S), serving, outlook.max_lifetime)
    marked = sum(life.leaves_soon for life in serving)
    others = sorted((life for life in serving if not life.leaves_soon), key=_most_used)
    leaving = tuple(life.worker_id for life in others[: max(0, soon - marked)])
    later = used_up_by(outlook.sessions_within(SERVE_S + outlook.start_s), lives, outlook.max_lifetime)
    return Foresight(leaving, max(0, later - marked - len(leaving)))


def used_up_by(sessions: int, lives: Iterable[Life], max_lifetime: int) -> int:
    """How many workers so many sessions can use up at the most, whichever way they are selected."""
    number = 0
    for life in sorted(lives, key=_most_used):
        sessions -= max(0, max_lifetime - life.lifetime)
        if sessions < 0:
            break
        number += 1
    return number


def _most_used(life: Life) -> int:
    return -life.lifetime


@dataclass(slots=True)
class SessionRate:
    """Sessions that begin in a pool per second: those of its busiest second, halved for every five minutes since then.

    A replacement that comes too early costs memory, one that comes too late capacity.
    """

    last_at: float
    """When a session was last seen to begin; in the beginning, when counting began."""
    _peak: float = 0.0
    _peak_at: float = 0.0
    _recent: deque[tuple[float, float, int]] = field(default_factory=deque)

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
        """What must be reckoned with."""
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
