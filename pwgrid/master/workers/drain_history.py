"""How the last drains ended, and how often each pool's drains had to cut sessions; drains nothing."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Final

from pwgrid.common.types import BrowserType
from pwgrid.master.workers.record import WorkerRecord

KEPT: Final = 256


class DrainBook:
    """`timeouts` counts drains by pool in which time ran out; `recent` has the last outcomes, the newest last.

    An outcome is {"id", "cut", "timedOut", "lost"}: sessions that were closed, whether because time ran out (and not
    because somebody wanted the end now), and the reason when the worker was lost instead.
    """

    def __init__(self) -> None:
        self.timeouts: Counter[BrowserType] = Counter()
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def ended(self, record: WorkerRecord, data: dict[str, Any]) -> None:
        """A worker said that it has stopped."""
        cut = data.get("cut", 0)
        if type(cut) is not int or cut < 0:
            raise ValueError(f"{cut!r:.40} is not a count")
        timed_out = bool(data.get("timedOut"))
        self.timeouts[record.browser_type] += timed_out
        self.recent.append({"id": record.worker_id, "cut": cut, "timedOut": timed_out, "lost": None})

    def lost(self, record: WorkerRecord) -> None:
        """A worker was lost, draining or not; what became of its sessions is in their records."""
        self.recent.append({"id": record.worker_id, "cut": record.active, "timedOut": False, "lost": record.reason})
