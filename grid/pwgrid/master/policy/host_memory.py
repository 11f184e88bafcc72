"""Decides when the host is short of memory, and for how many workers it has room."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

REOPEN_FACTOR: Final = 1.25
UNKNOWN_WORKER_MIB: Final = 512


@dataclass(slots=True)
class HostGuard:
    """Closed while the host is short of memory. It opens only at REOPEN_FACTOR times the floor, so that it does not
    open and close all the time. Floor 0: off.

    `reason` is the sentence for clients and operators while it is closed. It names no current figure, so that it stays
    the same for as long as the guard is closed.
    """

    floor_mib: int
    reason: str | None = None

    def observe(self, available_mib: int) -> str | None:
        """Take a sample; returns `reason`: why nothing is admitted or started from now on, or None."""
        mark_mib = self.floor_mib if self.reason is None else self.reopens_at_mib
        if available_mib >= mark_mib:
            self.reason = None
        elif self.reason is None:
            self.reason = (
                f"the host is short of memory: less than {self.floor_mib} MiB are available (MIN_HOST_AVAILABLE_MIB); "
                f"new sessions have to wait until there are {self.reopens_at_mib} MiB"
            )
        return self.reason

    @property
    def reopens_at_mib(self) -> int:
        """How much memory must be available for it to open again."""
        return math.ceil(self.floor_mib * REOPEN_FACTOR)


def room_for(available_mib: int, floor_mib: int, sizes_mib: Collection[int]) -> int:
    """How many more workers of the median of `sizes_mib`, the sizes of the present ones, fit above the floor."""
    usual_mib = statistics.median(sizes_mib) if sizes_mib else UNKNOWN_WORKER_MIB
    return max(0, int((available_mib - floor_mib) // max(1, usual_mib)))
