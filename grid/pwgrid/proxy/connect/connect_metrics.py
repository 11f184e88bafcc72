"""What one proxy measures of its clients' connects, for the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from pwgrid.common.histogram import Histogram
from pwgrid.proxy.policy.refusal import Refusal

_PHASE_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 600.0),
)
_WAIT_BOUNDS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Waited(StrEnum):
    """How a wait in line ended."""

    SERVED = "served"
    REFUSED = "refused"
    ABANDONED = "abandoned"  # the client left


@dataclass(slots=True)
class Phases:
    """Connects of one pool, in seconds: `queue` in line, `selection` in the call that leased the slot, `handoff` from
    then until the browser server had the socket."""

    queue: Histogram = field(default_factory=partial(Histogram, _PHASE_BOUNDS_S))
    selection: Histogram = field(default_factory=partial(Histogram, _PHASE_BOUNDS_S))
    handoff: Histogram = field(default_factory=partial(Histogram, _PHASE_BOUNDS_S))


Pool = tuple[str, str]
"""Browser type and pool."""


@dataclass(slots=True)
class ConnectFigures:
    """Counts since the proxy started, of upgrades by their outcome, and times."""

    handed_off: int = 0
    """A worker has them, or may have: it ended or fell silent before it could say so."""
    refused: int = 0
    retried: int = 0
    abandoned: int = 0
    """Clients that left while they waited."""
    options_ignored: int = 0
    """Clients that were handed off although a shared browser ignores some of their launch options."""
    longest_wait_s: float = 0.0
    """From the request for a slot until the client got it, was refused or left."""
    lately_longest_wait_s: float = 0.0
    """The same since the dashboard's last sample."""
    phases: defaultdict[Pool, Phases] = field(default_factory=partial(defaultdict, Phases))
    waits: defaultdict[tuple[Pool, Waited], Histogram] = field(
        default_factory=partial(defaultdict, partial(Histogram, _WAIT_BOUNDS_S))
    )
    """Of clients that stood in line."""
    refusals: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and reason; also of requests that were no upgrades."""

    def note_wait(self, seconds: float) -> None:
        if seconds > self.lately_longest_wait_s:
            self.lately_longest_wait_s = seconds
            self.longest_wait_s = max(self.longest_wait_s, seconds)

    def note_refusal(self, refusal: Refusal) -> None:
        self.refusals[refusal.status, refusal.reason] += 1
