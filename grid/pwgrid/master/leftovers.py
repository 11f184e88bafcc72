"""What one master leaves for the next one: the children that it had forked, of which those are ended that cannot be
used, and what it keeps open while it executes itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import COMING, RETIRING, ChildState, read_states, remove_state
from pwgrid.runtime.directory import CODE_CACHE, FORWARDER_SOCKET, KEPT_FILES, TLS_OUT_SOCKET, TLS_SOCKET, UNWRITTEN
from pwgrid.runtime.process_identity import end, send, wait_ended

log = structlog.get_logger()

END_S: Final = 3.0
"""For all children together that cannot be used."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The children to adopt. `dead` are workers whose records must be removed from Redis."""

    workers: list[ChildState] = field(default_factory=list)
    proxy: ChildState | None = None
    retiring: list[ChildState] = field(default_factory=list)
    redis: ChildState | None = None
    dead: list[ChildState] = field(default_factory=list)
    forwarder: ChildState | None = None
    tls: ChildState | None = None
    retiring_tls: list[ChildState] = field(default_factory=list)

    @classmethod
    def of(cls, usable: Sequence[ChildState], dead: list[ChildState]) -> Leftovers:
        """One proxy, and one TLS process, is for new clients: the newest one that listens. The others serve the clients
        that they have accepted, and end."""
        workers = [state for state in usable if state.kind == "worker"]
        redis = next((state for state in usable if state.kind == "redis"), None)
        proxy, retiring = _newest([state for state in usable if state.kind == "proxy"])
        tls, retiring_tls = _newest([state for state in usable if state.kind == "tls"])
        forwarder = next((state for state in usable if state.kind == "forwarder"), None)
        return cls(workers, proxy, retiring, redis, dead, forwarder, tls, retiring_tls)

    def paths(self) -> list[str]:
        """The paths in the runtime directory that must stay."""
        # A proxy may have the socket at which the next TLS process reaches it.
        proxies = ["proxy", TLS_SOCKET] if self.proxy or self.retiring else []
        tls = ["tls", TLS_OUT_SOCKET] if self.tls or self.retiring_tls else []
        forwarder = ["forwarder", FORWARDER_SOCKET] if self.forwarder else []
        redis = ["redis"] if self.redis else []
        paths = [f"w/{state.name}" for state in self.workers] + proxies + forwarder + tls + redis
        return [*paths, UNWRITTEN, CODE_CACHE, KEPT_FILES] if paths else []


def _newest(states: Sequence[ChildState]) -> tuple[ChildState | None, list[ChildState]]:
    """The newest of these that is not retiring, and all others. One that does not listen yet comes last: it may never
    do so, and the one that it was to replace serves."""
    accepting = [state for state in states if state.status != RETIRING]
    newest = max(accepting, key=lambda state: (state.status != COMING, state.forked_at), default=None)
    return newest, [state for state in states if state is not newest]


@dataclass(frozen=True, slots=True)
class KeptOpen:
    """What the master keeps while it executes itself anew. `listeners`, `lock`, `control`, `lifeline` and `ipc` (by
    worker id, until adopted) are descriptors; `pools` are the wanted workers of scaled pools, `configured` what the
    configuration said of these. `is_nohup`: SIGHUP was ignored when the grid was started, which nobody can see any more
    once it is handled.

    Another version reads it: it may know fewer fields, or more, which have defaults therefore."""

    listeners: tuple[int, ...]
    lock: int
    control: int
    ipc: dict[str, int]
    lifeline: int | None
    pools: dict[str, int]
    port: int
    started_at: float
    is_nohup: bool = False
    configured: dict[str, int] = field(default_factory=dict)

    def fds(self) -> list[int]:
        lifeline = [] if self.lifeline is None else [self.lifeline]
        return [*self.listeners, self.lock, self.control, *self.ipc.values(), *lifeline]


def find_leftovers(registry: str, kept: KeptOpen | None, runtime: Path) -> Leftovers:
    """The children that have files in a runtime directory; ends those that cannot be used. `kept` is what this process
    kept when it executed itself: a worker that has died since has a browser server that a successor can take over, and
    is adopted all the same."""
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
