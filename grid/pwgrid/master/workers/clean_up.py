"""Kills what ended workers have left, until there is nothing, and removes their directories. A process that the kernel
cannot end is tried again, ever more rarely, while the pool, or the stop of the grid, goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.runtime.browser_process_tree import Tree, process_table
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.runtime.process_identity import KILL_S, is_alive

log = structlog.get_logger()

SHORTEST_S: Final = 0.02
LONGEST_S: Final = 60.0
LOG_INTERVAL_S: Final = 600.0
SHORTAGE_S: Final = 1.0
"""After so long it looks at the host's processes again, if it could not for want of a descriptor."""


def pause_s(lasted_s: float) -> float:
    """How long to wait before the next try: as long as it has lasted so far, within limits."""
    return min(max(SHORTEST_S, lasted_s), LONGEST_S)


@dataclass(slots=True)
class _DeadWorker:
    """What one worker has left: when it is tried again, and when it is said (again) that it cannot be killed, both in
    monotonic seconds. `is_over`: nobody waits for it any more."""

    tree: Tree
    since: float
    again_at: float
    tell_at: float
    is_over: bool = False

    def pids(self) -> list[int]:
        """The pids that still live. Raises OSError."""
        return sorted(process.pid for process in self.tree.known if is_alive(process))


class CleanUp:
    """Calls `on_over(worker_id)` once for each worker: nothing of it is left, or what is left cannot be killed."""

    def __init__(self, loop: Loop, runtime: RuntimeDir, on_over: Callable[[str], None]) -> None:
        self._loop = loop
        self._runtime = runtime
        self._on_over = on_over
        self._dead: dict[str, _DeadWorker] = {}
        self._timer = loop.timer(self._go_on)

    def begin(self, worker_id: str, tree: Tree) -> None:
        """Clean up after a worker whose process has ended, or cannot be killed either."""
        now = self._loop.now()
        self._dead[worker_id] = _DeadWorker(tree, now, now, now + KILL_S)
        self._timer.arm(now)

    def left(self) -> list[int]:
        """The pids of all that cannot be killed so far. Raises OSError."""
        return sorted(pid for worker in self._dead.values() for pid in worker.pids())

    def _go_on(self) -> None:
        try:
            self._go_on_now()
            self._timer.arm(min((worker.again_at for worker in self._dead.values()), default=math.inf))
        except OSError as error:  # no descriptor is free
            log.warning("clean_up_put_off", reason=error.strerror or str(error))
            self._timer.arm(self._loop.now() + SHORTAGE_S)

    def _go_on_now(self) -> None:
        """Raises OSError."""
        table, now = process_table(), self._loop.now()
        for worker_id, worker in list(self._dead.items()):
            if now < worker.again_at:
                continue
            killed = worker.tree.kill(table)
            if not killed:
                self._nothing_is_left(worker_id, worker)
                continue
            if worker.again_at == worker.since:
                log.info("tree_killed", worker=worker_id, processes=killed)
            worker.again_at = now + pause_s(now - worker.since)
            if now >= worker.tell_at:
                self._cannot_be_killed(worker_id, worker, now)

    def _nothing_is_left(self, worker_id: str, worker: _DeadWorker) -> None:
        """Raises OSError, and is to be called again then."""
        if self._runtime.remove_worker_dir(worker_id):
            log.debug("worker_directory_removed", worker=worker_id)
        del self._dead[worker_id]
        if worker.is_over:
            log.info("processes_ended_after_all", worker=worker_id)
        else:
            self._on_over(worker_id)

    def _cannot_be_killed(self, worker_id: str, worker: _DeadWorker, now: float) -> None:
        log.error(
            "processes_not_killed",
            worker=worker_id,
            pids=worker.pids(),
            after_s=round(now - worker.since, 1),
            about="SIGKILL does not end them: the kernel waits for something, such as a disk or a network file system, "
            "or they are another user's",
        )
        worker.tell_at = now + LOG_INTERVAL_S
        if not worker.is_over:
            worker.is_over = True
            self._on_over(worker_id)
