"""Finds the children that another master has left in a runtime directory, and ends those that cannot be used."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import structlog

from pwgrid.master.leftovers import KeptOpen, Leftovers
from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import ChildState, read_states, remove_state
from pwgrid.runtime.process_identity import end, send, wait_ended

log = structlog.get_logger()

END_S: Final = 3.0


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
