"""What the master knows of one worker, and how it is forked; decides nothing about it."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WorkerEvent, WorkerStatus, advance
from pwgrid.control.master_end import Channel
from pwgrid.master.child import Child
from pwgrid.master.config import MasterConfig
from pwgrid.master.fork import fork_role
from pwgrid.master.policy.adoption import heard_again
from pwgrid.master.policy.plan import WorkerView
from pwgrid.master.policy.recycle import Footprint
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.process_tree import Tree


@dataclass(eq=False, slots=True)
class WorkerRecord:
    """One worker from its fork until nothing of it is left. Times are monotonic seconds.

    `ipc` is the master's copy of the browser server's channel: it outlives the worker. `ended` is set once the process
    was reaped and only its tree may be left. `planned`: its end was wanted; `asked`: an operator asked for it.
    `is_successor`: the process took a dead worker's browser server over. `doomed`: its whole tree is to go.
    `adopted`: a former master forked it; until it has come back to us (`claimed`) there is no `control`, and no `ipc`
    until it has sent it. `settings` is what it was forked with. `spare`: it is not counted on (yet), though
    a selection may have let it serve. `counted_at`: when it last told how many sessions it had had.
    """

    worker_id: str
    browser_type: BrowserType
    child: Child
    control: socket.socket | None
    ipc: socket.socket | None
    tree: Tree
    forked_at: float
    status: WorkerStatus = WorkerStatus.STARTING
    channel: Channel | None = None
    launched: dict[str, Any] = field(default_factory=dict)
    served_since: float = math.inf
    available_by: float = math.inf
    drain_by: float = math.inf
    active: int = 0
    lifetime: int = 0
    slots: int = 0
    reason: str | None = None
    recycle: str | None = None
    spare: bool = False
    counted_at: float = math.inf
    planned: bool = False
    asked: bool = False
    counted: bool = False
    ended: bool = False
    is_successor: bool = False
    doomed: bool = False
    sweep_at: float = math.inf
    sessions_until: float = math.inf
    memory: Footprint = field(default_factory=Footprint)
    settings: str = ""
    version: str = ""
    adopted: bool = False
    claimed: bool = True
    told_again: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it counts as capacity, now or soon."""
        return self.status in BEFORE_A_DRAIN

    def advance(self, event: WorkerEvent) -> None:
        """Step through the table. Raises LifecycleError (a ValueError)."""
        self.status = heard_again(self.status, event) if self.adopted else advance(self.status, event)

    def view(self) -> WorkerView:
        """What the plan needs to know."""
        return WorkerView(
            self.worker_id,
            self.browser_type,
            self.status,
            self.active,
            started_at=self.forked_at,
            recycle=self.recycle,
            spare=self.spare,
        )

    def status_reply(self) -> dict[str, Any]:
        """What an operator is told."""
        return {
            "id": self.worker_id,
            "browserType": self.browser_type,
            "pid": self.child.pid,
            "nodePid": self.launched.get("nodePid"),
            "status": self.status.value,
            "claimed": self.claimed,
            "active": self.active,
            "lifetime": self.lifetime,
            "slots": self.slots,
            "startedAt": self.child.started_at,
            "rssMib": self.memory.rss_mib,
            "memoryMib": self.memory.memory_mib,
            "drainLeftS": self._drain_left_s(),
            "reason": self.reason or self.recycle,
        }

    def _drain_left_s(self) -> float | None:
        """How long its sessions may still go on; None when it does not drain."""
        if self.sessions_until == math.inf:
            return None
        return round(max(0.0, self.sessions_until - time.monotonic()), 1)


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker process is to be: who, where, and with which ends of the browser server's channel.

    `ipc_child` is None and `adopt_node_pid` given where the browser server lives already. See also WorkerArguments.
    """

    worker_id: str
    browser_type: BrowserType
    directory: Path
    ipc: socket.socket
    ipc_child: socket.socket | None = None
    adopt_node_pid: int | None = None
    registry_seen: bool = False
    spare: bool = False


def fork_worker(config: MasterConfig, name: str, post: Post) -> tuple[Child, socket.socket]:
    """Fork a worker process; the child, and our end of its control link. Raises OSError, with nothing left behind."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    boot = WorkerArguments(
        settings=config.settings,
        redis_url=config.redis_url,
        runtime=config.runtime.directory,
        control=theirs,
        worker_id=post.worker_id,
        browser_type=post.browser_type,
        directory=post.directory,
        ipc=post.ipc,
        ipc_child=post.ipc_child,
        adopt_node_pid=post.adopt_node_pid,
        registry_seen=post.registry_seen,
        spare=post.spare,
    )
    keep = [part.fileno() for part in (theirs, post.ipc, post.ipc_child) if part is not None]
    try:
        return fork_role(name, lambda: config.roles.worker(boot), keep), control
    except BaseException:
        control.close()
        raise
    finally:
        theirs.close()


def start_worker(
    config: MasterConfig, browser_type: BrowserType, now: float, *, registry_seen: bool, spare: bool
) -> WorkerRecord:
    """Fork a worker with its directory and sockets. Raises OSError, with nothing left behind."""
    worker_id = secrets.token_hex(4)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        directory = config.runtime.make_worker_dir(worker_id)
        undo.callback(config.runtime.remove_worker_dir, worker_id)
        ipc, ipc_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ipc.close)
        theirs.callback(ipc_child.close)
        post = Post(worker_id, browser_type, directory, ipc, ipc_child, registry_seen=registry_seen, spare=spare)
        child, control = fork_worker(config, f"worker {worker_id}", post)
        undo.pop_all()
        tree = Tree(child.pid, directory)
        return WorkerRecord(worker_id, browser_type, child, control, ipc, tree, now, spare=spare)
