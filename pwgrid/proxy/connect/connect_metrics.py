"""What one proxy measures of its clients' connects, for the metrics. Renders nothing."""

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


class ConnectFigures:
    """Figures since the proxy started. `waits` are of clients that stood in line; `refused` counts by status and
    reason."""

    def __init__(self) -> None:
        self.phases: defaultdict[Pool, Phases] = defaultdict(Phases)
        self.waits: defaultdict[tuple[Pool, Waited], Histogram] = defaultdict(partial(Histogram, _WAIT_BOUNDS_S))
        self.refused: Counter[tuple[int, str]] = Counter()

    def note_refusal(self, refusal: Refusal) -> None:
        self.refused[refusal.status, refusal.reason] += 1
