"""Makes records of workers that a former master forked, and takes their links up where they stood; decides nothing."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence

from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.control.frames import Frame
from pwgrid.control.protocol import Link
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.adoption import written_status
from pwgrid.master.restart.leftovers import open_child
from pwgrid.master.workers.record import WorkerRecord
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.process_tree import Tree


def adopt_worker(config: MasterConfig, state: ChildState) -> WorkerRecord | None:
    """The record of a worker that lives; None when it has ended since it was found."""
    child = open_child(state)
    if child is None:
        return None
    status = written_status(state.status)
    directory = config.runtime.directory / "w" / state.name
    return WorkerRecord(
        worker_id=state.name,
        browser_type=_browser_type(state),
        child=child,
        control=None,
        ipc=_kept_ipc(config, state.name),
        tree=Tree(child.pid, directory, anywhere=True),
        forked_at=state.forked_at,
        status=status,
        launched=state.launched,
        reason=state.reason,
        recycle=state.recycle,
        spare=state.spare,
        is_successor=state.is_successor,
        planned=status is WorkerStatus.DRAINING,
        served_since=state.forked_at if status in (WorkerStatus.SPARE, WorkerStatus.AVAILABLE) else math.inf,
        settings=state.settings,
        version=state.version,
        adopted=True,
        claimed=False,
    )


def resumed_link(old: Link, init: Frame) -> Link:
    """A link that goes on where the child's `init` says it stood; what was said before it came back is said now.

    Raises ProtocolError when `init` says something impossible.
    """
    link = Link.adopting(old.ident, init)
    for name, data in old.unacknowledged():
        link.send(name, data)
    return link


def sockets(fds: Sequence[int]) -> list[socket.socket]:
    """The descriptors that a child sent, as sockets of ours. Those that are none are closed."""
    found = []
    for fd in fds:
        try:
            found.append(socket.socket(fileno=fd))
        except OSError:
            os.close(fd)
    return found


def _browser_type(state: ChildState) -> BrowserType:
    browser_type: BrowserType = state.browser_type  # type: ignore[assignment]
    return browser_type


def _kept_ipc(config: MasterConfig, worker_id: str) -> socket.socket | None:
    fd = config.handover.ipc.get(worker_id) if config.handover else None
    return socket.socket(fileno=fd) if fd is not None else None
