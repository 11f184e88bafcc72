"""Where a worker's process comes from: forked anew, forked in the place of one that died, or taken over from another
master. Watches none of them, and decides nothing."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket

from pwgrid.common.loop import Loop
from pwgrid.common.types import BrowserType
from pwgrid.master.child import Child
from pwgrid.master.config import MasterConfig
from pwgrid.master.fork import fork_role
from pwgrid.master.policy.worker_life import Process, Purpose, Times, WorkerLife
from pwgrid.master.restart.leftovers import open_child
from pwgrid.master.workers.record import WARM, WorkerRecord
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.process_tree import Tree, process_table
from pwgrid.settings.model import Settings


def times_of(settings: Settings) -> Times:
    """How long things may take, as the settings say now."""
    return Times(settings.launch_timeout, settings.drain_timeout)


def fork_worker(
    loop: Loop, config: MasterConfig, browser_type: BrowserType, *, spare: bool, registry_seen: bool
) -> tuple[WorkerRecord, socket.socket]:
    """A new worker with its directory, and our end of its control link. Raises OSError, with nothing left behind."""
    worker_id = secrets.token_hex(4)
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        directory = config.runtime.make_worker_dir(worker_id)
        undo.callback(config.runtime.remove_worker_dir, worker_id)
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ipc, ipc_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for ours in (control, ipc):
            undo.callback(ours.close)
        for each in (their_control, ipc_child):
            theirs.callback(each.close)
        boot = WorkerArguments(
            settings=config.settings,
            redis_url=config.redis_url,
            runtime=config.runtime.directory,
            directory=directory,
            worker_id=worker_id,
            browser_type=browser_type,
            control=their_control,
            ipc=ipc,
            ipc_child=ipc_child,
            registry_seen=registry_seen,
            spare=spare,
        )
        child = _fork(loop, config, boot)
        undo.pop_all()
    now = loop.now()
    life = WorkerLife.forked(now, times_of(config.settings), spare=spare)
    tree = Tree(child.pid, directory)
    return WorkerRecord(worker_id, browser_type, life, child, tree, now, config.version, ipc=ipc), control


def fork_successor(loop: Loop, config: MasterConfig, record: WorkerRecord) -> socket.socket:
    """A new process in the place of the dead one: same id, directory, browser server. Our end of its control link.

    Raises OSError, with nothing left behind.
    """
    assert record.ipc is not None
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        boot = WorkerArguments(
            settings=config.settings,
            redis_url=config.redis_url,
            runtime=config.runtime.directory,
            directory=record.tree.directory,
            worker_id=record.worker_id,
            browser_type=record.browser_type,
            control=theirs,
            ipc=record.ipc,
            ipc_child=None,
            adopt_node_pid=record.launched["nodePid"],
            registry_seen=True,  # its sessions are worth more than a registration
        )
        try:
            record.child = _fork(loop, config, boot)
        except OSError:
            control.close()
            raise
    record.tree.worker_pid = record.child.pid
    return control


def adopt_worker(loop: Loop, config: MasterConfig, state: ChildState) -> WorkerRecord | None:
    """The record of a worker that another master forked; None when it has ended since it was found."""
    child = open_child(loop, state)
    if child is None:
        return None
    browser_type: BrowserType = state.browser_type  # type: ignore[assignment]
    purpose = Purpose.SPARE if state.spare else Purpose.SERVE
    process = Process.SUCCESSOR if state.is_successor else Process.FIRST
    life = WorkerLife.adopted(state.status, purpose, process, loop.now(), times_of(config.settings))
    life.reason = state.reason
    ipc = config.kept_open.ipc.get(state.name) if config.kept_open else None
    return WorkerRecord(
        worker_id=state.name,
        browser_type=browser_type,
        life=life,
        child=child,
        tree=Tree(child.pid, config.runtime.directory / "w" / state.name, anywhere=True),
        forked_at=state.forked_at,
        warm_since=state.forked_at if life.status in WARM else math.inf,
        settings=state.settings,
        version=state.version,
        ipc=socket.socket(fileno=ipc) if ipc is not None else None,
        launched=state.launched,
        recycle=state.recycle,
    )


def browser_server_lives(record: WorkerRecord) -> bool:
    """Whether there is a browser server that a successor could take over."""
    node_pid = record.launched.get("nodePid")
    if record.ipc is None or not isinstance(node_pid, int):
        return False
    return record.tree.has(node_pid, process_table())


def _fork(loop: Loop, config: MasterConfig, boot: WorkerArguments) -> Child:
    keep = [part.fileno() for part in (boot.control, boot.ipc, boot.ipc_child) if part is not None]
    return fork_role(loop, lambda: config.roles.worker(boot), keep)
