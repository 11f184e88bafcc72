"""Takes stock of what a former master has left in the runtime directory; ends what cannot be used, adopts nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

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
class Former:
    """What there is to adopt. `dead` are the workers whose records must go: id and browser type."""

    workers: list[ChildState] = field(default_factory=list)
    proxy: ChildState | None = None
    retiring: list[ChildState] = field(default_factory=list)
    redis: ChildState | None = None
    dead: list[tuple[str, BrowserType]] = field(default_factory=list)

    def spared(self) -> list[str]:
        """The paths in the runtime directory that must stay."""
        proxies = ["proxy"] if self.proxy or self.retiring else []
        spared = [f"w/{state.name}" for state in self.workers] + proxies + (["redis"] if self.redis else [])
        return [*spared, UNWRITTEN, CODE_CACHE] if spared else []


@dataclass(frozen=True, slots=True)
class Handover:
    """What this very process kept open when it executed itself anew. Numbers are descriptors."""

    listeners: tuple[int, ...]
    lock: int
    control: int
    ipc: dict[str, int]
    lifeline: int | None
    pools: dict[str, int]
    port: int
    started_at: float


def sparing(registry: str, former: Former, kept: Collection[str] = ()) -> Callable[[Path], list[str]]:
    """Takes stock into `former` of the directory that it is given, and says what of it must stay (`kept`, too)."""

    def take_stock(runtime: Path) -> list[str]:
        _take_stock(runtime, registry, former)
        return [*former.spared(), *kept]

    return take_stock


def open_child(state: ChildState) -> Child | None:
    """The process as a child of ours; None when it has ended since."""
    try:
        pidfd = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return None
    if state.process is None:  # only now is it certain that the descriptor means the process that was written down
        os.close(pidfd)
        return None
    return Child(f"{state.kind} {state.name}", state.pid, pidfd, state.started_at)


def _take_stock(runtime: Path, registry: str, former: Former) -> None:
    states = {(state.kind, state.name): state for state in read_states(runtime)}
    for verdict in judge((_found(state) for state in states.values()), registry):
        kind = "proxy" if isinstance(verdict, Retire) else verdict.kind
        state = states[kind, verdict.name]
        match verdict:
            case Adopt(kind="worker"):
                former.workers.append(state)
            case Adopt(kind="proxy"):
                former.proxy = state
            case Adopt(kind="redis"):
                former.redis = state
            case Retire():
                former.retiring.append(state)
            case _:
                if isinstance(verdict, End) and (process := state.process) is not None:
                    log.warning("former_child_ended", kind=kind, pid=state.pid, reason=verdict.reason)
                    end(process, time.monotonic() + END_S, signal.SIGTERM)
                if kind == "worker":
                    former.dead.append((state.name, state.browser_type))  # type: ignore[arg-type]
                state_path(runtime, kind, state.name).unlink(missing_ok=True)
    adopted = {state.name for state in former.workers}
    left = [path for path in runtime.glob("w/*") if path.name not in adopted]
    killed = kill_below(left)
    if killed:
        log.warning("orphans_killed", processes=killed)


def _found(state: ChildState) -> Found:
    return Found(state.kind, state.name, state.process is not None, state.registry, state.forked_at)
