"""One worker: what the master knows of it, and how it gets its process. That is forked, adopted from another master, or
a successor of one that died. Watches none; its `life` decides about it."""

from __future__ import annotations

import math
import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pwgrid.common.selectors_loop import Loop, Timer
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WARM
from pwgrid.control.frames import Frame
from pwgrid.control.master_side import MasterSide
from pwgrid.master.child import Child, adopted_child, fork_linked
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.memory_limits import Footprint
from pwgrid.master.policy.worker_plan import PlannedWorker
from pwgrid.master.policy.worker_state_machine import Purpose, WorkerLife
from pwgrid.runtime.browser_process_tree import Tree
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.directory import worker_dir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


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
    suspicion: str | None = None
    """Why it takes no new client now: its browser may be sick."""
    memory: Footprint = field(default_factory=Footprint)
    recycle: str | None = None
    told: Frame = field(default_factory=dict)
    """The state that it gets."""
    has_told_drain: bool = False
    """Whether `active` was reported after its drain began."""

    def view(self, now: float, settings: Settings) -> PlannedWorker:
        return PlannedWorker(
            self.worker_id,
            self.pool,
            self.life.status,
            self.active,
            started_at=self.forked_at,
            recycle=self.recycle,
            spare=self.life.purpose is Purpose.SPARE,
            lingers_until=self.life.sessions_until if self.life.lingers(now, settings) else None,
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
            "suspect": self.suspicion,
        }

    def tell(self, **news: object) -> None:
        """Send it its state with what is new in it, if anything is."""
        told = {**self.told, **news}
        if told != self.told and self.link is not None:
            self.told = told
            self.link.push_state(told)

    def _drain_left_s(self) -> float | None:
        """How many seconds its sessions may still go on; None when it does not drain."""
        if self.life.sessions_until == math.inf:
            return None
        return round(max(0.0, self.life.sessions_until - time.monotonic()), 1)


def fork_worker(
    loop: Loop, config: MasterConfig, pool: PoolSettings, *, spare: bool, registry_seen: bool
) -> tuple[ManagedWorker, socket.socket]:
    """Fork a worker with a new directory; returns its record and our end of its control link.

    Raises OSError, with nothing left behind.
    """
    worker_id = secrets.token_hex(4)
    with ExitStack() as undo:
        undo.callback(config.runtime.remove_worker_dir, worker_id)
        directory = config.runtime.make_worker_dir(worker_id)
        ipc, ipc_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ipc.close)
        common = (*config.common(pool), directory, worker_id, pool)

        def run(control: socket.socket) -> int:
            boot = WorkerArguments(
                *(*common, control, ipc, ipc_child),
                registry_seen=registry_seen,
                spare=spare,
                tokens_file=config.tokens_file,
            )
            return config.run_worker(boot)

        with ipc_child:
            child, control = fork_linked(loop, run, (ipc, ipc_child))
        undo.pop_all()
    now = loop.now()
    life = WorkerLife.forked(Purpose.SPARE if spare else Purpose.SERVE, now, config.settings)
    tree = Tree(child.pid, directory)
    record = ManagedWorker(worker_id, pool.name, pool.browser_type, life, child, tree, now, code=config.code, ipc=ipc)
    return record, control


def fork_successor(loop: Loop, config: MasterConfig, record: ManagedWorker, pool: PoolSettings) -> socket.socket:
    """Fork a process in the place of the dead one, with its id, directory and browser server; returns our end of its
    control link. Raises OSError, with nothing left behind.

    Its sessions have what is left of a drain that was under way, and at most the time of any recycle.
    """
    ipc, node_pid = record.ipc, record.launched["nodePid"]
    assert ipc is not None
    until = min(record.life.sessions_until, loop.now() + config.settings.recycle_drain_timeout)
    pool = replace(pool, browser_type=record.browser_type)  # a reload may have changed the pool's since
    common = (*config.common(pool), record.tree.directory, record.worker_id, pool)

    def run(control: socket.socket) -> int:
        # registry_seen: it must not wait for Redis, since its sessions matter more than its registration.
        boot = WorkerArguments(
            *(*common, control, ipc, None),
            adopt_node_pid=node_pid,
            registry_seen=True,
            sessions_until=until,
            tokens_file=config.tokens_file,
        )
        return config.run_worker(boot)

    record.child, control = fork_linked(loop, run, (ipc,))
    record.tree.worker_pid = record.child.pid
    return control


def adopt_worker(loop: Loop, config: MasterConfig, state: ChildState) -> ManagedWorker:
    """The record of a worker that another master forked, also of one that has ended since its file was read."""
    child = adopted_child(loop, state)
    browser_type: BrowserType = state.browser_type  # type: ignore[assignment]
    purpose = Purpose.SPARE if state.spare else Purpose.SERVE
    life = WorkerLife.adopted(state.status, purpose, loop.now(), config.settings, state.sessions_until)
    life.reason, life.successors = state.reason, int(state.is_successor)
    ipc = config.kept_open.ipc.pop(state.name, None) if config.kept_open else None
    return ManagedWorker(
        worker_id=state.name,
        pool=state.pool,
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
        recycle=state.recycle,
    )
