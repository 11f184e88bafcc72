"""Counts figures by upper bounds, in a form that goes over a link; prometheus_client's own cannot be sent. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any


class Histogram:
    """`counts` has one place for each bound (itself included) and one for what is above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} figures, {self.total:g} in total>"

    def observe(self, figure: float) -> None:
        """Count one figure."""
        self.counts[bisect_left(self.bounds, figure)] += 1
        self.total += figure

    def as_data(self) -> dict[str, Any]:
        """What `read` takes."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "total": round(self.total, 6)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Histogram:
        """The histogram that `as_data` has told of."""
        found = cls(tuple(map(float, data["bounds"])))
        found.counts = [int(count) for count in data["counts"]]
        found.total = float(data["total"])
        return found
