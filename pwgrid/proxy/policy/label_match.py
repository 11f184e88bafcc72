"""Decides which of the pools' label keys serves a label key that a client asks for. Knows no pool.

Tries in this order: the same key; the key without its last segment, its last two, and so on (two segments stay); longer
keys that begin with it; with wildcards, keys of the same length whose segments match, then also longer ones. Of several
keys the shortest is taken, and of these the first in the alphabet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pwgrid.common.label_keys import MIN_SEGMENTS, WILDCARD, LabelKey


@dataclass(frozen=True, slots=True)
class Switches:
    """Which other keys than the same one may serve (the settings BORROW_…)."""

    trailing_fallback: bool = True
    prefix_expand: bool = True
    wildcards: bool = False


def match(wanted: LabelKey, offered: Collection[LabelKey], switches: Switches) -> LabelKey | None:
    """Returns the offered key that serves `wanted`, or None."""
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
