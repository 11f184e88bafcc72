"""Decides which of the pools' label keys serves a label key that a client asks for.

Tries in this order: the same key; the key without its last segment, its last two, and so on (two segments stay); longer
keys that begin with it; with wildcards, keys of the same length whose segments match, then also longer ones. Of several
keys the shortest is taken, and of these the first in the alphabet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field

from pwgrid.common.label_keys import MIN_SEGMENTS, WILDCARD, LabelKey, LabelKeyError, parse
from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.refusal import Refusal


@dataclass(frozen=True, slots=True)
class OfferedLabels:
    """The label keys of pools, with the pools' names (one for each Playwright version), and which of them may serve
    another key (the settings BORROW_…)."""

    keys: Mapping[LabelKey, tuple[str, ...]] = field(default_factory=dict)
    trailing_fallback: bool = True
    prefix_expand: bool = True
    wildcards: bool = False

    def serving(self, text: str, browser_type: BrowserType | None = None, fit: Set[str] | None = None) -> LabelKey:
        """Returns the key of a pool that serves the key `text`: of one of the pools `fit`, which have the client's
        version, if there is such a key. `browser_type` is the client's own. Raises Refusal."""
        try:
            wanted = parse(text, wildcards=self.wildcards)
        except LabelKeyError as error:
            raise Refusal(400, str(error)) from None
        keys = [*self.keys]
        if wanted.browser_type is None and browser_type is not None:
            keys = [key for key in keys if key.browser_type == browser_type]
        of_fit = keys if fit is None else [key for key in keys if not fit.isdisjoint(self.keys[key])]
        found = self.match(wanted, of_fit) or self.match(wanted, keys)
        if found is None:
            known = sorted(map(str, self.keys), key=str.lower)
            listed = f"there are {', '.join(known)}" if known else "no pool of this grid has label keys"
            raise Refusal(404, f"no pool serves the label key {wanted}: {listed}", details={"labelKeys": known})
        return found

    def match(self, wanted: LabelKey, keys: Collection[LabelKey]) -> LabelKey | None:
        """Returns which of these keys serves `wanted`, or None."""
        for candidates in self._steps(wanted, keys):
            if candidates:
                return min(candidates, key=lambda key: (len(key.segments), key.segments))
        return None

    def _steps(self, wanted: LabelKey, keys: Collection[LabelKey]) -> Iterator[list[LabelKey]]:
        segments = wanted.segments
        yield [key for key in keys if key == wanted]
        if self.trailing_fallback:
            for length in range(len(segments) - 1, MIN_SEGMENTS - 1, -1):
                yield [key for key in keys if key.segments == segments[:length]]
        if self.prefix_expand:
            yield [key for key in keys if key.segments[: len(segments)] == segments]
        if self.wildcards and wanted.has_wildcards:
            fitting = [key for key in keys if _fits(segments, key.segments)]
            yield [key for key in fitting if len(key.segments) == len(segments)]
            if self.prefix_expand:
                yield fitting


def _fits(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(segments) >= len(pattern) and all(
        asked in (WILDCARD, there) for asked, there in zip(pattern, segments, strict=False)
    )
