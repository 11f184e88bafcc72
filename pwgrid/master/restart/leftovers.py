"""Looks through what the master before this one left in the runtime directory: ends what cannot be used, and lists what
is to be adopted; adopts nothing itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.loop import Loop
from pwgrid.common.types import BrowserType
from pwgrid.master.child import Child
from pwgrid.master.policy.adoption import Adopt, End, Found, Retire, judge
from pwgrid.runtime.child_files import ChildState, read_states, state_path
from pwgrid.runtime.directory import CODE_CACHE, UNWRITTEN
from pwgrid.runtime.process_tree import kill_below
from pwgrid.runtime.processes import end

log = structlog.get_logger()

END_S: Final = 3.0


@dataclass(slots=True)
class Leftovers:
    """What there is to adopt. `dead` are the workers whose records must go: id and browser type."""

    workers: list[ChildState] = field(default_factory=list)
    proxy: ChildState | None = None
    retiring: list[ChildState] = field(default_factory=list)
    redis: ChildState | None = None
    dead: list[tuple[str, BrowserType]] = field(default_factory=list)

    def paths(self) -> list[str]:
        """The paths in the runtime directory that must stay."""
        proxies = ["proxy"] if self.proxy or self.retiring else []
        paths = [f"w/{state.name}" for state in self.workers] + proxies + (["redis"] if self.redis else [])
        return [*paths, UNWRITTEN, CODE_CACHE] if paths else []


def finding(registry: str, leftovers: Leftovers, kept: Collection[str] = ()) -> Callable[[Path], list[str]]:
    """What fills `leftovers` from the directory that it is given, and says what of that must stay, with `kept`."""

    def find(runtime: Path) -> list[str]:
        _find(runtime, registry, leftovers)
        return [*leftovers.paths(), *kept]

    return find


def open_child(loop: Loop, state: ChildState) -> Child | None:
    """The process as a child of ours; None when it has ended since."""
    try:
        pidfd = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return None
    if state.process is None:  # only now is it certain that the descriptor means the process that was written down
        os.close(pidfd)
        return None
    return Child(loop, state.pid, pidfd, state.started_at)


def _find(runtime: Path, registry: str, leftovers: Leftovers) -> None:
    states = {(state.kind, state.name): state for state in read_states(runtime)}
    for verdict in judge((_found(state) for state in states.values()), registry):
        kind = "proxy" if isinstance(verdict, Retire) else verdict.kind
        state = states[kind, verdict.name]
        match verdict:
            case Adopt(kind="worker"):
                leftovers.workers.append(state)
            case Adopt(kind="proxy"):
                leftovers.proxy = state
            case Adopt(kind="redis"):
                leftovers.redis = state
            case Retire():
                leftovers.retiring.append(state)
            case _:
                if isinstance(verdict, End) and (process := state.process) is not None:
                    log.warning("leftover_child_ended", kind=kind, pid=state.pid, reason=verdict.reason)
                    end(process, time.monotonic() + END_S, signal.SIGTERM)
                if kind == "worker":
                    leftovers.dead.append((state.name, state.browser_type))  # type: ignore[arg-type]
                state_path(runtime, kind, state.name).unlink(missing_ok=True)
    adopted = {state.name for state in leftovers.workers}
    killed = kill_below([path for path in runtime.glob("w/*") if path.name not in adopted])
    if killed:
        log.warning("leftover_processes_killed", processes=killed)


def _found(state: ChildState) -> Found:
    return Found(state.kind, state.name, state.process is not None, state.registry, state.forked_at)
