"""Decides whether a worker is to be replaced, or killed, for its memory, age or launches. When it is replaced,
worker_plan.py decides.

The RSS of a worker's tree is read at each sample. What the tree really takes (PSS, USS) costs the kernel 15 to 30 µs
for each MiB, so it is read only every twelfth sample, at least each minute, and at once when it could be over a limit,
or when RSS is clearly above that of all readings. Between readings RSS bounds it: PSS and USS are never above RSS, and
grow by no more than RSS does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.types import Isolation
from pwgrid.settings.model import Settings

SAMPLES_OVER: Final = 2
"""So many samples in a row over the soft limit recycle a worker: a single one may be a page that is about to close."""

RENEWED_AFTER_SAMPLES: Final = 12
RENEWED_AFTER_S: Final = 60.0
"""A reading is renewed after so many samples or seconds, also without growth, whichever comes first. By default both
are a minute."""

NEW_HIGH_FACTOR: Final = 1.1
MEMORY_LIMIT: Final = Reason(WorkerEnd.MEMORY_LIMIT)


def renewed_after(interval_s: float) -> int:
    """Each worker's memory is read at least once in so many samples, which are `interval_s` apart."""
    return max(1, min(RENEWED_AFTER_SAMPLES, int(RENEWED_AFTER_S // interval_s)))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one worker's tree. `memory_mib` is the last reading of the metric; None before the first."""

    rss_mib: int | None = None
    memory_mib: int | None = None
    lowest_rss_mib: int = 0
    """Lowest RSS since the last reading; 0 forces a reading at the next sample over the limit."""
    samples_since: int = 0
    samples_over: int = 0
    """Consecutive samples over the soft limit."""
    highest_rss_mib: int = 0
    """The highest RSS at any reading."""

    def is_new_high(self, rss_mib: int) -> bool:
        """Whether RSS is so far above that of all readings that only another reading tells the highest figure."""
        return 0 < self.highest_rss_mib * NEW_HIGH_FACTOR < rss_mib

    def needs_reading(self, settings: Settings, rss_mib: int) -> bool:
        """Whether the tree may be over a limit, and only the metric can tell."""
        limit = _lower_limit_mib(settings)
        if not limit or rss_mib <= limit:
            return False
        if self.memory_mib is None:
            return True
        return rss_mib - min(self.lowest_rss_mib, rss_mib) > limit - self.memory_mib

    def is_due(self, samples: int) -> bool:
        """Whether this sample has to renew the reading, so that at least one in `samples` does."""
        return self.memory_mib is not None and self.samples_since >= samples - 1

    def sampled(self, settings: Settings, rss_mib: int, memory_mib: int | None) -> Footprint:
        """The footprint after a sample; `memory_mib` is None when the metric was not read."""
        if memory_mib is not None:
            over = settings.max_worker_memory_mib > 0 and memory_mib > settings.max_worker_memory_mib
            highest_mib = max(self.highest_rss_mib, rss_mib)
            return Footprint(rss_mib, memory_mib, rss_mib, 0, self.samples_over + 1 if over else 0, highest_mib)
        return replace(
            self,
            rss_mib=rss_mib,
            memory_mib=None if self.memory_mib is None else min(self.memory_mib, rss_mib),
            lowest_rss_mib=min(self.lowest_rss_mib, rss_mib) if rss_mib > _lower_limit_mib(settings) else 0,
            samples_since=self.samples_since + 1,
            samples_over=0,
        )


def _lower_limit_mib(settings: Settings) -> int:
    """0 without limits. Only a worker whose RSS is above it may be over a limit."""
    return settings.max_worker_memory_mib or settings.max_worker_memory_hard_mib


def recycle_reason(
    settings: Settings, started_at: float, memory: Footprint, launches: int, now: float
) -> Reason[WorkerEnd] | None:
    """Why a worker of a pool with these settings should be replaced, or None. `started_at` and `now` are monotonic
    seconds, `launches` the own browsers that its lifetime does not count. The plan replaces such workers one at a
    time."""
    if memory.samples_over >= SAMPLES_OVER:
        return Reason(WorkerEnd.MEMORY, f"{memory.memory_mib} MiB, the limit is {settings.max_worker_memory_mib} MiB")
    if now >= expires_at(settings, started_at):
        return Reason(WorkerEnd.AGE, f"older than {settings.max_worker_age:g} s")
    if launches >= most_launches(settings):
        return Reason(WorkerEnd.LAUNCHES, f"{launches} own browsers, the limit is {most_launches(settings)}")
    return None


def most_launches(settings: Settings) -> float:
    """How many own browsers a worker launches that its lifetime does not count, or infinity. Where all sessions have
    their own the lifetime is such a number itself: only those are not in it that come with one and the same lease."""
    if settings.isolation is Isolation.BROWSER:
        return settings.max_lifetime_sessions
    return settings.max_launches or math.inf


def expires_at(settings: Settings, started_at: float) -> float:
    """When a worker is too old (monotonic seconds), or infinity."""
    return started_at + settings.max_worker_age if settings.max_worker_age > 0 else math.inf


def over_hard(settings: Settings, memory: Footprint) -> bool:
    """Whether the worker must be killed now."""
    return 0 < settings.max_worker_memory_hard_mib < (memory.memory_mib or 0)
