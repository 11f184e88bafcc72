"""Keeps samples of the last hour for the dashboard's curves, also while nobody looks."""

from __future__ import annotations

from collections import deque
from typing import Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

PERIOD_S: Final = 10.0
HOUR_S: Final = 3600.0
MOST: Final = round(HOUR_S / PERIOD_S)

Sample = tuple[float, int | None, int, int, int, float, int | None]
"""Time (Unix seconds); live sessions; connects and refusals since the previous sample; waiting clients; the longest
wait for a slot since then, in seconds; memory of all workers in MiB. None means unknown."""

_SAMPLE: Final = TypeAdapter[Sample](Sample, config=ConfigDict(allow_inf_nan=False))


class History:
    """The latest 360 samples, about 60 KiB."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Sample]] = deque(maxlen=MOST)
        self.last = 0
        """The number of the newest sample, counted from 1."""

    def add(self, sample: Sample) -> None:
        self.last += 1
        self._samples.append((self.last, sample))

    def since(self, number: int) -> list[Sample]:
        """Returns the kept samples after this number, the newest last."""
        return [sample for of_sample, sample in self._samples if of_sample > number]


def text_of(sample: Sample) -> str:
    """Returns the sample as Redis keeps it."""
    return _SAMPLE.dump_json(sample).decode()


def read(text: str, now: float) -> Sample | None:
    """Parses a sample from Redis. Returns None if it is older than an hour, or malformed."""
    try:
        sample = _SAMPLE.validate_json(text)
    except ValidationError:
        return None
    return sample if now - HOUR_S < sample[0] <= now else None
