"""What one master leaves for the next one: the children that it had forked, and what it keeps open while it executes
itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pwgrid.runtime.child_files import RETIRING, ChildState
from pwgrid.runtime.directory import CODE_CACHE, FORWARDER_SOCKET, KEPT_FILES, TLS_OUT_SOCKET, TLS_SOCKET, UNWRITTEN


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
        """One proxy, and one TLS process, is for new clients: the newest one that still has listening sockets. The
        others serve the clients that they have accepted, and end."""
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
    """The newest of these that is not retiring, and all others."""
    accepting = [state for state in states if state.status != RETIRING]
    newest = max(accepting, key=lambda state: state.forked_at, default=None)
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
