"""Gets a worker's process: forks a new one, forks a successor of one that died, or adopts another master's. Watches and
decides nothing."""

from __future__ import annotations

import math
import secrets
import socket
from contextlib import ExitStack
from dataclasses import replace

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WARM
from pwgrid.master.child import Child
from pwgrid.master.config import MasterConfig
from pwgrid.master.fork import fork_linked
from pwgrid.master.policy.worker_state_machine import Purpose, WorkerLife
from pwgrid.master.restart.children_to_adopt import open_child
from pwgrid.master.workers.one_worker import ManagedWorker
from pwgrid.runtime.browser_process_tree import Tree, process_table
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.child_files import ChildState
from pwgrid.settings.pools import PoolSettings


def fork_worker(
    loop: Loop, config: MasterConfig, pool: PoolSettings, purpose: Purpose, *, registry_seen: bool
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
            spare = purpose is Purpose.SPARE
            boot = WorkerArguments(*common, control, ipc, ipc_child, registry_seen=registry_seen, spare=spare)
            return config.run_worker(boot)

        with ipc_child:
            child, control = fork_linked(loop, run, (ipc, ipc_child))
        undo.pop_all()
    now = loop.now()
    life = WorkerLife.forked(purpose, now, config.times())
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
            *common, control, ipc, None, adopt_node_pid=node_pid, registry_seen=True, sessions_until=until
        )
        return config.run_worker(boot)

    record.child, control = fork_linked(loop, run, (ipc,))
    record.tree.worker_pid = record.child.pid
    return control


def adopt_worker(loop: Loop, config: MasterConfig, state: ChildState) -> ManagedWorker:
    """The record of a worker that another master forked, also of one that has ended since its file was read."""
    child = open_child(loop, state)
    if child is None:
        child = Child(loop, state.pid, -1, state.started_at)
        child.create_time = state.create_time
    browser_type: BrowserType = state.browser_type  # type: ignore[assignment]
    purpose = Purpose.SPARE if state.spare else Purpose.SERVE
    life = WorkerLife.adopted(state.status, purpose, loop.now(), config.times(), state.sessions_until)
    life.reason, life.successors = state.reason, int(state.is_successor)
    ipc = config.kept_open.ipc.pop(state.name, None) if config.kept_open else None
    return ManagedWorker(
        worker_id=state.name,
        pool=state.pool or browser_type,  # versions without named pools write none
        browser_type=browser_type,
        life=life,
        child=child,
        tree=Tree(0 if child.has_ended else child.pid, config.runtime.directory / "w" / state.name, anywhere=True),
        forked_at=state.forked_at,
        warm_since=state.forked_at if life.status in WARM else math.inf,
        settings=state.settings,
        code=state.version,
        ipc=socket.socket(fileno=ipc) if ipc is not None else None,
        launched=state.launched,
        recycle=state.recycle,
    )


def browser_server_lives(record: ManagedWorker) -> bool:
    """Whether there is a browser server that a successor could take over. Raises OSError."""
    node_pid = record.launched.get("nodePid")
    if record.ipc is None or not isinstance(node_pid, int):
        return False
    return record.tree.has(node_pid, process_table())
