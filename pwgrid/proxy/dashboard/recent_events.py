"""Keeps the latest events of the grid in memory, for the dashboard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, Final

from pwgrid.proxy.connect.refusal_log import Asked
from pwgrid.proxy.policy.grid_events import Event, happened
from pwgrid.proxy.roster import Roster

KEPT: Final = 300


class RecentEvents:
    """The latest KEPT events, numbered from 1, so that a page gets each of them once."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.last = 0
        """The number of the newest event."""
        self._now = now
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._seen: Roster | None = None

    def add(self, event: Event, at: float | None = None) -> None:
        """Adds an event of now, or of the time `at` (Unix seconds)."""
        self.last += 1
        when = self._now() if at is None else at
        self._kept.append(
            {"n": self.last, "at": round(when, 3), "kind": event.kind, "level": event.level, "text": event.text}
        )

    def since(self, number: int) -> list[dict[str, Any]]:
        """Returns the kept events after this number, the newest last."""
        return [each for each in self._kept if each["n"] > number]

    def roster_changed(self, roster: Roster) -> None:
        """Adds events for what has changed in the roster; the first roster has none."""
        if self._seen is not None:
            for event in happened(self._seen, roster):
                self.add(event)
        self._seen = copy(roster)  # the roster takes over the next state in place

    def worker_lost(self, worker_id: str, reason: str | None) -> None:
        """Adds the event of a worker that is gone with its browser."""
        self.add(Event("worker", f"worker {worker_id} was lost: {reason or 'nobody knows why'}", "error"))

    def worker_taken_over(self, worker_id: str) -> None:
        """Adds the event of a worker whose process died and whose sessions go on."""
        self.add(
            Event("worker", f"the process of worker {worker_id} died; its sessions go on in a successor", "warning")
        )

    def refused(self, asked: Asked, times: int, status: int, error: str) -> None:
        """Adds the event of clients or borrows that were refused for the same reason."""
        what = "borrow" if asked == "borrow" else "client"
        who = f"a {what} was" if times == 1 else f"{times} more {what}s were"
        self.add(Event("refusal", f"{who} refused ({status}): {error}", "warning"))
