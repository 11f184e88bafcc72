"""Counts what has happened in one pool since the master started, for the metrics: the sentences that say why a worker
ends are mapped to closed sets of classes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from pwgrid.common.histogram import CANARY_BOUNDS_S, DRAIN_BOUNDS_S, LAUNCH_BOUNDS_S, Histogram

RECYCLES: Final = {
    "lifetime limit": "lifetime",
    "memory": "memory",
    "age": "age",
    "canary failed": "canary",
    "host file replaced": "host file",
    "configuration": "configuration",
    "upgrade": "upgrade",
    "operator": "operator",
    "asked over Redis": "operator",
}
"""Why a worker is replaced, by the text before the sentence's first colon. Other sentences tell of no replacement."""

DEATHS: Final = {
    "launch failed": re.compile(r" did not start\b"),
    "no Redis": re.compile(r"no Redis at "),
    "late": re.compile(r"not available \d"),
    "silent": re.compile(r"silent for \d"),
    "memory limit": re.compile("memory limit$"),
    "browser server hung": re.compile("browser server hung$"),
    "browser server ended": re.compile("the browser server ended|browser server lost"),
    "browser ended": re.compile("^browser (ended|crashed)"),
    "worker ended": re.compile("worker ended with "),
    "not forked": re.compile("cannot start a worker"),
}
"""How a worker dies: the first pattern that is in the sentence counts."""

OTHER: Final = "other"
NO_SIGNAL: Final = "none"
SIGNALS: Final = (  # noqa: SIM905 - as a list it is a screen
    "SIGABRT SIGALRM SIGBUS SIGFPE SIGHUP SIGILL SIGINT SIGKILL SIGPIPE SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGUSR1 "
    "SIGUSR2 SIGXCPU SIGXFSZ"
).split()
"""The signals that end processes. Any other is `other`."""

_SIGNAL: Final = re.compile(r"\bSIG[A-Z0-9]+\b")


def recycle_class(reason: str) -> str | None:
    """The class of a replacement's reason; None when the worker is not replaced, or fails."""
    return RECYCLES.get(reason.partition(":")[0])


def death_class(reason: str) -> tuple[str, str]:
    """The class of a death, and the signal in its sentence, or NO_SIGNAL."""
    found = next((name for name, pattern in DEATHS.items() if pattern.search(reason)), OTHER)
    said = _SIGNAL.search(reason)
    if said is None:
        return found, NO_SIGNAL
    return found, said[0] if said[0] in SIGNALS else OTHER


class EventCounts:
    """Histograms in seconds: `launch` is the time from the fork until a worker is warm, `drain` how long the sessions
    of a drain went on, `canary` the time to the first page of an idle browser."""

    def __init__(self) -> None:
        self.starts = 0
        self.launch = Histogram(LAUNCH_BOUNDS_S)
        self.drain = Histogram(DRAIN_BOUNDS_S)
        self.canary = Histogram(CANARY_BOUNDS_S)
        self.canary_failures = 0
        # All begin at 0: Prometheus sees no increase in a series that begins with its first event.
        self._recycles = Counter(dict.fromkeys(RECYCLES.values(), 0))
        self._deaths = Counter({(reason, NO_SIGNAL): 0 for reason in (*DEATHS, OTHER)})

    def drains(self, reason: str) -> None:
        """A worker begins to drain; counted if that is a recycle."""
        if (found := recycle_class(reason)) is not None:
            self._recycles[found] += 1

    def died(self, reason: str) -> None:
        self._deaths[death_class(reason)] += 1

    def tried(self, seconds: float, *, is_well: bool) -> None:
        """An idle browser was tried (canary), and took `seconds`."""
        if is_well:
            self.canary.observe(seconds)
        else:
            self.canary_failures += 1

    def as_data(self) -> dict[str, Any]:
        return {
            "starts": self.starts,
            "recycles": dict(self._recycles),
            "deaths": [[*death, count] for death, count in self._deaths.items()],
            "launch": self.launch.as_data(),
            "drain": self.drain.as_data(),
            "canary": self.canary.as_data(),
            "canaryFailures": self.canary_failures,
        }
