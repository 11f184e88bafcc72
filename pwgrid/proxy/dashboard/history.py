"""The last hour of the grid in samples, for curves. Always kept, so that whoever looks sees what was before."""

from __future__ import annotations

from collections import deque
from typing import Final

import orjson

PERIOD_S: Final = 10.0
HOUR_S: Final = 3600.0
MOST: Final = round(HOUR_S / PERIOD_S)

Sample = tuple[float, int | None, int, int, int, float, int | None]
"""When (Unix seconds); live sessions; connects and refusals since the sample before; waiting clients; the longest wait
for a slot since then, in seconds; memory of all workers in MiB. None is not known."""


class History:
    """360 samples: some 60 KiB."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MOST)
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


def text_of(sample: Sample) -> str:
    """As Redis keeps it."""
    return orjson.dumps(sample).decode()


def read(text: str, now: float) -> Sample | None:
    """A sample that Redis has kept; None for one that is older than an hour, and for what is none."""
    try:
        at, live, connects, refusals, waiting, wait_s, memory = orjson.loads(text)
        is_sample = all(isinstance(each, (int, float)) for each in (at, connects, refusals, waiting, wait_s))
        is_sample &= all(each is None or isinstance(each, int) for each in (live, memory))
    except (ValueError, TypeError):
        return None
    return (at, live, connects, refusals, waiting, wait_s, memory) if is_sample and now - HOUR_S < at <= now else None
