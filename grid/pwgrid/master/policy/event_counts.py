"""Counts what has happened in one pool since the master started, for the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from pwgrid.common.histogram import CANARY_BOUNDS_S, DRAIN_BOUNDS_S, LAUNCH_BOUNDS_S, Histogram
from pwgrid.common.reasons import Reason, WorkerEnd

RECYCLES: Final = (
    WorkerEnd.LIFETIME,
    WorkerEnd.LAUNCHES,
    WorkerEnd.MEMORY,
    WorkerEnd.AGE,
    WorkerEnd.CANARY,
    WorkerEnd.HOST_FILE,
    WorkerEnd.CONFIGURATION,
    WorkerEnd.UPGRADE,
    WorkerEnd.OPERATOR,
)
"""Why a worker is replaced. A drain of another kind is no replacement."""

DEATHS: Final = (
    WorkerEnd.LAUNCH_FAILED,
    WorkerEnd.NO_REDIS,
    WorkerEnd.LATE,
    WorkerEnd.SILENT,
    WorkerEnd.MEMORY_LIMIT,
    WorkerEnd.BROWSER_SERVER_HUNG,
    WorkerEnd.BROWSER_HUNG,
    WorkerEnd.BROWSER_SERVER_ENDED,
    WorkerEnd.BROWSER_ENDED,
    WorkerEnd.BROWSER_UNREADABLE,
    WorkerEnd.WORKER_ENDED,
    WorkerEnd.NOT_FORKED,
    WorkerEnd.OTHER,
)
"""How a worker dies. Any other kind counts as OTHER."""

OTHER: Final = WorkerEnd.OTHER.value

SERVER_ERRORS: Final = {
    "browser": "browser connection",
    "too long": "message too long",
    "client": "session",
}
"""Errors in browser servers, by the kinds that these tell (pwgrid/worker/browser/error_counts.cjs)."""

NO_SIGNAL: Final = "none"
SIGNALS: Final = (  # noqa: SIM905 - as a list it is a screen
    "SIGABRT SIGALRM SIGBUS SIGFPE SIGHUP SIGILL SIGINT SIGKILL SIGPIPE SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGUSR1 "
    "SIGUSR2 SIGXCPU SIGXFSZ"
).split()
"""The signals that end processes. Any other is OTHER."""


@dataclass(slots=True)
class Canaries:
    """Tries of browsers with one Playwright: how long a page took in seconds, and how many did not come."""

    pages: Histogram = field(default_factory=lambda: Histogram(CANARY_BOUNDS_S))
    failures: int = 0

    def as_data(self) -> list[float]:
        """The failures, then the histogram: all pools have to fit into one frame."""
        return [self.failures, *self.pages.as_data()]


class EventCounts:
    """`launches` are own browsers that no lifetime counts. Histograms in seconds: `launch` is the time from the fork
    until a worker is warm, `drain` how long the sessions of a drain went on. `canaries` are the pages that the grid
    opens itself, by the Playwright (major.minor) of the worker: while a pool's workers are replaced by those of another
    version, it has both."""

    def __init__(self) -> None:
        self.starts = 0
        self.launches = 0
        self.launch = Histogram(LAUNCH_BOUNDS_S)
        self.drain = Histogram(DRAIN_BOUNDS_S)
        self.canaries: defaultdict[str, Canaries] = defaultdict(Canaries)
        # All begin at 0: Prometheus sees no increase in a series that begins with its first event.
        self._recycles = Counter(dict.fromkeys(RECYCLES, 0))
        self._deaths = Counter(dict.fromkeys(((kind.value, NO_SIGNAL) for kind in DEATHS), 0))
        self._server_errors = Counter(dict.fromkeys((*SERVER_ERRORS.values(), OTHER), 0))

    def drains(self, reason: Reason[WorkerEnd]) -> None:
        """A worker begins to drain; counted if that is a recycle."""
        if reason.kind in RECYCLES:
            self._recycles[reason.kind] += 1

    def died(self, reason: Reason[WorkerEnd]) -> None:
        kind = reason.kind if reason.kind in DEATHS else WorkerEnd.OTHER
        known = reason.signal if reason.signal in SIGNALS else WorkerEnd.OTHER.value
        self._deaths[kind.value, known if reason.signal else NO_SIGNAL] += 1

    def offers(self, playwright: str) -> None:
        """The pool has this version: its canaries begin at 0."""
        self.canaries[playwright]

    def tried(self, playwright: str, seconds: float, *, is_well: bool) -> None:
        """A browser of this Playwright was tried (canary), and took `seconds`."""
        canaries = self.canaries[playwright]
        if is_well:
            canaries.pages.observe(seconds)
        else:
            canaries.failures += 1

    def server_failed(self, kind: str, times: int) -> None:
        """Nobody waited for an error in a browser server."""
        self._server_errors[SERVER_ERRORS.get(kind, OTHER)] += times

    def as_data(self) -> dict[str, Any]:
        return {
            "starts": self.starts,
            "launches": self.launches,
            "recycles": {kind.value: count for kind, count in self._recycles.items()},
            "deaths": [[*death, count] for death, count in self._deaths.items()],
            "launch": self.launch.as_data(),
            "drain": self.drain.as_data(),
            "canaries": {version: canaries.as_data() for version, canaries in self.canaries.items()},
            "serverErrors": dict(self._server_errors),
        }
