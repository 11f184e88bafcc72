"""All workers: starts, adopts and drains them as it is told. The plan is not made here; what they say is taken in by
`Reports`, and what becomes of them when they end is up to `Ends`."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable
from typing import Final

import structlog

from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerEvent, WorkerStatus
from pwgrid.control.frames import Frame
from pwgrid.control.master_end import Channel
from pwgrid.control.protocol import Link
from pwgrid.master.config import MasterConfig
from pwgrid.master.loop import Loop
from pwgrid.master.policy.backoff import Run
from pwgrid.master.workers.adopt import adopt_worker, resumed_link, sockets
from pwgrid.master.workers.drain_history import DrainBook
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.record import WorkerRecord, start_worker
from pwgrid.master.workers.reports import Reports
from pwgrid.master.workers.roll import Data, Roll, Tell
from pwgrid.master.workers.worker_exit import Ends
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.process_tree import Table, process_table

log = structlog.get_logger()

LAUNCH_GRACE_S: Final = 15.0
DRAIN_NOW_S: Final = 5.0


class Workers:
    """The workers by id. `tell(what, record)` tells the proxy what it must know of one at once."""

    def __init__(self, loop: Loop, config: MasterConfig, pools: dict[BrowserType, Pool], tell: Tell) -> None:
        self._roll = Roll(loop, config, pools)
        self._reports = Reports(self._roll)
        self._ends = Ends(self._roll, tell, self._follow)
        self._loop = loop
        self._config = config
        self._pools = pools
        self._tell = tell

    @property
    def records(self) -> dict[str, WorkerRecord]:
        """All of them, by id."""
        return self._roll.records

    @property
    def registry_seen(self) -> bool:
        """Whether Redis has been there: a worker has registered. From then on the grid goes on without it, too."""
        return self._roll.registry_seen

    @property
    def drains(self) -> DrainBook:
        """How the last drains ended."""
        return self._roll.drains

    def of(self, browser_type: BrowserType) -> list[WorkerRecord]:
        """Those of one pool."""
        return [record for record in self.records.values() if record.browser_type == browser_type]

    def start(self, browser_type: BrowserType, *, spare: bool = False) -> None:
        """Fork one; where that fails the pool backs off."""
        now = self._loop.now()
        try:
            record = start_worker(self._config, browser_type, now, registry_seen=self._roll.registry_seen, spare=spare)
        except OSError as error:
            reason = f"cannot start a worker: {error.strerror or error}"
            self._pools[browser_type].died(reason, now, Run(now))
            log.error("worker_not_started", pool=browser_type, reason=reason)
            return
        record.available_by = now + self._config.settings.launch_timeout + LAUNCH_GRACE_S
        record.settings = self._roll.ledger.settings_of("worker", browser_type)
        record.version = self._config.version
        self._follow(record)
        log.info("worker_started", worker=record.worker_id, pool=browser_type, pid=record.child.pid, spare=spare)

    def serve(self, record: WorkerRecord) -> None:
        """Let a spare serve, at once or as soon as it is warm, and count on it."""
        self._roll.serve(record)

    def end_session(self, worker_id: str, session_id: str, reason: str) -> None:
        """Have a worker end one of its sessions; nothing when either is gone."""
        record = self.records.get(worker_id)
        if record is not None and not record.ended:
            self._roll.send(record, "end_session", {"sessionId": session_id, "reason": reason})

    def adopt(self, state: ChildState) -> None:
        """Go on with one that a former master forked; it has the lost threshold to come back."""
        record = adopt_worker(self._config, state)
        if record is None:
            return
        now = self._loop.now()
        self._roll.registry_seen |= record.status is not WorkerStatus.STARTING
        record.available_by = now + self._config.settings.launch_timeout + LAUNCH_GRACE_S
        if record.status is WorkerStatus.DRAINING:
            self._roll.limit_drain(record)
        elif record.status in (WorkerStatus.SPARE, WorkerStatus.AVAILABLE):
            record.available_by = math.inf
        self._follow(record)
        log.info("worker_adopted", worker=record.worker_id, pool=record.browser_type, pid=record.child.pid)

    def drain(self, record: WorkerRecord, reason: str, *, now: bool = False) -> None:
        """Ask for the end: the command goes over the link, and what does not follow it is ended.

        A worker that drains already is told again only when it is to end `now`.
        """
        if record.ended or record.status in (WorkerStatus.STOPPED, WorkerStatus.LOST):
            return
        if record.status is WorkerStatus.DRAINING and not now:
            record.planned = True
            return
        record.advance(WorkerEvent.DRAIN_ASKED)
        record.planned = True
        record.doomed = record.doomed or now
        record.reason = record.reason or reason
        timeout_s = self._config.settings.drain_timeout
        record.sessions_until = min(record.sessions_until, self._loop.now() + (0.0 if now else timeout_s))
        if now:
            self._roll.end_drain_in(record, DRAIN_NOW_S)
        else:
            self._roll.limit_drain(record)
        self._roll.ledger.worker(record)
        log.info("worker_drain_asked", worker=record.worker_id, reason=reason, now=now, active=record.active)
        self._roll.send(record, "drain", {"reason": reason, "timeoutS": 0.0 if now else timeout_s, "now": now})
        self._tell("leave_drain", record)

    def attach(self, record: WorkerRecord, sock: socket.socket, frame: Frame, init: bytes, fds: list[int]) -> bool:
        """Take a reconnect; False when the worker has ended. `fds` has its end of the browser server's channel.

        Raises ProtocolError when `frame`, the init, says something impossible.
        """
        if record.ended or record.channel is None:
            return False
        if not record.claimed:
            record.channel.link = resumed_link(record.channel.link, frame)
            record.claimed = True
            log.info("worker_came_back", worker=record.worker_id, pid=record.child.pid)
        for spare in sockets(fds):
            if record.ipc is None:
                record.ipc = spare
            else:
                spare.close()
        record.channel.attach(sock, self._greeting(), init)
        return True

    def kill(self, record: WorkerRecord, reason: str) -> None:
        """End one with its tree at once; its sessions fail for `reason`."""
        now = self._loop.now()
        record.doomed = True
        record.child.end_by(now, now)
        record.child.tick(now)
        self._ends.lose(record, reason)

    def kill_all(self) -> None:
        """Last resort: end every process at once, without waiting for anything."""
        for record in self.records.values():
            record.doomed = True
            record.child.end_by(0.0, 0.0)

    def tick(self, now: float) -> None:
        """Do what is due: see who has ended or should, write down what could not be, learn the trees."""
        self._ends.tick(now)
        self._roll.ledger.tick(now)
        if now >= self._roll.trees_at:
            self.learn_trees()

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        ends = min((self._ends.deadline(record) for record in self.records.values()), default=math.inf)
        return min(self._roll.trees_at, ends) if self.records else math.inf

    def learn_trees(self) -> Table:
        """See which processes belong to whom now; the table that told it (empty without workers)."""
        live = [record for record in self.records.values() if not record.ended]
        table = process_table() if live else Table()
        for record in live:
            record.tree.note(table)
        self._roll.trees_at = math.inf  # the memory meter asks again, at each of its samples
        return table

    def _follow(self, record: WorkerRecord) -> None:
        """Watch its process and its link from here on."""
        record.channel = Channel(
            self._loop,
            Link("master", record.worker_id),
            lambda item: self._reports.received(record, item),
            lambda reason: self._link_down(record, reason),
        )
        self.records[record.worker_id] = record
        self._loop.add(record.child.pidfd, lambda: self._ends.exited(record))
        self._roll.trees_at = min(self._roll.trees_at, self._loop.now() + self._config.settings.rss_check_interval)
        self._roll.ledger.worker(record)
        if record.control is not None:
            record.channel.attach(record.control, self._greeting())

    @staticmethod
    def _link_down(record: WorkerRecord, reason: str) -> None:
        log.debug("control_link_down", worker=record.worker_id, pid=record.child.pid, reason=reason)

    def _greeting(self) -> Data:
        return {"lostThresholdS": self._config.settings.worker_lost_threshold}


def select(records: Iterable[WorkerRecord], data: Data) -> list[WorkerRecord]:
    """The workers that a drain request means: {"worker"|"workerId": id}, {"pool": type} or {"all": true}."""
    worker_id = data.get("worker", data.get("workerId"))
    if worker_id is not None:
        return [record for record in records if record.worker_id == worker_id]
    if data.get("pool") is not None:
        return [record for record in records if record.browser_type == data["pool"]]
    return list(records) if data.get("all") else []
