"""All workers: starts, drains and buries them as it is told, and follows what they say; the plan is not made here."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from grid.children import ChildState
from grid.core.adoption import caught_up, missed_its_drain
from grid.core.backoff import Run
from grid.core.frames import Frame
from grid.core.lifecycle import WorkerEvent, WorkerStatus
from grid.core.link import Applied, Link, LinkFullError, Opened, Received, StateSeen
from grid.core.types import BrowserType
from grid.log import get_logger
from grid.master.adopted import adopt_worker, resumed_link, sockets
from grid.master.channel import Channel
from grid.master.child import Exit
from grid.master.config import MasterConfig
from grid.master.drains import DrainBook
from grid.master.ledger import Ledger
from grid.master.loop import Loop
from grid.master.pool import Pool
from grid.master.takeover import can_be_taken_over, fork_successor
from grid.master.tree import Table, process_table
from grid.master.worker_record import WorkerRecord, start_worker

log = get_logger()

LAUNCH_GRACE_S: Final = 15.0
DRAIN_GRACE_S: Final = 20.0
"""What a worker has beyond its drain deadline to close sessions and its browser."""

DRAIN_NOW_S: Final = 5.0
SERVE_GRACE_S: Final = 15.0
"""For a warm worker to register. Only a Redis that is away can take so long, and then it serves without."""

SWEEP_RETRY_S: Final = 0.02

_COMING: Final = (WorkerStatus.STARTING, WorkerStatus.SPARE)

Data = dict[str, Any]


class Workers:
    """The workers by id. `tell(what, record)` tells the proxy what it must know of one at once."""

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        pools: dict[BrowserType, Pool],
        tell: Callable[[str, WorkerRecord], None],
    ) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self.registry_seen = False
        """Whether Redis has been there: a worker has registered. From then on the grid goes on without it, too."""
        self.drains = DrainBook()
        self._loop = loop
        self._config = config
        self._pools = pools
        self._tell = tell
        self._tree_at = math.inf
        self._ledger = Ledger(config)

    def of(self, browser_type: BrowserType) -> list[WorkerRecord]:
        """Those of one pool."""
        return [record for record in self.records.values() if record.browser_type == browser_type]

    def start(self, browser_type: BrowserType, *, spare: bool = False) -> None:
        """Fork one; where that fails the pool backs off."""
        now = self._loop.now()
        try:
            record = start_worker(self._config, browser_type, now, registry_seen=self.registry_seen, spare=spare)
        except OSError as error:
            reason = f"cannot start a worker: {error.strerror or error}"
            self._pools[browser_type].died(reason, now, Run(now))
            log.error("worker_not_started", pool=browser_type, reason=reason)
            return
        record.available_by = now + self._config.settings.launch_timeout + LAUNCH_GRACE_S
        record.settings = self._ledger.settings_of("worker", browser_type)
        record.version = self._config.version
        self._follow(record)
        log.info("worker_started", worker=record.worker_id, pool=browser_type, pid=record.child.pid, spare=spare)

    def serve(self, record: WorkerRecord) -> None:
        """Let a spare serve, at once or as soon as it is warm, and count on it."""
        record.spare = False
        if record.status is WorkerStatus.SPARE:
            record.available_by = self._loop.now() + SERVE_GRACE_S
        self._ledger.worker(record)
        self._send(record, "serve", {})

    def end_session(self, worker_id: str, session_id: str, reason: str) -> None:
        """Have a worker end one of its sessions; nothing when either is gone."""
        record = self.records.get(worker_id)
        if record is not None and not record.ended:
            self._send(record, "end_session", {"sessionId": session_id, "reason": reason})

    def adopt(self, state: ChildState) -> None:
        """Go on with one that a former master forked; it has the lost threshold to come back."""
        record = adopt_worker(self._config, state)
        if record is None:
            return
        now = self._loop.now()
        self.registry_seen = self.registry_seen or record.status is not WorkerStatus.STARTING
        record.available_by = now + self._config.settings.launch_timeout + LAUNCH_GRACE_S
        if record.status is WorkerStatus.DRAINING:
            self._end_drain_by(record, now + self._config.settings.drain_timeout + DRAIN_GRACE_S)
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
        self._end_drain_by(record, self._loop.now() + (DRAIN_NOW_S if now else timeout_s + DRAIN_GRACE_S))
        self._ledger.worker(record)
        log.info("worker_drain_asked", worker=record.worker_id, reason=reason, now=now, active=record.active)
        self._send(record, "drain", {"reason": reason, "timeoutS": 0.0 if now else timeout_s, "now": now})
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
        self._lose(record, reason, now)

    def kill_all(self) -> None:
        """Last resort: end every process at once, without waiting for anything."""
        for record in self.records.values():
            record.doomed = True
            record.child.end_by(0.0, 0.0)

    def tick(self, now: float) -> None:
        """Do what is due: give up silent and late ones, send signals, sweep what ended ones left, learn the trees."""
        for record in list(self.records.values()):
            if not record.ended:
                self._watch(record, now)
                record.child.tick(now)
        self._sweep(now)
        self._ledger.tick(now)
        if now >= self._tree_at:
            self.learn_trees()

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return min((self._next(record) for record in self.records.values()), default=math.inf)

    # What is said

    def _follow(self, record: WorkerRecord) -> None:
        """Watch its process and its link from here on."""
        record.channel = Channel(
            self._loop,
            Link("master", record.worker_id),
            lambda item: self._received(record, item),
            lambda reason: self._link_down(record, reason),
        )
        self.records[record.worker_id] = record
        self._loop.add(record.child.pidfd, lambda: self._exited(record))
        self._tree_at = min(self._tree_at, self._loop.now() + self._config.settings.rss_check_interval)
        self._ledger.worker(record)
        if record.control is not None:
            record.channel.attach(record.control, self._greeting())

    def _catch_up(self, record: WorkerRecord, status: object) -> None:
        """An adopted worker says where it is; the former master knew."""
        was, record.status = record.status, caught_up(record.status, status)
        if missed_its_drain(was, status) and not record.told_again:
            record.told_again = True  # once: a drain that is asked for twice ends at once
            timeout_s = self._config.settings.drain_timeout
            self._send(record, "drain", {"reason": record.reason or "asked", "timeoutS": timeout_s, "now": False})
        if was is not record.status and record.status is WorkerStatus.SPARE:
            record.spare = True  # whatever the former master told it, it waits
            record.served_since, record.available_by = record.forked_at, math.inf
        elif was is not record.status and record.status is WorkerStatus.AVAILABLE:
            record.served_since, record.available_by = record.forked_at, math.inf
            self.registry_seen = True
        elif was is not record.status and record.status is WorkerStatus.DRAINING:
            self._end_drain_by(record, self._loop.now() + self._config.settings.drain_timeout + DRAIN_GRACE_S)

    def _received(self, record: WorkerRecord, item: Received) -> None:
        if isinstance(item, Opened):
            record.slots = _count(item.init.get("slots"))
        elif isinstance(item, StateSeen):
            if record.adopted:
                self._catch_up(record, item.data.get("status"))
            record.active = _count(item.data.get("active"))
            self._pools[record.browser_type].told(record, _count(item.data.get("lifetime")), self._loop.now())
        elif isinstance(item, Applied):
            handler = _EVENTS.get(item.name)
            if handler is None:
                log.warning("event_unknown", worker=record.worker_id, name=item.name)
            else:
                handler(self, record, item.data)

    def _launched(self, record: WorkerRecord, data: Data) -> None:
        record.launched = data
        self._ledger.worker(record)
        self._tree_at = self._loop.now()  # learn the browser's processes while they are still below the worker

    def _held(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.HELD)
        if record.status is WorkerStatus.SPARE:
            record.available_by = math.inf if record.spare else self._loop.now() + SERVE_GRACE_S
            self._warm(record)
            self._ledger.worker(record)

    def _available(self, record: WorkerRecord, data: Data) -> None:
        was_spare = record.status is WorkerStatus.SPARE
        if record.status is not WorkerStatus.AVAILABLE:  # it may stand in for another one already
            record.advance(WorkerEvent.WARMED)
        if record.status is WorkerStatus.AVAILABLE:
            record.available_by = math.inf
            self.registry_seen = True
            if record.served_since == math.inf:
                self._warm(record)
            self._ledger.worker(record)
            after_s = round(self._loop.now() - record.forked_at, 3)
            log.info("worker_available", worker=record.worker_id, after_s=after_s, was_spare=was_spare)

    def _warm(self, record: WorkerRecord) -> None:
        record.served_since = self._loop.now()
        if not record.adopted:  # how long it waited for its master is no start time
            self._pools[record.browser_type].starts.took(record.served_since - record.forked_at)

    def _draining(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.DRAIN_ASKED)
        heir = self.records.get(str(data.get("heir")))
        if heir is not None and heir.spare and heir.is_live:
            self.serve(heir)
            if heir.status is WorkerStatus.SPARE:  # the selection that used this one up has made it available
                heir.advance(WorkerEvent.WARMED)
        record.reason = record.reason or str(data.get("reason", "asked"))
        record.sessions_until = min(record.sessions_until, self._loop.now() + self._config.settings.drain_timeout)
        self._ledger.worker(record)
        self._end_drain_by(record, self._loop.now() + self._config.settings.drain_timeout + DRAIN_GRACE_S)

    def _stopped(self, record: WorkerRecord, data: Data) -> None:
        self.drains.ended(record, data)
        if record.status is not WorkerStatus.STOPPED:  # after `failed` it says this as well
            record.advance(WorkerEvent.STOP_ANNOUNCED)

    def _failed(self, record: WorkerRecord, data: Data) -> None:
        record.advance(WorkerEvent.FAILED)
        record.reason = str(data.get("reason", "failed"))
        log.error("worker_failed", worker=record.worker_id, pool=record.browser_type, reason=record.reason)
        self._count_death(record, self._loop.now())
        self._end_drain_by(record, self._loop.now() + DRAIN_GRACE_S)

    def _link_down(self, record: WorkerRecord, reason: str) -> None:
        log.debug("control_link_down", worker=record.worker_id, pid=record.child.pid, reason=reason)

    # What is seen

    def _watch(self, record: WorkerRecord, now: float) -> None:
        channel = record.channel
        if channel is not None:
            channel.tick(now)
        if record.status is WorkerStatus.LOST:
            return
        if now >= self._silent_at(record):
            self._give_up(record, f"silent for {self._config.settings.worker_lost_threshold:g} s", now)
        elif record.status in _COMING and now >= record.available_by:
            self._give_up(record, f"not available {now - record.forked_at:.0f} s after its start", now)

    def _give_up(self, record: WorkerRecord, reason: str, now: float) -> None:
        """It is no capacity from now on; SIGTERM, then SIGKILL, then its tree, unless its browser server lives."""
        if can_be_taken_over(record):
            self._orphan(record, reason, now)
            if record.channel is not None:
                record.channel.close()  # what it has to say after this is nobody's business
                record.channel = None
        else:
            self._lose(record, reason, now)
        record.child.end_now(now)

    def _orphan(self, record: WorkerRecord, reason: str, now: float) -> None:
        """Its sessions may go on, but it gets no new ones, and its replacement starts."""
        if record.status is WorkerStatus.AVAILABLE:
            record.reason = reason
            self._count_death(record, now)
        record.advance(WorkerEvent.DRAIN_ASKED)
        self._tell("worker_orphaned", record)

    def _take_over(self, record: WorkerRecord, reason: str, now: float) -> bool:
        """A successor for an ended worker whose browser server lives; False when there can be none."""
        if now >= record.drain_by or not can_be_taken_over(record):
            return False
        self._orphan(record, reason, now)
        try:
            fork_successor(self._config, record)
        except OSError as error:
            log.error("successor_not_started", worker=record.worker_id, reason=str(error))
            return False
        self._follow(record)
        self._end_drain_by(record, now + self._config.settings.drain_timeout + DRAIN_GRACE_S)
        log.warning("successor_started", worker=record.worker_id, pid=record.child.pid, reason=record.reason)
        return True

    def _exited(self, record: WorkerRecord) -> None:
        ended = record.child.reap()
        if ended is None:
            return
        now = self._loop.now()
        if record.channel is not None:
            record.channel.read_rest()
            record.channel.close()
        self._loop.remove(record.child.pidfd)
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
        why = self._why(record, ended)
        if was is not WorkerStatus.LOST and not self._take_over(record, why, now):
            self._lose(record, why, now)

    def _lose(self, record: WorkerRecord, reason: str, now: float) -> None:
        record.reason = reason
        was = record.status
        record.advance(WorkerEvent.VANISHED)
        log.error("worker_lost", worker=record.worker_id, pool=record.browser_type, was=was, reason=reason)
        self.drains.lost(record)
        self._count_death(record, now)
        self._tell("worker_lost", record)

    def _sweep(self, now: float) -> None:
        """Kill what ended workers have left, until nothing is; then their directories go."""
        due = [record for record in self.records.values() if now >= record.sweep_at]
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
            if self._config.runtime.remove_worker_dir(record.worker_id):
                log.debug("worker_directory_removed", worker=record.worker_id)
            del self.records[record.worker_id]

    def learn_trees(self) -> Table:
        """See which processes belong to whom now; the table that told it (empty without workers)."""
        live = [record for record in self.records.values() if not record.ended]
        table = process_table() if live else {}
        for record in live:
            record.tree.note(table)
        self._tree_at = math.inf  # the memory meter asks again, at each of its samples
        return table

    # Small things

    def _count_death(self, record: WorkerRecord, now: float) -> None:
        if not record.planned and not record.counted:
            record.counted = True
            self._pools[record.browser_type].failed(record, now)

    @staticmethod
    def _why(record: WorkerRecord, ended: Exit) -> str:
        if record.child.was_killed:
            return f"{record.reason or 'asked to end'}: did not end in time, killed"
        return record.reason or f"worker ended with {ended}"

    def _send(self, record: WorkerRecord, name: str, data: Data) -> None:
        try:
            if record.channel is not None:
                record.channel.send(name, data)
        except LinkFullError as error:
            log.error("command_dropped", worker=record.worker_id, command=name, reason=str(error))

    def _end_drain_by(self, record: WorkerRecord, deadline: float) -> None:
        record.drain_by = min(record.drain_by, deadline)  # a successor gets what is left of it, not a new one
        record.child.end_by(math.inf, record.drain_by)

    def _silent_at(self, record: WorkerRecord) -> float:
        if record.channel is None or record.status is WorkerStatus.LOST:
            return math.inf
        return record.channel.heard_at + self._config.settings.worker_lost_threshold

    def _next(self, record: WorkerRecord) -> float:
        if record.ended:
            return record.sweep_at
        available_by = record.available_by if record.status in _COMING else math.inf
        return min(self._tree_at, record.child.deadline(), self._silent_at(record), available_by)

    def _greeting(self) -> Data:
        return {"lostThresholdS": self._config.settings.worker_lost_threshold}


_EVENTS: Final[dict[str, Callable[[Workers, WorkerRecord, Data], None]]] = {
    "launched": Workers._launched,
    "held": Workers._held,
    "available": Workers._available,
    "draining": Workers._draining,
    "stopped": Workers._stopped,
    "failed": Workers._failed,
}


def _count(value: object) -> int:
    """A figure that a child reports. Raises ValueError for anything else."""
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def select(records: Iterable[WorkerRecord], data: Data) -> list[WorkerRecord]:
    """The workers that a drain request means: {"worker"|"workerId": id}, {"pool": type} or {"all": true}."""
    worker_id = data.get("worker", data.get("workerId"))
    if worker_id is not None:
        return [record for record in records if record.worker_id == worker_id]
    if data.get("pool") is not None:
        return [record for record in records if record.browser_type == data["pool"]]
    return list(records) if data.get("all") else []
