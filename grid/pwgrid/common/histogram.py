"""A histogram that can be sent over a control link, which prometheus_client's own cannot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LAUNCH_BOUNDS_S: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0)
DRAIN_BOUNDS_S: Final = (0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0)
CANARY_BOUNDS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds for what the master counts and the proxy shows."""


class Histogram:
    """`counts[i]` counts figures above the bound before `bounds[i]`, and up to it; the last place, those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} figures, {self.total:g} in total>"

    def observe(self, figure: float) -> None:
        self.counts[bisect_left(self.bounds, figure)] += 1
        self.total += figure

    def as_data(self) -> list[float]:
        """`total` and `counts` without trailing zeros, for `read`: all pools have to fit into one frame."""
        last = max((place for place, count in enumerate(self.counts) if count), default=-1)
        return [round(self.total, 3), *self.counts[: last + 1]]

    @classmethod
    def read(cls, bounds: tuple[float, ...], data: Sequence[float]) -> Histogram:
        """The histogram that `as_data` made `data` of, with the same bounds."""
        found = cls(bounds)
        found.total, *counts = data
        for place, count in enumerate(counts[: len(found.counts)]):
            found.counts[place] = int(count)
        return found
