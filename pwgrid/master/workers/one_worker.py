"""What the master knows of one worker. Its `life` decides about it."""

from __future__ import annotations

import math
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from pwgrid.common.selectors_loop import Timer
from pwgrid.common.types import BrowserType
from pwgrid.control.master_side import MasterSide
from pwgrid.master.child import Child
from pwgrid.master.policy.recycle_reasons import Footprint
from pwgrid.master.policy.worker_plan import PlannedWorker
from pwgrid.master.policy.worker_state_machine import Purpose, Times, WorkerLife
from pwgrid.runtime.browser_process_tree import Tree


@dataclass(eq=False, slots=True)
class ManagedWorker:
    """One worker. Times are monotonic seconds.

    `pool` is the name of its pool, `child` its process, `link` the control link to it, and `ipc` the master's copy of
    the IPC link to its browser server, which so outlives the process; an adopted worker sends it when it reconnects.
    `runs`: the names, runs and label keys of the clients in its slots, as far as these gave any. `settings` and `code`
    are digests of those it was forked with, `launched` is what it reported of its browser. `counted_at`: when it last
    reported `lifetime`. `recycle`: why it should be replaced. `late` fires at `life.ready_by`.
    """

    worker_id: str
    pool: str
    browser_type: BrowserType
    life: WorkerLife
    child: Child
    tree: Tree
    forked_at: float
    code: str
    settings: str = ""
    ipc: socket.socket | None = None
    link: MasterSide | None = None
    late: Timer = field(init=False)
    launched: dict[str, Any] = field(default_factory=dict)
    warm_since: float = math.inf
    active: int = 0
    lifetime: int = 0
    counted_at: float = math.inf
    slots: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    memory: Footprint = field(default_factory=Footprint)
    recycle: str | None = None
    has_told_drain: bool = False
    """Whether `active` was reported after its drain began."""

    def view(self, now: float, times: Times) -> PlannedWorker:
        return PlannedWorker(
            self.worker_id,
            self.pool,
            self.life.status,
            self.active,
            started_at=self.forked_at,
            recycle=self.recycle,
            spare=self.life.purpose is Purpose.SPARE,
            lingers_until=self.life.sessions_until if self.life.lingers(now, times) else None,
        )

    def status_reply(self) -> dict[str, Any]:
        return {
            "id": self.worker_id,
            "pool": self.pool,
            "browserType": self.browser_type,
            "pid": self.child.pid,
            "nodePid": self.launched.get("nodePid"),
            "status": self.life.status.value,
            "phase": self.life.phase.value,
            "active": self.active,
            "lifetime": self.lifetime,
            "slots": self.slots,
            "startedAt": self.child.started_at,
            "rssMib": self.memory.rss_mib,
            "memoryMib": self.memory.memory_mib,
            "drainLeftS": self._drain_left_s(),
            "reason": self.life.reason or self.recycle,
        }

    def _drain_left_s(self) -> float | None:
        """How many seconds its sessions may still go on; None when it does not drain."""
        if self.life.sessions_until == math.inf:
            return None
        return round(max(0.0, self.life.sessions_until - time.monotonic()), 1)
