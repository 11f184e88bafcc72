"""Parses label keys, which clients ask for and pools offer: `App:Browser:Env[:Region[:OS…]]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, cast

from pwgrid.common.types import BROWSER_TYPES, BrowserType

MIN_SEGMENTS: Final = 2
MAX_SEGMENTS: Final = 8
MAX_SEGMENT_CHARACTERS: Final = 64
WILDCARD: Final = "*"

RULE: Final = (
    f"a label key is App:Browser:Env[:Region[:OS]]: {MIN_SEGMENTS} to {MAX_SEGMENTS} segments with a colon between "
    f"them, each of 1 to {MAX_SEGMENT_CHARACTERS} letters, digits, '.', '_' or '-', the second a browser "
    f"({', '.join(BROWSER_TYPES)})"
)

_SEGMENT: Final = re.compile(rf"[0-9A-Za-z._-]{{1,{MAX_SEGMENT_CHARACTERS}}}")
_SHOWN_CHARACTERS: Final = 100


class LabelKeyError(ValueError):
    """The text is no label key; `str()` says what is wrong with it, and the rule."""


@dataclass(frozen=True, slots=True)
class LabelKey:
    """Keys are equal if their segments are, whatever their case; `str()` is the text as its author wrote it."""

    segments: tuple[str, ...]
    """In lower case, for comparison."""
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def browser_type(self) -> BrowserType | None:
        """The second segment; None for a wildcard."""
        return None if self.segments[1] == WILDCARD else cast("BrowserType", self.segments[1])

    @property
    def has_wildcards(self) -> bool:
        """Whether any segment matches everything."""
        return WILDCARD in self.segments


def parse(text: str, *, wildcards: bool = False) -> LabelKey:
    """Parses `text`, without the spaces around it. `wildcards` allows `*` as a segment, which the keys that pools offer
    never have. Raises LabelKeyError."""
    text = text.strip()
    segments = tuple(text.lower().split(":"))
    if fault := _fault(segments, wildcards=wildcards):
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
        raise LabelKeyError(f"{shown!r} is no label key ({fault}): {RULE}")
    return LabelKey(segments, text)


def _fault(segments: tuple[str, ...], *, wildcards: bool) -> str:
    if len(segments) < MIN_SEGMENTS:
        return "it has 1 segment"
    if len(segments) > MAX_SEGMENTS:
        return f"it has {len(segments)} segments"
    for number, segment in enumerate(segments, 1):
        if segment == WILDCARD:
            if not wildcards:
                return f"segment {number} is a wildcard, which may not be used here"
        elif not segment:
            return f"segment {number} is empty"
        elif not _SEGMENT.fullmatch(segment):
            return f"segment {number} is too long, or has other characters"
    if segments[1] not in (*BROWSER_TYPES, WILDCARD):
        return "its second segment is no browser"
    return ""
