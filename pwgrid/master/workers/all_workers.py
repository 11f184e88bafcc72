"""All workers: takes what they report and how they end, lets each one's `life` decide what to do, and does it."""

from __future__ import annotations

import errno
import math
import os
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WARM, WorkerEvent, WorkerStatus
from pwgrid.control.frames import Frame
from pwgrid.control.master_side import MasterSide
from pwgrid.control.server import Reconnect
from pwgrid.master.adoption import ChildFileWriter
from pwgrid.master.child import Exit
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy import validate_reports
from pwgrid.master.policy.worker_plan import Drain, Limits, Serve, ShortenDrain, Spawn, next_start, plan
from pwgrid.master.policy.worker_state_machine import REPORTS, Action, Phase, Purpose
from pwgrid.master.proxies import Proxies
from pwgrid.master.workers.clean_up import SHORTAGE_S, CleanUp
from pwgrid.master.workers.one_worker import ManagedWorker, adopt_worker, fork_successor, fork_worker
from pwgrid.master.workers.pool import Pool
from pwgrid.runtime.browser_process_tree import Table, process_table
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.process_identity import find_process
from pwgrid.settings.pools import PoolSettings

log = structlog.get_logger()

_NO_MORE_PROCESSES: Final = " (no more processes may be started: raise TasksMax=, --pids-limit or ulimit -u)"
"""Which limit it is, the unit's, the container's or the user's, the error does not tell."""

OUTDATED: Final = "host file replaced"
"""Why a worker is replaced that asks for it."""

DRAINED_KEPT: Final = 256


class Workers:
    """`records` are the workers by id, `pools` those that are configured, and removed ones until their last
    worker has ended.

    `registry_seen`: a worker has registered, so Redis was there; from then on the grid goes on without Redis, too.
    `drained` has the last ends of workers, the newest last: how many sessions were `cut`, whether the drain `timedOut`
    (else they were cut on request), and the reason if the worker was `lost` instead.
    """

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter, proxies: Proxies) -> None:
        self.records: dict[str, ManagedWorker] = {}
        self.registry_seen = False
        self.drained: deque[Frame] = deque(maxlen=DRAINED_KEPT)
        self._loop = loop
        self._config = config
        self.pools = {name: self._new_pool(pool) for name, pool in config.settings.pools_wanted().items()}
        self._files = files
        self._proxies = proxies
        self._trees = loop.timer(self._learn_trees_in_time)
        self._clean_up = CleanUp(loop, config.runtime, self._cleaned_up)

    def _new_pool(self, settings: PoolSettings) -> Pool:
        return Pool(settings, self._loop.now(), self.records)

    # The pools, and what they should have

    def follow_settings(self) -> None:
        """Take over the configured pools, in their order; a pool that is no longer configured ends with its last
        worker."""
        there = dict(self.pools)
        self.pools.clear()
        for name, settings in self._config.settings.pools_wanted().items():
            pool = there.pop(name, None)
            if pool is None:
                log.info("pool_added", pool=name, workers=settings.workers)
                pool = self._new_pool(settings)
            pool.follow(settings)
            self.pools[name] = pool
        for pool in there.values():
            pool.remove()
        self.pools.update(there)

    def observe(self, now: float, host_guard: str | None) -> None:
        """See how the pools are; `host_guard` says why no worker may be started now."""
        for pool in list(self.pools.values()):
            if pool.is_removed and not pool.records:
                del self.pools[pool.name]
            pool.host_guard = host_guard
            pool.observe(now)

    def follow_plan(self, now: float, limits: Limits) -> float:
        """Start, drain and call workers as the plan says. Returns when the next backoff ends (monotonic seconds): there
        may be more to do from then on."""
        wanted = {name: pool.wanted(now) for name, pool in self.pools.items()}
        settings = self._config.settings
        for step in plan(wanted, [record.view(now, settings) for record in self.records.values()], now, limits):
            match step:
                case Spawn():
                    self.start(step.pool, spare=step.spare)
                case Serve():
                    record = self.records[step.worker_id]
                    self._do(record, record.life.serve(now))
                case Drain():
                    self.drain(self.records[step.worker_id], step.reason, Purpose.RECYCLE)
                case ShortenDrain():
                    self.drain(self.records[step.worker_id], step.reason, Purpose.END)
        return next_start((pool.backoff.not_before for pool in self.pools.values()), now)

    # What is done with them

    def start(self, name: str, *, spare: bool) -> None:
        """Fork a worker for a pool; if that fails, the pool backs off."""
        pool, registry_seen = self.pools[name], self.registry_seen
        try:
            record, control = fork_worker(
                self._loop, self._config, pool.settings, spare=spare, registry_seen=registry_seen
            )
        except OSError as error:
            now, reason = self._loop.now(), f"cannot start a worker: {error.strerror or error}"
            if error.errno == errno.EAGAIN:
                reason += _NO_MORE_PROCESSES
            pool.died(reason, now, started_at=now)
            log.error("worker_not_started", pool=name, reason=reason)
            return
        record.settings = self._files.settings_of_pool(pool.settings)
        pool.tally.starts += 1
        self._follow(record, control)
        log.info("worker_started", worker=record.worker_id, pool=name, pid=record.child.pid, spare=spare)

    def adopt(self, states: Iterable[ChildState]) -> None:
        """Take over the workers that another master forked; they have WORKER_LOST_THRESHOLD to reconnect."""
        for state in states:
            record = adopt_worker(self._loop, self._config, state)
            self._see_pool(record)
            self.registry_seen |= record.life.status is not WorkerStatus.STARTING
            self._follow(record)
            log.info("worker_adopted", worker=record.worker_id, pool=record.pool, pid=record.child.pid)
        if self._config.kept_open is not None:
            for fd in self._config.kept_open.ipc.values():  # of workers that cannot be used: their browser servers end
                os.close(fd)

    def _see_pool(self, record: ManagedWorker) -> None:
        """Add the worker's pool, as a removed one, if this master's configuration does not have it."""
        if record.pool not in self.pools:
            settings = replace(self._config.settings.short_form(record.browser_type), name=record.pool, workers=0)
            self.pools[record.pool] = pool = self._new_pool(settings)
            pool.remove()

    def attach(self, reconnect: Reconnect) -> bool:
        """Take a worker's new connection; False when there is no such worker (any more).

        Raises ProtocolError when the first frame is not valid for the link.
        """
        record = self.records.get(reconnect.name)
        if record is None or record.link is None or record.child.pid != reconnect.pid:
            return False
        record.link.attach(reconnect.sock, reconnect.init)
        for each in reconnect.sockets:
            if record.ipc is None:
                record.ipc = each
            else:
                each.close()
        return True

    def drain(self, record: ManagedWorker, reason: str, wanted: Purpose) -> None:
        """Have a worker drain and end; if it does not end in time, it is killed."""
        was = record.life.status
        todo = record.life.drain(wanted, reason, self._loop.now(), self._config.settings)
        self._note_drain(record, was, "operator" if wanted is Purpose.END_FOR_OPERATOR else reason)
        if todo:
            is_now = record.life.purpose is Purpose.END_NOW
            log.info("worker_drain_asked", worker=record.worker_id, reason=reason, now=is_now, active=record.active)
        self._do(record, todo)

    def mark(self, record: ManagedWorker, reason: str | None) -> None:
        """Have the plan replace a worker when its turn comes, or (None) not any more. The next master knows it, too."""
        record.recycle = reason
        self._files.worker(record)

    def end_session(self, worker_id: str, session_id: str, reason: str) -> None:
        """Tell a worker to end one of its sessions; does nothing when either is gone."""
        record = self.records.get(worker_id)
        if record is not None:
            self._send(record, "end_session", {"sessionId": session_id, "reason": reason})

    def kill(self, record: ManagedWorker, reason: str) -> None:
        """Kill a worker that takes too much memory, and its tree; its sessions fail for `reason`."""
        self._do(record, record.life.takes_too_much_memory(reason))

    def tell_all(self, name: str, data: Frame) -> None:
        for record in self.records.values():
            self._send(record, name, data)

    def kill_all(self) -> None:
        for record in self.records.values():
            self._do(record, record.life.kill())

    def learn_trees(self) -> Table:
        """Update which processes belong to which worker; returns the process table (empty without workers)."""
        live = [record for record in self.records.values() if record.life.has_process]
        table = process_table() if live else Table()
        for record in live:
            record.tree.note(table)
        self._trees.cancel()  # the memory meter asks again, at each of its samples
        return table

    def _learn_trees_in_time(self) -> None:
        try:
            self.learn_trees()
        except OSError as error:  # no descriptor is free
            log.warning("processes_not_listed", reason=error.strerror or str(error))
            self._trees.arm(self._loop.now() + SHORTAGE_S)

    # What workers report. Content that makes no sense raises ValueError, which ends its connection.

    def _heard(self, record: ManagedWorker, frame: Frame) -> None:
        now, life = self._loop.now(), record.life
        match frame:
            case {"t": "init"}:
                if life.phase is Phase.AWAITED:
                    log.info("worker_came_back", worker=record.worker_id, pid=record.child.pid)
                life.opens()
                record.slots = validate_reports.count(frame.get("slots"))
            case {"t": "state", "data": data}:
                if life.phase is Phase.REPEATING:
                    self._do(record, life.comes_back(data.get("status"), now, self._config.settings))
                    self._note_warm(record, is_repeated=True)
                record.active = validate_reports.count(data.get("active"))
                record.runs = validate_reports.holders(data.get("runs"))
                self.pools[record.pool].count_sessions(record, validate_reports.count(data.get("lifetime")), now)
            case {"t": "stopping"} if life.status in BEFORE_A_DRAIN:
                self._do(record, life.says(WorkerEvent.DRAINS, "stopping", now, self._config.settings))
            case {"t": "event", "name": name, **rest}:
                self._heard_event(record, name, rest.get("data"))

    def _heard_event(self, record: ManagedWorker, name: str, data: Any) -> None:
        match name, data:
            case "launched", {}:
                record.launched = validate_reports.launched(data)
                self._files.worker(record)
                self._trees.arm(self._loop.now())  # learn the browser's processes while they are still below the worker
            case "canary", {}:
                tally, seconds = self.pools[record.pool].tally, validate_reports.seconds(data.get("s"))
                tally.tried(seconds or 0.0, is_well=bool(data.get("ok")))
            case "outdated", {}:
                self.mark(record, record.recycle or validate_reports.sentence(data.get("reason"), OUTDATED))
            case _, {} if name in REPORTS:
                self._said(record, name, data)
            case _:
                log.warning("event_unknown", worker=record.worker_id, name=name)

    def _said(self, record: ManagedWorker, name: str, data: Frame) -> None:
        now, life = self._loop.now(), record.life
        if name == "stopped":
            cut, timed_out = validate_reports.count(data.get("cut")), bool(data.get("timedOut"))
            pool, went_on_s = self.pools[record.pool], validate_reports.seconds(data.get("drainS"))
            pool.drain_timeouts += timed_out
            if went_on_s is not None:
                pool.tally.drain.observe(went_on_s)
            self.drained.append({"id": record.worker_id, "cut": cut, "timedOut": timed_out, "lost": None})
        was, is_repeated = life.status, life.phase is Phase.REPEATING
        reason = validate_reports.sentence(data.get("reason"), "asked")
        drain_s = validate_reports.seconds(data.get("timeoutS"))
        self._do(record, life.says(REPORTS[name], reason, now, self._config.settings, drain_s))
        self._note_warm(record, is_repeated=is_repeated)
        if not is_repeated:
            self._note_drain(record, was, reason)
        if name == "draining" and "active" in data:
            record.active, record.has_told_drain = validate_reports.count(data["active"]), True
        if name == "draining" and (replacement := self.records.get(str(data.get("replacement")))) is not None:
            self._do(replacement, replacement.life.serves_in_place(now))
        elif name == "available" and life.status is WorkerStatus.AVAILABLE:
            log.info(
                "worker_available",
                worker=record.worker_id,
                after_s=round(now - record.forked_at, 3),
                was_spare=was is not WorkerStatus.STARTING,
                browser=record.launched.get("browserVersion"),
                node=record.launched.get("nodePid"),
            )
        elif name == "failed":
            log.error("worker_failed", worker=record.worker_id, pool=record.pool, reason=reason)

    def _note_warm(self, record: ManagedWorker, *, is_repeated: bool) -> None:
        self.registry_seen |= record.life.status is WorkerStatus.AVAILABLE
        if record.life.status not in WARM or record.warm_since <= self._loop.now():
            return
        if is_repeated:  # it also waited for this master, so the time since the fork is no launch time
            record.warm_since = record.forked_at
        else:
            record.warm_since = self._loop.now()
            pool, took_s = self.pools[record.pool], record.warm_since - record.forked_at
            pool.starts_s.append(took_s)
            pool.tally.launch.observe(took_s)

    def _note_drain(self, record: ManagedWorker, was: WorkerStatus, reason: str) -> None:
        if was in BEFORE_A_DRAIN and record.life.status is WorkerStatus.DRAINING:
            self.pools[record.pool].tally.drains(reason)

    # How workers end

    def _on_silence(self, record: ManagedWorker, reason: str) -> None:
        self._do(record, record.life.falls_silent(reason, taken_over=self._can_be_taken_over(record)))

    def _exited(self, record: ManagedWorker, ended: Exit) -> None:
        if record.link is not None:
            record.link.read_what_is_left()
        record.tree.worker_pid = 0  # from here on another process may have the pid
        if ended.is_left:
            self._count_among_its_tree(record)
        life, was, reason = record.life, record.life.status, _why(record, ended)
        # The exit code of an adopted worker is unknown; but the last step of a clean end is to remove its directory.
        is_clean = ended.is_clean or (ended.is_unknown and not record.tree.directory.exists())
        todo = life.exits(reason, is_clean=is_clean, taken_over=self._can_be_taken_over(record))
        tell = log.info if Action.TELL_GONE in todo else log.error
        figures = {"pid": record.child.pid, "exit": str(ended), "was": was.value, "reason": life.reason}
        tell("worker_exited", worker=record.worker_id, **figures)
        self._do(record, todo)

    @staticmethod
    def _count_among_its_tree(record: ManagedWorker) -> None:
        """What could not be killed is tried again with the rest that the worker leaves."""
        with suppress(OSError):  # no descriptor is free
            process = find_process(record.child.pid, record.child.create_time)
            record.tree.known |= {process} if process is not None else set()

    def _can_be_taken_over(self, record: ManagedWorker) -> bool:
        """Whether there is a browser server that a successor may take over."""
        node_pid = record.launched.get("nodePid")
        if record.ipc is None or not isinstance(node_pid, int) or not record.life.may_be_taken_over(self._loop.now()):
            return False
        try:
            return record.tree.has(node_pid, process_table())
        except OSError as error:  # no descriptor is free, nor would one be for a successor
            log.error("browser_server_not_found", worker=record.worker_id, reason=error.strerror or str(error))
            return False

    def _fork_successor(self, record: ManagedWorker) -> None:
        """Fork a process that stays until the sessions of the dead one have ended: its browser server lives."""
        try:
            control = fork_successor(self._loop, self._config, record, self.pools[record.pool].settings)
        except OSError as error:
            log.error("successor_not_started", worker=record.worker_id, reason=str(error))
            self._do(record, record.life.gets_no_successor())
            return
        record.life.gets_successor(self._loop.now(), self._config.settings)
        self._follow(record, control)
        log.warning("successor_started", worker=record.worker_id, pid=record.child.pid, reason=record.life.reason)

    def _cleaned_up(self, worker_id: str) -> None:
        record = self.records.pop(worker_id)
        if record.ipc is not None:
            record.ipc.close()
        record.life.gets_cleaned_up()

    def tell_left(self) -> None:
        """Log which processes the master could not kill, when it ends."""
        try:
            pids = self._clean_up.left()
        except OSError as error:  # no descriptor is free
            log.warning("processes_not_listed", reason=error.strerror or str(error))
            return
        if pids:
            log.error("processes_left", pids=pids)

    # Doing what `life` decides

    def _do(self, record: ManagedWorker, todo: Iterable[Action]) -> None:
        for what in todo:
            self._do_one(record, what)
        record.late.arm(record.life.ready_by)
        record.child.end_by(math.inf, record.life.drain_by)
        self._files.worker(record)

    def _do_one(self, record: ManagedWorker, what: Action) -> None:
        match what:
            case Action.COUNT_DEATH:
                self.pools[record.pool].failed(record, self._loop.now())
            case Action.SEND_SERVE:
                self._send(record, "serve", {})
            case Action.SEND_DRAIN:
                self._send(record, "drain", self._drain_command(record))
            case Action.END_PROCESS:
                record.child.end_now()
            case Action.KILL_PROCESS:
                record.child.end_by(self._loop.now(), self._loop.now())
            case Action.CUT_LINK:
                self._cut_link(record)
            case Action.FORK_SUCCESSOR:
                self._fork_successor(record)
            case Action.TELL_LOST:
                reason = record.life.reason
                log.error("worker_lost", worker=record.worker_id, pool=record.pool, reason=reason)
                self.drained.append({"id": record.worker_id, "cut": record.active, "timedOut": False, "lost": reason})
                self._tell_proxy(record, what.value)
            case Action.CLEAN_UP:
                self._clean_up.begin(record.worker_id, record.tree)
            case _:
                self._tell_proxy(record, what.value)

    @staticmethod
    def _cut_link(record: ManagedWorker) -> None:
        if record.link is not None:
            record.link.close(record.life.reason or "ended")
            record.link = None

    def _drain_command(self, record: ManagedWorker) -> Frame:
        life = record.life
        timeout_s = round(max(0.0, life.sessions_until - self._loop.now()), 1)
        is_recycle, is_now = life.purpose is Purpose.RECYCLE, life.purpose is Purpose.END_NOW
        return {"reason": life.reason, "timeoutS": timeout_s, "recycle": is_recycle, "now": is_now}

    def _tell_proxy(self, record: ManagedWorker, command: str) -> None:
        about = {"workerId": record.worker_id, "browserType": record.browser_type, "reason": record.life.reason}
        self._proxies.send(command, about)

    @staticmethod
    def _send(record: ManagedWorker, name: str, data: Frame) -> None:
        """Send a command over its link, where it waits if an adopted worker has not reconnected yet."""
        if record.link is not None:
            record.link.send(name, data)

    def _follow(self, record: ManagedWorker, control: socket.socket | None = None) -> None:
        """Watch its process and its link from here on."""
        lost_s = self._config.settings.worker_lost_threshold
        record.link = MasterSide(
            self._loop,
            record.worker_id,
            lost_s,
            lambda frame: self._heard(record, frame),
            lambda: self._on_silence(record, f"silent for {lost_s:g} s"),
            adopts=record.life.phase is Phase.AWAITED,
        )
        if control is not None:
            record.link.attach(control)
        record.child.watch(lambda ended: self._exited(record, ended))
        record.late = self._loop.timer(lambda: self._on_late(record))
        self._trees.arm(min(self._trees.when, self._loop.now() + self._config.settings.memory_check_interval))
        self.records[record.worker_id] = record
        self._do(record, [])  # for its deadlines and its file

    def _on_late(self, record: ManagedWorker) -> None:
        self._on_silence(record, f"not available {self._loop.now() - record.forked_at:.0f} s after its start")


def _why(record: ManagedWorker, ended: Exit) -> str:
    if ended.was_killed:
        how = "and cannot be killed" if ended.is_left else "killed"
        return f"{record.life.reason or 'asked to end'}: did not end in time, {how}"
    return record.life.reason or f"worker ended with {ended}"
