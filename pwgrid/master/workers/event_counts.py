"""Counts what has happened in one pool since the master started, for the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pwgrid.common.histogram import CANARY_BOUNDS_S, DRAIN_BOUNDS_S, LAUNCH_BOUNDS_S, Histogram
from pwgrid.master.policy.end_reason_classes import DEATHS, NO_SIGNAL, OTHER, RECYCLES, death_class, recycle_class


class EventCounts:
    """Histograms in seconds: `launch` is the time from the fork until a worker is warm, `drain` how long the sessions
    of a drain went on, `canary` the time to the first page of an idle browser."""

    def __init__(self) -> None:
        self.starts = 0
        self.launch = Histogram(LAUNCH_BOUNDS_S)
        self.drain = Histogram(DRAIN_BOUNDS_S)
        self.canary = Histogram(CANARY_BOUNDS_S)
        self.canary_failures = 0
        # All begin at 0: Prometheus sees no increase in a series that begins with its first event.
        self._recycles = Counter(dict.fromkeys(RECYCLES.values(), 0))
        self._deaths = Counter({(reason, NO_SIGNAL): 0 for reason in (*DEATHS, OTHER)})

    def drains(self, reason: str) -> None:
        """A worker begins to drain; counted if that is a recycle."""
        if (found := recycle_class(reason)) is not None:
            self._recycles[found] += 1

    def died(self, reason: str) -> None:
        self._deaths[death_class(reason)] += 1

    def tried(self, seconds: float, *, is_well: bool) -> None:
        """An idle browser was tried (canary), and took `seconds`."""
        if is_well:
            self.canary.observe(seconds)
        else:
            self.canary_failures += 1

    def as_data(self) -> dict[str, Any]:
        return {
            "starts": self.starts,
            "recycles": dict(self._recycles),
            "deaths": [[*death, count] for death, count in self._deaths.items()],
            "launch": self.launch.as_data(),
            "drain": self.drain.as_data(),
            "canary": self.canary.as_data(),
            "canaryFailures": self.canary_failures,
        }
