"""Decides what ends where memory is short: a session that nobody uses first, then one browser, and only then a worker
with all its sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

GOING_S: Final = 5.0
"""How long a browser that was told to end may take for that; then its worker is killed."""


@dataclass(frozen=True, slots=True)
class EndBrowser:
    """End the session that has this browser alone."""

    pid: int


class Otherwise(Enum):
    WAIT = "wait"
    """For a browser that was told to end."""
    END_WORKER = "end worker"
    """Nothing less is left to try."""


def oldest_kept(kept_since: Mapping[str, float]) -> str | None:
    """Returns the worker whose kept session ends first while the host is short of memory; None if there is none.
    `kept_since`: by workers' ids, since when each has kept the one that it has kept longest (monotonic clock)."""
    return min(kept_since, key=kept_since.__getitem__, default=None)


def ends_of_worker(
    sizes: Mapping[int, int], shared: int | None, told_at: Mapping[int, float], now: float
) -> EndBrowser | Otherwise:
    """Returns what ends of a worker that takes too much and keeps no session: its largest browser, if one session has
    that alone. `sizes` are of its browsers, by pid; `shared` is the one that sessions share; `told_at` is when each
    was told to end (monotonic clock)."""
    if going := [at for pid, at in told_at.items() if pid in sizes]:
        return Otherwise.WAIT if now < max(going) + GOING_S else Otherwise.END_WORKER
    largest = max(sizes, key=sizes.__getitem__, default=None)
    return Otherwise.END_WORKER if largest is None or largest == shared else EndBrowser(largest)
