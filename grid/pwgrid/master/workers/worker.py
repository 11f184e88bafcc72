"""One worker: what the master knows of it, how it gets its process, what it reports, and how it ends.

It is forked, adopted from another master, or a successor of one that died. Its `life` decides what to do about each
thing that happens; this does it.
"""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psutil
import structlog

from pwgrid.common.playwright_version import minor_of
from pwgrid.common.reasons import Reason, WorkerEnd, of_sessions
from pwgrid.common.selectors_loop import Loop, Timer
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WARM, WorkerEvent, WorkerStatus
from pwgrid.control.frames import Frame
from pwgrid.control.master_side import MasterSide
from pwgrid.control.server import Reconnect
from pwgrid.master.child import Child, Exit, adopted_child, fork_linked
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy import validate_reports
from pwgrid.master.policy.validate_reports import KeptSession
from pwgrid.master.policy.worker_limits import Footprint
from pwgrid.master.policy.worker_plan import PlannedWorker
from pwgrid.master.policy.worker_state_machine import ASKED, REPORTS, Action, Phase, Purpose, WorkerLife
from pwgrid.master.workers.clean_up import CleanUp
from pwgrid.master.workers.pool import Pool
from pwgrid.runtime.browser_process_tree import Tree, process_table
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.directory import worker_dir
from pwgrid.runtime.process_identity import find_process

log = structlog.get_logger()

_STOPPING: Final = Reason(WorkerEnd.NOT_SAID, "stopping")
_OUTDATED: Final = Reason(WorkerEnd.HOST_FILE)
_ASKED_TO_END: Final = Reason(WorkerEnd.NOT_SAID, "asked to end")


@dataclass(slots=True)
class Surroundings:
    """What all workers of a master share.

    `by_id` are the workers. `tell_proxy(command, data)` sends a command to the proxies. `learn_trees` fires when the
    workers' processes have to be looked for. `registry_seen`: a worker has registered, so Redis was there; from then on
    the grid goes on without Redis, too. `drained` has the last ends of workers, the newest last: how many sessions were
    `cut`, whether the drain `timedOut` (else they were cut on request), and the reason if the worker was `lost`
    instead.
    """

    loop: Loop
    config: MasterConfig
    files: ChildFileWriter
    tell_proxy: Callable[[str, Frame], None]
    clean_up: CleanUp
    learn_trees: Timer
    drained: deque[Frame]
    by_id: dict[str, Worker] = field(default_factory=dict)
    told: Frame = field(default_factory=dict)
    """The part of the workers' state that is the same for all."""
    registry_seen: bool = False


@dataclass(eq=False, slots=True)
class Worker:
    """One worker. Times are monotonic seconds.

    `child` is its process, `link` the control link to it, and `ipc` the master's copy of the IPC link to its browser
    server, which so outlives the process; an adopted worker sends it when it reconnects. `runs`: the names, runs and
    label keys of the clients in its slots, as far as these gave any. `settings` and `code` are digests of those it was
    forked with, `launched` is what it reported of its browser. `launches` are own browsers that `lifetime` does not
    count; `counted_at`: when it last reported both.
    `recycle`: why it should be replaced. `late` fires at `life.ready_by`.
    """

    shared: Surroundings
    worker_id: str
    pool: Pool
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
    launches: int = 0
    counted_at: float = math.inf
    slots: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)
    own_browsers: int = 0
    """Sessions that have browsers of their own."""
    lowered_browsers: frozenset[psutil.Process] = frozenset()
    """Browsers that got a lower priority, also those that have ended since (processor_watch.py)."""
    kept: int = 0
    """Sessions without a client, whose browsers wait for one."""
    oldest_kept: KeptSession | None = None
    has_spent_kept: bool = False
    """Whether it was told to end those for its memory, and its memory has not been measured as enough since."""
    ended_browsers: dict[int, float] = field(default_factory=dict)
    """The pids of those that it was told to end for its memory, and when (monotonic seconds)."""
    suspicion: str | None = None
    """Why it takes no new client now: its browser may be sick."""
    memory: Footprint = field(default_factory=Footprint)
    recycle: Reason[WorkerEnd] | None = None
    told: Frame = field(default_factory=dict)
    """The state that it gets."""
    has_told_drain: bool = False
    """Whether `active` was reported after its drain began."""

    # What others see of it

    def view(self, now: float) -> PlannedWorker:
        lingers = self.life.lingers(now, self.shared.config.settings)
        return PlannedWorker(
            self.worker_id,
            self.pool.name,
            self.life.status,
            self.active,
            started_at=self.forked_at,
            recycle=self.recycle,
            spare=self.life.purpose is Purpose.SPARE,
            lingers_until=self.life.sessions_until if lingers else None,
        )

    @property
    def reason(self) -> Reason[WorkerEnd] | None:
        """Why it ends, or will be replaced."""
        return self.life.reason or self.recycle

    @property
    def playwright(self) -> str:
        """The version that it runs, as major.minor: until it is replaced, it may be another one than its pool's."""
        return minor_of(self.launched.get("playwrightVersion") or self.pool.settings.playwright)

    def status_reply(self) -> dict[str, Any]:
        reason = self.reason
        return {
            "id": self.worker_id,
            "pool": self.pool.name,
            "browserType": self.browser_type,
            "pid": self.child.pid,
            "nodePid": self.launched.get("nodePid"),
            "status": self.life.status.value,
            "phase": self.life.phase.value,
            "active": self.active,
            "ownBrowsers": self.own_browsers,
            "kept": self.kept,
            "lifetime": self.lifetime,
            "launches": self.launches,
            "slots": self.slots,
            "startedAt": self.child.started_at,
            "rssMib": self.memory.rss_mib,
            "memoryMib": self.memory.memory_mib,
            "drainLeftS": self._drain_left_s(),
            "reason": _told(reason),
            "reasonKind": None if reason is None else reason.kind.value,
            "suspect": self.suspicion,
            "playwrightVersion": self.launched.get("playwrightVersion"),
        }

    def _drain_left_s(self) -> float | None:
        """How many seconds its sessions may still go on; None when it does not drain."""
        if self.life.sessions_until == math.inf:
            return None
        return round(max(0.0, self.life.sessions_until - time.monotonic()), 1)

    # What is asked of it

    def serve(self) -> None:
        """Have a spare serve, now or as soon as it is warm."""
        self._do(self.life.serve(self.shared.loop.now()))

    def drain(self, reason: Reason[WorkerEnd], wanted: Purpose) -> None:
        """Have it drain and end; if it does not end in time, it is killed."""
        was = self.life.status
        todo = self.life.drain(wanted, reason, self.shared.loop.now(), self.shared.config.settings)
        self._count_drain(was, reason)
        if todo:
            is_now = self.life.purpose is Purpose.END_NOW
            log.info("worker_drain_asked", worker=self.worker_id, reason=str(reason), now=is_now, active=self.active)
        self._do(todo)

    def mark(self, reason: Reason[WorkerEnd] | None) -> None:
        """Have the plan replace it when its turn comes, or (None) not any more. The next master knows it, too."""
        self.recycle = reason
        self._write_file()

    def takes_too_much_memory(self, reason: Reason[WorkerEnd]) -> None:
        """Kill it and its tree; its sessions fail for `reason`."""
        self._do(self.life.takes_too_much_memory(reason))

    def end_oldest_kept(self, reason: str) -> None:
        """Have it end the session that it has kept longest, if it has one."""
        if self.oldest_kept is None or self.link is None:
            return
        log.warning("kept_session_ended", worker=self.worker_id, session=self.oldest_kept.session_id, reason=reason)
        self.send("end_kept", {"sessionId": self.oldest_kept.session_id})
        self.oldest_kept = None  # until it says which is the next one

    def end_all_kept(self, reason: str) -> bool:
        """Have it end all kept sessions, once. Returns False if that was asked already, or if it has none."""
        if self.has_spent_kept or not self.kept or self.link is None:
            return False
        log.warning("kept_sessions_ended", worker=self.worker_id, sessions=self.kept, reason=reason)
        self.send("end_kept", {"sessionId": None})
        self.has_spent_kept = True
        return True

    def end_browser(self, pid: int, now: float, reason: str) -> None:
        """Have it end the session that has this browser alone, if one has."""
        log.warning("own_browser_ended", worker=self.worker_id, pid=pid, reason=reason)
        self.send("end_browser", {"pid": pid})
        self.ended_browsers[pid] = now

    def kill(self) -> None:
        """Kill it and its tree at once."""
        self._do(self.life.kill())

    def send(self, name: str, data: Frame) -> None:
        """Send a command over its link, where it waits if an adopted worker has not reconnected yet."""
        if self.link is not None:
            self.link.send(name, data)

    def tell(self, **news: object) -> None:
        """Send it its state with what is new in it, if anything is."""
        told = {**self.told, **news}
        if told != self.told and self.link is not None:
            self.told = told
            self.link.push_state(told)

    # What it reports. Content that makes no sense raises ValueError, which ends its connection.

    def attach(self, reconnect: Reconnect) -> bool:
        """Take its new connection; False when it is not this worker's.

        Raises ProtocolError when the first frame is not valid for the link.
        """
        if self.link is None or self.child.pid != reconnect.pid:
            return False
        self.link.attach(reconnect.sock, reconnect.init)
        for each in reconnect.sockets:
            if self.ipc is None:
                self.ipc = each
            else:
                each.close()
        return True

    def _heard(self, frame: Frame) -> None:
        now, life, settings = self.shared.loop.now(), self.life, self.shared.config.settings
        match frame:
            case {"t": "init"}:
                if life.phase is Phase.AWAITED:
                    log.info("worker_came_back", worker=self.worker_id, pid=self.child.pid)
                life.opens()
                self.slots = validate_reports.count(frame.get("slots"))
            case {"t": "state", "data": data}:
                life.has_profiles = bool(data.get("hasProfiles"))
                if life.phase is Phase.REPEATING:
                    self._do(life.comes_back(data.get("status"), now, settings))
                    self._note_warm(is_repeated=True)
                self.active = validate_reports.count(data.get("active"))
                self.runs = validate_reports.holders(data.get("runs"))
                self.own_browsers = validate_reports.count(data.get("ownBrowsers"))
                self.kept = validate_reports.count(data.get("kept"))
                self.oldest_kept = validate_reports.kept_session(data.get("oldestKept"))
                self.suspicion = validate_reports.sentence(data.get("suspect"), "") or None
                lifetime, launches = (validate_reports.count(data.get(name)) for name in ("lifetime", "launches"))
                self.pool.count_sessions(self, lifetime, launches, now)
            case {"t": "stopping"} if life.status in BEFORE_A_DRAIN:
                self._do(life.says(WorkerEvent.DRAINS, _STOPPING, now, settings))
            case {"t": "event", "name": "launched", "data": data}:
                self.launched = validate_reports.launched(data)
                self._write_file()
                self.shared.learn_trees.arm(now)  # the browser's processes while they are still below the worker
            case {"t": "event", "name": "canary" | "errors" | "outdated" as name, "data": data}:
                self._note(name, data)
            case {"t": "event", "name": name, "data": data} if name in REPORTS:
                self._says(name, data)
            case {"t": "event", "name": name}:
                log.warning("event_unknown", worker=self.worker_id, name=name)

    def _note(self, name: str, data: Frame) -> None:
        """Count the tries of its browser, or errors in its browser server; have it replaced if its browser may not read
        a file that it needs."""
        tally = self.pool.tally
        if name == "outdated":
            self.mark(self.recycle or Reason.read(data.get("reason"), _OUTDATED))
            return
        if name == "canary":
            seconds = validate_reports.seconds(data.get("s")) or 0.0
            tally.tried(self.playwright, seconds, is_well=bool(data.get("ok")))
            return
        for kind, number in dict(data.get("counts", {})).items():
            tally.server_failed(kind, validate_reports.count(number))

    def _says(self, name: str, data: Frame) -> None:
        """Take one of REPORTS."""
        now, life = self.shared.loop.now(), self.life
        if name == "stopped":
            self._count_stop(data)
        was, is_repeated = life.status, life.phase is Phase.REPEATING
        reason = Reason.read(data.get("reason"), ASKED)
        drain_s = validate_reports.seconds(data.get("timeoutS"))
        self._do(life.says(REPORTS[name], reason, now, self.shared.config.settings, drain_s))
        self._note_warm(is_repeated=is_repeated)
        if not is_repeated:
            self._count_drain(was, reason)
        if name == "draining" and "active" in data:
            self.active, self.has_told_drain = validate_reports.count(data["active"]), True
        if name == "draining" and (replacement := self.shared.by_id.get(str(data.get("replacement")))) is not None:
            replacement._do(replacement.life.serves_in_place(now))
        elif name == "available" and life.status is WorkerStatus.AVAILABLE:
            log.info(
                "worker_available",
                worker=self.worker_id,
                after_s=round(now - self.forked_at, 3),
                was_spare=was is not WorkerStatus.STARTING,
                browser=self.launched.get("browserVersion"),
                node=self.launched.get("nodePid"),
            )
        elif name == "failed":
            log.error("worker_failed", worker=self.worker_id, pool=self.pool.name, reason=str(reason))

    def _count_stop(self, data: Frame) -> None:
        cut, timed_out = validate_reports.count(data.get("cut")), bool(data.get("timedOut"))
        went_on_s = validate_reports.seconds(data.get("drainS"))
        self.pool.drain_timeouts += timed_out
        if went_on_s is not None:
            self.pool.tally.drain.observe(went_on_s)
        self.shared.drained.append({"id": self.worker_id, "cut": cut, "timedOut": timed_out, "lost": None})

    def _count_drain(self, was: WorkerStatus, reason: Reason[WorkerEnd]) -> None:
        if was in BEFORE_A_DRAIN and self.life.status is WorkerStatus.DRAINING:
            self.pool.tally.drains(reason)

    def _note_warm(self, *, is_repeated: bool) -> None:
        now = self.shared.loop.now()
        self.shared.registry_seen |= self.life.status is WorkerStatus.AVAILABLE
        if self.life.status not in WARM or self.warm_since <= now:
            return
        if is_repeated:  # it also waited for this master, so the time since the fork is no launch time
            self.warm_since = self.forked_at
        else:
            self.warm_since = now
            self.pool.launched_after(self.warm_since - self.forked_at)

    # How it ends

    def _falls_silent(self, reason: Reason[WorkerEnd]) -> None:
        self._do(self.life.falls_silent(reason, taken_over=self._can_be_taken_over()))

    def _exited(self, ended: Exit) -> None:
        if self.link is not None:
            self.link.read_what_is_left()
        self.tree.worker_pid = 0  # from here on another process may have the pid
        if ended.is_left:
            self._count_among_its_tree()
        was = self.life.status
        # The exit code of an adopted worker is unknown; but the last step of a clean end is to remove its directory.
        is_clean = ended.is_clean or (ended.is_unknown and not self.tree.directory.exists())
        todo = self.life.exits(self._why(ended), is_clean=is_clean, taken_over=self._can_be_taken_over())
        tell = log.info if Action.TELL_GONE in todo else log.error
        figures = {"pid": self.child.pid, "exit": str(ended), "was": was.value, "reason": _told(self.life.reason)}
        tell("worker_exited", worker=self.worker_id, **figures)
        self._do(todo)

    def _why(self, ended: Exit) -> Reason[WorkerEnd]:
        reason = self.life.reason
        if ended.was_killed:
            how = "and cannot be killed" if ended.is_left else "killed"
            return replace(reason or _ASKED_TO_END, note=f"did not end in time, {how}")
        return reason or Reason(WorkerEnd.WORKER_ENDED, str(ended), ended.signal)

    def _count_among_its_tree(self) -> None:
        """Try to kill the process again with the rest that the worker leaves."""
        with suppress(OSError):  # no descriptor is free
            process = find_process(self.child.pid, self.child.create_time)
            self.tree.known |= {process} if process is not None else set()

    def _can_be_taken_over(self) -> bool:
        """Whether there is a browser server that a successor may take over."""
        node_pid = self.launched.get("nodePid")
        if self.ipc is None or not isinstance(node_pid, int):
            return False
        if not self.life.may_be_taken_over(self.shared.loop.now()):
            return False
        try:
            return self.tree.has(node_pid, process_table())
        except OSError as error:  # no descriptor is free, nor would one be for a successor
            log.error("browser_server_not_found", worker=self.worker_id, reason=error.strerror or str(error))
            return False

    def _get_successor(self) -> None:
        """Fork a process that stays until the sessions of the dead one have ended: its browser server lives."""
        loop, config = self.shared.loop, self.shared.config
        try:
            control = self._fork_successor()
        except OSError as error:
            log.error("successor_not_started", worker=self.worker_id, reason=str(error))
            self._do(self.life.gets_no_successor())
            return
        self.life.gets_successor(loop.now(), config.settings)
        self.follow(control)
        log.warning("successor_started", worker=self.worker_id, pid=self.child.pid, reason=_told(self.life.reason))

    def _fork_successor(self) -> socket.socket:
        """Fork a process in the place of the dead one, with its id, directory and browser server; returns our end of
        its control link. Raises OSError, with nothing left behind.

        Its sessions have what is left of a drain that was under way, and at most the time of any recycle.
        """
        loop, config = self.shared.loop, self.shared.config
        ipc, node_pid = self.ipc, self.launched["nodePid"]
        assert ipc is not None
        until = min(self.life.sessions_until, loop.now() + config.settings.recycle_drain_timeout)
        pool = replace(self.pool.settings, browser_type=self.browser_type)  # a reload may have changed the pool's since
        common = (*config.common(pool), self.tree.directory, self.worker_id, pool)

        def run(control: socket.socket) -> int:
            # registry_seen: it must not wait for Redis, since its sessions matter more than its registration.
            boot = WorkerArguments(
                *(*common, control, ipc, None),
                adopt_node_pid=node_pid,
                registry_seen=True,
                sessions_until=until,
                drain_time=self.life.drain_time,
                tokens_file=config.parts.tokens_file,
            )
            return config.roles.worker(boot)

        self.child, control = fork_linked(loop, run, (ipc,))
        self.tree.worker_pid = self.child.pid
        return control

    def cleaned_up(self) -> None:
        """Nothing of it is left, or what is left cannot be killed."""
        if self.ipc is not None:
            self.ipc.close()
        self.life.gets_cleaned_up()

    # Doing what `life` decides

    def _do(self, todo: Iterable[Action]) -> None:
        for what in todo:
            self._do_one(what)
        self.late.arm(self.life.ready_by)
        self.child.end_by(math.inf, self.life.drain_by)
        self._write_file()

    def _do_one(self, what: Action) -> None:
        now = self.shared.loop.now()
        match what:
            case Action.COUNT_DEATH:
                self.pool.failed(self, now)
            case Action.SEND_SERVE:
                self.send("serve", {})
            case Action.SEND_DRAIN:
                self.send("drain", self._drain_command(now))
            case Action.END_PROCESS:
                self.child.end_now()
            case Action.KILL_PROCESS:
                self.child.end_by(now, now)
            case Action.CUT_LINK:
                self._cut_link()
            case Action.FORK_SUCCESSOR:
                self._get_successor()
            case Action.TELL_LOST:
                self._tell_lost(what.value)
            case Action.CLEAN_UP:
                self.shared.clean_up.begin(self.worker_id, self.tree)
            case _:
                self._tell_proxy(what.value)

    def _cut_link(self) -> None:
        if self.link is not None:
            self.link.close(_told(self.life.reason) or "ended")
            self.link = None

    def _drain_command(self, now: float) -> Frame:
        life = self.life
        timeout_s = round(max(0.0, life.sessions_until - now), 1)
        return {"reason": _data(life.reason), "timeoutS": timeout_s, "within": life.drain_time}

    def _tell_lost(self, command: str) -> None:
        reason = _told(self.life.reason)
        log.error("worker_lost", worker=self.worker_id, pool=self.pool.name, reason=reason)
        self.shared.drained.append({"id": self.worker_id, "cut": self.active, "timedOut": False, "lost": reason})
        self._tell_proxy(command)

    def _tell_proxy(self, command: str) -> None:
        why = None if command == Action.TELL_GONE else self.life.reason
        reason = None if why is None else of_sessions(why).as_data()
        about = {"workerId": self.worker_id, "browserType": self.browser_type, "reason": reason}
        self.shared.tell_proxy(command, about)

    def _write_file(self) -> None:
        """Keep the file by which the next master knows it."""
        if self.life.has_process:
            self.shared.files.write(self._state())
        else:
            self.shared.files.forget("worker", self.worker_id)

    def _state(self) -> ChildState:
        life = self.life
        return replace(
            self.shared.files.new_state("worker", self.worker_id, self.child, self.forked_at),
            browser_type=self.browser_type,
            pool=self.pool.name,
            settings=self.settings,
            version=self.code,
            launched=self.launched,
            status=life.status.value,
            reason=_data(life.reason),
            recycle=_data(self.recycle),
            spare=life.purpose is Purpose.SPARE,
            purpose=life.purpose.name,
            is_successor=life.successors > 0,
            sessions_until=life.sessions_until if life.sessions_until < math.inf else None,
        )

    # Its process and its link

    def follow(self, control: socket.socket | None = None) -> None:
        """Watch its process and its link from here on."""
        shared = self.shared
        lost_s = shared.config.settings.worker_lost_threshold
        self.link = MasterSide(
            shared.loop,
            self.worker_id,
            lost_s,
            self._heard,
            lambda: self._falls_silent(Reason(WorkerEnd.SILENT, f"{lost_s:g} s")),
            adopts=self.life.phase is Phase.AWAITED,
        )
        if control is not None:
            self.link.attach(control)
        self.told = {}
        self.tell(**shared.told)
        self.child.watch(self._exited)
        self.late = shared.loop.timer(self._is_late)
        due = shared.loop.now() + shared.config.settings.memory_check_interval
        shared.learn_trees.arm(min(shared.learn_trees.when, due))
        shared.by_id[self.worker_id] = self
        self._do([])  # for its deadlines and its file

    def _is_late(self) -> None:
        since_s = self.shared.loop.now() - self.forked_at
        self._falls_silent(Reason(WorkerEnd.LATE, f"{since_s:.0f} s"))


def _told(reason: Reason[WorkerEnd] | None) -> str | None:
    """The sentence for people, and for the records of its sessions."""
    return None if reason is None else str(reason)


def fork_worker(shared: Surroundings, pool: Pool, *, spare: bool) -> Worker:
    """Fork a worker with a new directory, and follow it. Raises OSError, with nothing left behind."""
    loop, config = shared.loop, shared.config
    worker_id = secrets.token_hex(4)
    with ExitStack() as undo:
        undo.callback(config.runtime.remove_worker_dir, worker_id)
        directory = config.runtime.make_worker_dir(worker_id)
        ipc, ipc_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ipc.close)
        common = (*config.common(pool.settings), directory, worker_id, pool.settings)

        def run(control: socket.socket) -> int:
            boot = WorkerArguments(
                *(*common, control, ipc, ipc_child),
                registry_seen=shared.registry_seen,
                spare=spare,
                tokens_file=config.parts.tokens_file,
            )
            return config.roles.worker(boot)

        with ipc_child:
            child, control = fork_linked(loop, run, (ipc, ipc_child))
        undo.pop_all()
    now = loop.now()
    worker = Worker(
        shared,
        worker_id,
        pool,
        pool.settings.browser_type,
        life=WorkerLife.forked(Purpose.SPARE if spare else Purpose.SERVE, now, config.settings),
        child=child,
        tree=Tree(child.pid, directory),
        forked_at=now,
        code=config.parts.code,
        settings=shared.files.settings_of_pool(pool.settings),
        ipc=ipc,
    )
    pool.tally.starts += 1
    worker.follow(control)
    log.info("worker_started", worker=worker_id, pool=pool.name, pid=child.pid, spare=spare)
    return worker


def adopt_worker(shared: Surroundings, pool: Pool, state: ChildState) -> Worker:
    """Follow a worker that another master forked, also one that has ended since its file was read. It has
    WORKER_LOST_THRESHOLD to reconnect."""
    loop, config = shared.loop, shared.config
    child = adopted_child(loop, state)
    browser_type: BrowserType = state.browser_type  # type: ignore[assignment]
    purpose = Purpose.__members__.get(str(state.purpose), Purpose.SPARE if state.spare else Purpose.SERVE)
    life = WorkerLife.adopted(state.status, purpose, loop.now(), config.settings, state.sessions_until)
    life.reason, life.successors = _read(state.reason), int(state.is_successor)
    ipc = config.kept_open.ipc.pop(state.name, None) if config.kept_open else None
    worker = Worker(
        shared,
        worker_id=state.name,
        pool=pool,
        browser_type=browser_type,
        life=life,
        child=child,
        tree=Tree(0 if child.has_ended else child.pid, worker_dir(config.runtime.directory, state.name), anywhere=True),
        forked_at=state.forked_at,
        warm_since=state.forked_at if life.status in WARM else math.inf,
        settings=state.settings,
        code=state.version,
        ipc=socket.socket(fileno=ipc) if ipc is not None else None,
        launched=state.launched,
        recycle=_read(state.recycle),
    )
    shared.registry_seen |= life.status is not WorkerStatus.STARTING
    worker.follow()
    log.info("worker_adopted", worker=worker.worker_id, pool=pool.name, pid=child.pid)
    return worker


def _data(reason: Reason[WorkerEnd] | None) -> dict[str, str] | None:
    """What stands for it in frames and files."""
    return None if reason is None else reason.as_data()


def _read(written: object) -> Reason[WorkerEnd] | None:
    """The reason in another master's file."""
    return None if written is None else Reason.read(written, ASKED)
