"""Decides which of the label keys that pools offer serves a label key that is asked for. Knows no pool.

The first of these that finds one decides: the same key; the longest key that is left when segments are dropped at its
end (down to two); the keys that begin with it; and where wildcards are used, the keys whose segments fit it one by one,
also those that go on behind it. Of several the shortest is taken, and of these the first in the alphabet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pwgrid.common.label_keys import MIN_SEGMENTS, WILDCARD, LabelKey


@dataclass(frozen=True, slots=True)
class Switches:
    """What else than the same key may serve (the settings BORROW_…)."""

    trailing_fallback: bool = True
    prefix_expand: bool = True
    wildcards: bool = False


def match(wanted: LabelKey, offered: Collection[LabelKey], switches: Switches) -> LabelKey | None:
    """The offered key that serves `wanted`; None when there is none."""
    for candidates in _steps(wanted, offered, switches):
        if candidates:
            return min(candidates, key=lambda key: (len(key.segments), key.segments))
    return None


def _steps(wanted: LabelKey, offered: Collection[LabelKey], switches: Switches) -> Iterator[list[LabelKey]]:
    segments = wanted.segments
    yield [key for key in offered if key == wanted]
    if switches.trailing_fallback:
        for length in range(len(segments) - 1, MIN_SEGMENTS - 1, -1):
            yield [key for key in offered if key.segments == segments[:length]]
    if switches.prefix_expand:
        yield [key for key in offered if key.segments[: len(segments)] == segments]
    if switches.wildcards and wanted.has_wildcards:
        fitting = [key for key in offered if _fits(segments, key.segments)]
        yield [key for key in fitting if len(key.segments) == len(segments)]
        if switches.prefix_expand:
            yield fitting


def _fits(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(segments) >= len(pattern) and all(
        asked in (WILDCARD, there) for asked, there in zip(pattern, segments, strict=False)
    )
