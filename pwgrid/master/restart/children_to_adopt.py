"""Looks through the children that an earlier master left in the runtime directory: ends those that cannot be used, and
lists those to adopt. Adopts none itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child import Child
from pwgrid.master.restart.reexec import KeptOpen
from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import RETIRING, ChildState, read_states, remove_state
from pwgrid.runtime.directory import CODE_CACHE, UNWRITTEN
from pwgrid.runtime.process_identity import end, send, wait_ended

log = structlog.get_logger()

END_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The children to adopt. `dead` are workers whose records must be removed from Redis."""

    workers: list[ChildState] = field(default_factory=list)
    proxy: ChildState | None = None
    retiring: list[ChildState] = field(default_factory=list)
    redis: ChildState | None = None
    dead: list[ChildState] = field(default_factory=list)

    @classmethod
    def of(cls, usable: Sequence[ChildState], dead: list[ChildState]) -> Leftovers:
        """One proxy is for new clients: the newest one that still has listening sockets. The others serve the clients
        that they have accepted, and end."""
        workers = [state for state in usable if state.kind == "worker"]
        redis = next((state for state in usable if state.kind == "redis"), None)
        proxies = [state for state in usable if state.kind == "proxy"]
        accepting = [state for state in proxies if state.status != RETIRING]
        proxy = max(accepting, key=lambda state: state.forked_at, default=None)
        return cls(workers, proxy, [state for state in proxies if state is not proxy], redis, dead)

    def paths(self) -> list[str]:
        """The paths in the runtime directory that must stay."""
        proxies = ["proxy"] if self.proxy or self.retiring else []
        paths = [f"w/{state.name}" for state in self.workers] + proxies + (["redis"] if self.redis else [])
        return [*paths, UNWRITTEN, CODE_CACHE] if paths else []


def find_leftovers(registry: str, kept: KeptOpen | None, runtime: Path) -> Leftovers:
    """The children that have files in a runtime directory. `kept` is what this process kept when it executed itself: a
    worker that has died since has a browser server that a successor can take over, and is adopted all the same."""
    links = kept.ipc if kept is not None else {}
    usable: list[ChildState] = []
    unusable: list[ChildState] = []
    for state in read_states(runtime):
        is_alive = state.process is not None or (state.kind == "worker" and state.name in links)
        (usable if is_alive and state.registry == registry else unusable).append(state)
    leftovers = Leftovers.of(usable, dead=[state for state in unusable if state.kind == "worker"])
    _end(unusable)
    for state in unusable:
        remove_state(runtime, state.kind, state.name)
    adopted = {state.name for state in leftovers.workers}
    killed = kill_below([path for path in runtime.glob("w/*") if path.name not in adopted])
    if killed:
        log.warning("leftover_processes_killed", processes=killed)
    return leftovers


def open_child(loop: Loop, state: ChildState) -> Child | None:
    """The process as a Child; None when it has ended since."""
    try:
        pidfd = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return None
    if state.process is None:  # checked after the pidfd is open, so that it cannot mean another process
        os.close(pidfd)
        return None
    return Child(loop, state.pid, pidfd, state.started_at)


def _end(unusable: list[ChildState]) -> None:
    """End those that still live, all of them within the same END_S: nobody listens meanwhile."""
    living = [(state, process) for state in unusable if (process := state.process) is not None]
    reason = "it uses another Redis than the configuration says now"
    for state, process in living:
        log.warning("leftover_child_ended", kind=state.kind, pid=state.pid, reason=reason)
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    for _, process in living:
        wait_ended(process, deadline)
        end(process, deadline)
