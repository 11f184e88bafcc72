"""The last things that have happened in the grid, with their reasons. In memory, bounded, for whoever looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pwgrid.proxy.connect.refusal_log import Asked
from pwgrid.proxy.policy.grid_events import Event, GridSeen, PoolSeen, WorkerSeen, happened
from pwgrid.proxy.roster import Roster

KEPT: Final = 300


class Events:
    """Numbered from 1, so that a page is told each of them once."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.last = 0
        """The number of the newest."""
        self._now = now
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._seen: GridSeen | None = None

    def add(self, event: Event, at: float | None = None) -> None:
        """It has happened now, or at that time (Unix seconds)."""
        self.last += 1
        when = self._now() if at is None else at
        self._kept.append(
            {"n": self.last, "at": round(when, 3), "kind": event.kind, "level": event.level, "text": event.text}
        )

    def since(self, number: int) -> list[dict[str, Any]]:
        """Those after this one, the newest last, as far as they are kept."""
        return [each for each in self._kept if each["n"] > number]

    def roster_changed(self, roster: Roster) -> None:
        """The master has told who is there. What was there before its first word is no news."""
        after = GridSeen(
            roster.not_ready(),
            roster.stopping,
            {name: PoolSeen(pool.wanted, pool.reason) for name, pool in roster.pools.items()},
            {each.worker_id: WorkerSeen(each.pool, each.status, each.reason) for each in roster.workers.values()},
        )
        if self._seen is not None:
            for event in happened(self._seen, after):
                self.add(event)
        self._seen = after

    def worker_lost(self, worker_id: str, reason: str | None) -> None:
        """A worker is gone with its browser."""
        self.add(Event("worker", f"worker {worker_id} was lost: {reason or 'nobody knows why'}", "error"))

    def worker_taken_over(self, worker_id: str) -> None:
        """Its process died, its sessions go on."""
        self.add(
            Event("worker", f"the process of worker {worker_id} died; its sessions go on in a successor", "warning")
        )

    def refused(self, asked: Asked, times: int, status: int, error: str) -> None:
        """Clients were refused, or borrows, for the same reason."""
        what = "borrow" if asked == "borrow" else "client"
        who = f"a {what} was" if times == 1 else f"{times} more {what}s were"
        self.add(Event("refusal", f"{who} refused ({status}): {error}", "warning"))
