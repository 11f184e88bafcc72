"""How workers end, whatever they say: silent ones are given up, dead ones succeeded or buried, their rests removed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common.worker_lifecycle import WorkerEvent, WorkerStatus
from pwgrid.master.child import Exit
from pwgrid.master.workers.record import WorkerRecord
from pwgrid.master.workers.roll import Roll, Tell
from pwgrid.master.workers.successor import can_be_taken_over, fork_successor
from pwgrid.runtime.process_tree import process_table

log = structlog.get_logger()

SWEEP_RETRY_S: Final = 0.02

_COMING: Final = (WorkerStatus.STARTING, WorkerStatus.SPARE)


class Ends:
    """One for all workers. `follow` watches a new process in a record, here that of a successor."""

    def __init__(self, roll: Roll, tell: Tell, follow: Callable[[WorkerRecord], None]) -> None:
        self._roll = roll
        self._tell = tell
        self._follow = follow

    def tick(self, now: float) -> None:
        """Give up silent and late ones, send signals that are due, sweep what ended ones left."""
        for record in list(self._roll.records.values()):
            if not record.ended:
                self._watch(record, now)
                record.child.tick(now)
        self._sweep(now)

    def deadline(self, record: WorkerRecord) -> float:
        """When `tick` has something to do for it, or infinity."""
        if record.ended:
            return record.sweep_at
        available_by = record.available_by if record.status in _COMING else math.inf
        return min(record.child.deadline(), self._silent_at(record), available_by)

    def lose(self, record: WorkerRecord, reason: str) -> None:
        """It has failed for `reason`, and so have its sessions."""
        record.reason = reason
        was = record.status
        record.advance(WorkerEvent.VANISHED)
        log.error("worker_lost", worker=record.worker_id, pool=record.browser_type, was=was, reason=reason)
        self._roll.drains.lost(record)
        self._roll.count_death(record)
        self._tell("worker_lost", record)

    def exited(self, record: WorkerRecord) -> None:
        """Its pidfd says that the process has ended."""
        ended = record.child.reap()
        if ended is None:
            return
        now = self._roll.now()
        if record.channel is not None:
            record.channel.read_rest()
            record.channel.close()
        self._roll.loop.remove(record.child.pidfd)
        record.child.close()
        record.ended, record.sweep_at = True, now
        record.tree.worker_pid = 0  # may be somebody else's from here on
        pid, worker_id = record.child.pid, record.worker_id
        was = record.status
        # How an adopted one ended only its parent was told; but removing its directory is the last thing that it does.
        is_clean = ended.is_clean or (ended.is_unknown and not record.tree.directory.exists())
        if is_clean and was in (WorkerStatus.STOPPED, WorkerStatus.DRAINING):
            record.advance(WorkerEvent.VANISHED if was is WorkerStatus.STOPPED else WorkerEvent.STOP_ANNOUNCED)
            log.info("worker_exited", worker=worker_id, pid=pid, exit=str(ended), was=was, reason=record.reason)
            self._tell("worker_gone", record)
            return
        log.error("worker_exited", worker=worker_id, pid=pid, exit=str(ended), was=was, reason=record.reason)
        why = _why(record, ended)
        if was is not WorkerStatus.LOST and not self._take_over(record, why, now):
            self.lose(record, why)

    def _watch(self, record: WorkerRecord, now: float) -> None:
        channel = record.channel
        if channel is not None:
            channel.tick(now)
        if record.status is WorkerStatus.LOST:
            return
        if now >= self._silent_at(record):
            self._give_up(record, f"silent for {self._roll.config.settings.worker_lost_threshold:g} s", now)
        elif record.status in _COMING and now >= record.available_by:
            self._give_up(record, f"not available {now - record.forked_at:.0f} s after its start", now)

    def _silent_at(self, record: WorkerRecord) -> float:
        if record.channel is None or record.status is WorkerStatus.LOST:
            return math.inf
        return record.channel.heard_at + self._roll.config.settings.worker_lost_threshold

    def _give_up(self, record: WorkerRecord, reason: str, now: float) -> None:
        """It is no capacity from now on; SIGTERM, then SIGKILL, then its tree, unless its browser server lives."""
        if can_be_taken_over(record):
            self._orphan(record, reason)
            if record.channel is not None:
                record.channel.close()  # what it has to say after this is nobody's business
                record.channel = None
        else:
            self.lose(record, reason)
        record.child.end_now(now)

    def _orphan(self, record: WorkerRecord, reason: str) -> None:
        """Its sessions may go on, but it gets no new ones, and its replacement starts."""
        if record.status is WorkerStatus.AVAILABLE:
            record.reason = reason
            self._roll.count_death(record)
        record.advance(WorkerEvent.DRAIN_ASKED)
        self._tell("worker_orphaned", record)

    def _take_over(self, record: WorkerRecord, reason: str, now: float) -> bool:
        """A successor for an ended worker whose browser server lives; False when there can be none."""
        if now >= record.drain_by or not can_be_taken_over(record):
            return False
        self._orphan(record, reason)
        try:
            fork_successor(self._roll.config, record)
        except OSError as error:
            log.error("successor_not_started", worker=record.worker_id, reason=str(error))
            return False
        self._follow(record)
        self._roll.limit_drain(record)
        log.warning("successor_started", worker=record.worker_id, pid=record.child.pid, reason=record.reason)
        return True

    def _sweep(self, now: float) -> None:
        """Kill what ended workers have left, until nothing is; then their directories go."""
        due = [record for record in self._roll.records.values() if now >= record.sweep_at]
        if not due:
            return
        table = process_table()
        for record in due:
            killed = record.tree.kill(table)
            if killed:
                log.info("tree_killed", worker=record.worker_id, processes=killed)
                record.sweep_at = now + SWEEP_RETRY_S
                continue
            if record.ipc is not None:
                record.ipc.close()
            if self._roll.config.runtime.remove_worker_dir(record.worker_id):
                log.debug("worker_directory_removed", worker=record.worker_id)
            del self._roll.records[record.worker_id]


def _why(record: WorkerRecord, ended: Exit) -> str:
    if record.child.was_killed:
        return f"{record.reason or 'asked to end'}: did not end in time, killed"
    return record.reason or f"worker ended with {ended}"
