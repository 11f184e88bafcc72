"""The last hour of the grid in samples, for curves. Always kept, so that whoever looks sees what was before."""

from __future__ import annotations

from collections import deque
from typing import Final

PERIOD_S: Final = 10.0
HOUR_S: Final = 3600.0

Sample = tuple[float, int | None, int, int, int, float, int | None]
"""When (Unix seconds); live sessions; connects and refusals since the sample before; waiting clients; the longest wait
for a slot since then, in seconds; memory of all workers in MiB. None is not known."""


class History:
    """360 samples: some 60 KiB."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=round(HOUR_S / PERIOD_S))
        self.last = 0
        """How many there have been."""

    def add(self, sample: Sample) -> None:
        """The newest one."""
        self._samples.append(sample)
        self.last += 1

    def since(self, number: int) -> list[Sample]:
        """Those after the first `number`, the newest last, as far as they are kept."""
        count = min(self.last - number, len(self._samples))
        return list(self._samples)[len(self._samples) - count :] if count > 0 else []
