"""Kills what ended workers have left, until there is nothing, and removes their directories. Waits for no process that
the kernel cannot end: it is tried again, ever more rarely, while the pool and the stop of the grid go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from pwgrid.common.loop import Loop
from pwgrid.runtime.browser_processes import Tree, process_table
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.runtime.processes import KILL_S, is_alive

log = structlog.get_logger()

SHORTEST_S: Final = 0.02
LONGEST_S: Final = 60.0
TOLD_AGAIN_S: Final = 600.0
SHORTAGE_S: Final = 1.0
"""After so long it looks at the host's processes again, if it could not for want of a descriptor."""


def pause_s(lasted_s: float) -> float:
    """How long to wait before the next try: as long as it has lasted so far, within limits."""
    return min(max(SHORTEST_S, lasted_s), LONGEST_S)


@dataclass(slots=True)
class _Remains:
    """What one worker has left: when it is tried again, and when it is said (again) that it cannot be killed, both in
    monotonic seconds. `is_over`: nobody waits for it any more."""

    tree: Tree
    since: float
    again_at: float
    tell_at: float
    is_over: bool = False

    def pids(self) -> list[int]:
        """Those that live. Raises OSError."""
        return sorted(process.pid for process in self.tree.known if is_alive(process))


class CleanUp:
    """Calls `on_over(worker_id)` once for each worker: nothing of it is left, or what is left cannot be killed."""

    def __init__(self, loop: Loop, runtime: RuntimeDir, on_over: Callable[[str], None]) -> None:
        self._loop = loop
        self._runtime = runtime
        self._on_over = on_over
        self._remains: dict[str, _Remains] = {}
        self._timer = loop.timer(self._go_on)

    def begin(self, worker_id: str, tree: Tree) -> None:
        """Clean up after a worker whose process has ended, or cannot be killed either."""
        now = self._loop.now()
        self._remains[worker_id] = _Remains(tree, now, now, now + KILL_S)
        self._timer.arm(now)

    def left(self) -> list[int]:
        """The pids of all that cannot be killed so far. Raises OSError."""
        return sorted(pid for remains in self._remains.values() for pid in remains.pids())

    def _go_on(self) -> None:
        try:
            self._go_on_now()
            self._timer.arm(min((remains.again_at for remains in self._remains.values()), default=math.inf))
        except OSError as error:  # no descriptor is free
            log.warning("clean_up_put_off", reason=error.strerror or str(error))
            self._timer.arm(self._loop.now() + SHORTAGE_S)

    def _go_on_now(self) -> None:
        """Raises OSError."""
        table, now = process_table(), self._loop.now()
        for worker_id, remains in list(self._remains.items()):
            if now < remains.again_at:
                continue
            killed = remains.tree.kill(table)
            if not killed:
                self._nothing_is_left(worker_id, remains)
                continue
            if remains.again_at == remains.since:
                log.info("tree_killed", worker=worker_id, processes=killed)
            remains.again_at = now + pause_s(now - remains.since)
            if now >= remains.tell_at:
                self._cannot_be_killed(worker_id, remains, now)

    def _nothing_is_left(self, worker_id: str, remains: _Remains) -> None:
        del self._remains[worker_id]
        if self._runtime.remove_worker_dir(worker_id):
            log.debug("worker_directory_removed", worker=worker_id)
        if remains.is_over:
            log.info("processes_ended_after_all", worker=worker_id)
        else:
            self._on_over(worker_id)

    def _cannot_be_killed(self, worker_id: str, remains: _Remains, now: float) -> None:
        log.error(
            "processes_not_killed",
            worker=worker_id,
            pids=remains.pids(),
            after_s=round(now - remains.since, 1),
            about="SIGKILL does not end them: the kernel waits for something, such as a disk or a network file system",
        )
        remains.tell_at = now + TOLD_AGAIN_S
        if not remains.is_over:
            remains.is_over = True
            self._on_over(worker_id)
