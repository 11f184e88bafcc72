"""What workers say: takes it into their records and their pools; starts and ends no process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common.worker_lifecycle import WorkerEvent, WorkerStatus
from pwgrid.control.protocol import Applied, Opened, Received, StateSeen
from pwgrid.master.policy.adoption import caught_up, missed_its_drain
from pwgrid.master.workers.record import WorkerRecord
from pwgrid.master.workers.roll import DRAIN_GRACE_S, SERVE_GRACE_S, Data, Roll

log = structlog.get_logger()


class Reports:
    """One for all workers. Raises ValueError for what no worker can mean: that ends the link it came over."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll

    def received(self, record: WorkerRecord, item: Received) -> None:
        """Something came over the worker's link."""
        if isinstance(item, Opened):
            record.slots = _count(item.init.get("slots"))
        elif isinstance(item, StateSeen):
            if record.adopted:
                self._catch_up(record, item.data.get("status"))
            record.active = _count(item.data.get("active"))
            lifetime = _count(item.data.get("lifetime"))
            self._roll.pools[record.browser_type].told(record, lifetime, self._roll.now())
        elif isinstance(item, Applied):
            handler = _EVENTS.get(item.name)
            if handler is None:
                log.warning("event_unknown", worker=record.worker_id, name=item.name)
            else:
                handler(self, record, item.data)

    def _catch_up(self, record: WorkerRecord, status: object) -> None:
        """An adopted worker says where it is; the former master knew."""
        was, record.status = record.status, caught_up(record.status, status)
        drain_timeout_s = self._roll.config.settings.drain_timeout
        if missed_its_drain(was, status) and not record.told_again:
            record.told_again = True  # once: a drain that is asked for twice ends at once
            about = {"reason": record.reason or "asked", "timeoutS": drain_timeout_s, "now": False}
            self._roll.send(record, "drain", about)
        if was is record.status:
            return
        if record.status is WorkerStatus.DRAINING:
            self._roll.limit_drain(record)
        elif record.status in (WorkerStatus.SPARE, WorkerStatus.AVAILABLE):
            record.served_since, record.available_by = record.forked_at, math.inf
            if record.status is WorkerStatus.SPARE:
                record.spare = True  # whatever the former master told it, it waits
            else:
                self._roll.registry_seen = True

    def _launched(self, record: WorkerRecord, data: Data) -> None:
        record.launched = data
        self._roll.ledger.worker(record)
        self._roll.trees_at = self._roll.now()  # learn the browser's processes while they are still below the worker

    def _held(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.HELD)
        if record.status is WorkerStatus.SPARE:
            record.available_by = math.inf if record.spare else self._roll.now() + SERVE_GRACE_S
            self._warm(record)
            self._roll.ledger.worker(record)

    def _available(self, record: WorkerRecord, data: Data) -> None:
        was_spare = record.status is WorkerStatus.SPARE
        if record.status is not WorkerStatus.AVAILABLE:  # it may stand in for another one already
            record.advance(WorkerEvent.WARMED)
        if record.status is WorkerStatus.AVAILABLE:
            record.available_by = math.inf
            self._roll.registry_seen = True
            if record.served_since == math.inf:
                self._warm(record)
            self._roll.ledger.worker(record)
            after_s = round(self._roll.now() - record.forked_at, 3)
            log.info("worker_available", worker=record.worker_id, after_s=after_s, was_spare=was_spare)

    def _warm(self, record: WorkerRecord) -> None:
        record.served_since = self._roll.now()
        if not record.adopted:  # how long it waited for its master is no start time
            self._roll.pools[record.browser_type].starts.took(record.served_since - record.forked_at)

    def _draining(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.DRAIN_ASKED)
        heir = self._roll.records.get(str(data.get("heir")))
        if heir is not None and heir.spare and heir.is_live:
            self._roll.serve(heir)
            if heir.status is WorkerStatus.SPARE:  # the selection that used this one up has made it available
                heir.advance(WorkerEvent.WARMED)
        drain_timeout_s = self._roll.config.settings.drain_timeout
        record.reason = record.reason or str(data.get("reason", "asked"))
        record.sessions_until = min(record.sessions_until, self._roll.now() + drain_timeout_s)
        self._roll.ledger.worker(record)
        self._roll.limit_drain(record)

    def _stopped(self, record: WorkerRecord, data: Data) -> None:
        self._roll.drains.ended(record, data)
        if record.status is not WorkerStatus.STOPPED:  # after `failed` it says this as well
            record.advance(WorkerEvent.STOP_ANNOUNCED)

    def _failed(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.FAILED)
        record.reason = str(data.get("reason", "failed"))
        log.error("worker_failed", worker=record.worker_id, pool=record.browser_type, reason=record.reason)
        self._roll.count_death(record)
        self._roll.end_drain_in(record, DRAIN_GRACE_S)


_EVENTS: Final[dict[str, Callable[[Reports, WorkerRecord, Data], None]]] = {
    "launched": Reports._launched,
    "held": Reports._held,
    "available": Reports._available,
    "draining": Reports._draining,
    "stopped": Reports._stopped,
    "failed": Reports._failed,
}


def _count(value: object) -> int:
    """A figure that a child reports. Raises ValueError for anything else."""
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value
