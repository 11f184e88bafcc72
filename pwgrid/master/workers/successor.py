"""A worker process died, its browser server did not: forks a successor that sees the live sessions to their end."""

from __future__ import annotations

import math
from typing import Final

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.workers.record import Post, WorkerRecord, fork_worker
from pwgrid.runtime.process_tree import process_table

_HAS_SESSIONS: Final = (WorkerStatus.AVAILABLE, WorkerStatus.DRAINING)


def can_be_taken_over(record: WorkerRecord) -> bool:
    """Whether there is a browser server that may have live sessions, and nothing speaks against letting it serve on.

    A successor has no successor: a browser server that has cost two workers their lives is ended with its tree.
    """
    node_pid = record.launched.get("nodePid")
    if (
        record.ipc is None
        or record.is_successor
        or record.doomed
        or record.status not in _HAS_SESSIONS
        or not isinstance(node_pid, int)
    ):
        return False
    return record.tree.has(node_pid, process_table())


def fork_successor(config: MasterConfig, record: WorkerRecord) -> None:
    """Puts a new process in the place of the dead one: same id, directory, browser server. Raises OSError."""
    assert record.ipc is not None
    post = Post(
        record.worker_id,
        record.browser_type,
        record.tree.directory,
        record.ipc,
        adopt_node_pid=record.launched["nodePid"],
        registry_seen=True,  # its sessions are worth more than a registration
    )
    child, control = fork_worker(config, f"successor of worker {record.worker_id}", post)
    record.child, record.control = child, control
    record.tree.worker_pid = child.pid
    record.is_successor, record.planned, record.ended = True, True, False
    record.adopted, record.claimed = False, True
    record.available_by = record.sweep_at = math.inf
