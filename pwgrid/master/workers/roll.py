"""The roll of all workers: their records by id, and the small things that are done with any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.control.protocol import LinkFullError
from pwgrid.master.config import MasterConfig
from pwgrid.master.loop import Loop
from pwgrid.master.restart.child_file_writer import Ledger
from pwgrid.master.workers.drain_history import DrainBook
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.record import WorkerRecord

log = structlog.get_logger()

DRAIN_GRACE_S: Final = 20.0
"""What a worker has beyond its drain deadline to close sessions and its browser."""

SERVE_GRACE_S: Final = 15.0
"""For a warm worker to register. Only a Redis that is away can take so long, and then it serves without."""

Data = dict[str, Any]

Tell = Callable[[str, WorkerRecord], None]
"""Tells the proxy what it must know of a worker at once."""


class Roll:
    """What the parts of the master that deal with workers share. Only `Workers` hands it out."""

    def __init__(self, loop: Loop, config: MasterConfig, pools: dict[BrowserType, Pool]) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self.registry_seen = False
        """Whether Redis has been there: a worker has registered. From then on the grid goes on without it, too."""
        self.drains = DrainBook()
        self.loop = loop
        self.config = config
        self.pools = pools
        self.ledger = Ledger(config)
        self.trees_at = math.inf
        """When to see which processes belong to whom."""

    def now(self) -> float:
        """Monotonic seconds."""
        return self.loop.now()

    def send(self, record: WorkerRecord, name: str, data: Data) -> None:
        """A command over its link; what an adopted one that has not come back is told waits there."""
        try:
            if record.channel is not None:
                record.channel.send(name, data)
        except LinkFullError as error:
            log.error("command_dropped", worker=record.worker_id, command=name, reason=str(error))

    def serve(self, record: WorkerRecord) -> None:
        """Let a spare serve, at once or as soon as it is warm, and count on it."""
        record.spare = False
        if record.status is WorkerStatus.SPARE:
            record.available_by = self.now() + SERVE_GRACE_S
        self.ledger.worker(record)
        self.send(record, "serve", {})

    def limit_drain(self, record: WorkerRecord) -> None:
        """A drain begins, or goes on with another process: its sessions have DRAIN_TIMEOUT, and it the grace beyond."""
        self.end_drain_in(record, self.config.settings.drain_timeout + DRAIN_GRACE_S)

    def end_drain_in(self, record: WorkerRecord, seconds: float) -> None:
        """Its process is ended after that time. A successor gets what is left of it, not a new one."""
        record.drain_by = min(record.drain_by, self.now() + seconds)
        record.child.end_by(math.inf, record.drain_by)

    def count_death(self, record: WorkerRecord) -> None:
        """Its pool backs off, unless the end was wanted."""
        if not record.planned and not record.counted:
            record.counted = True
            self.pools[record.browser_type].failed(record, self.now())
