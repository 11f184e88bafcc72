"""What the composition root (pwgrid/cli/start_master.py) gives the master."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, Protocol

from pwgrid.installed.running_parts import RunningParts
from pwgrid.master.leftovers import KeptOpen, Leftovers
from pwgrid.registry.embedded_redis_config import EmbeddedRedis
from pwgrid.runtime.child_arguments import ForwarderArguments, ProxyArguments, TlsArguments, WorkerArguments
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


@dataclass(frozen=True, slots=True)
class Roles:
    """What forked children do. Each returns its exit code."""

    worker: Callable[[WorkerArguments], int]
    proxy: Callable[[ProxyArguments], int]
    forwarder: Callable[[ForwarderArguments], int]
    tls: Callable[[TlsArguments], int]


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listening sockets that are `there` (none where a proxy that another master forked has them), and how to
    `open` new ones, if that proxy does not hand them over. `moved` returns those that it hands over, or new ones if
    these settings name another address. `completed` adds what these settings need besides. All raise GridError."""

    there: tuple[socket, ...]
    open: Callable[[], tuple[socket, ...]]
    completed: Callable[[tuple[socket, ...]], tuple[socket, ...]] = tuple
    moved: Callable[[tuple[socket, ...]], tuple[socket, ...]] = tuple


class StartMessages(Protocol):
    """Whoever started the grid, and hears how its start and its stop go (pwgrid/cli/announce_ready.py)."""

    def progress(self, text: str) -> None:
        """How far the start is."""

    def ready(self, status: dict[str, Any]) -> None:
        """Called once, when the grid is ready."""

    def not_ready(self, status: dict[str, Any]) -> None:
        """Called at most once, before that: the start is over, and status["reason"] says why it is not ready."""

    def stopping(self, text: str) -> None:
        """What a stop waits for."""

    @property
    def count_down(self) -> Callable[[str], None] | None:
        """Shows how long a stop may still take; None where there is no terminal."""


@dataclass(slots=True)
class MasterConfig:
    """Everything the master needs. Only `settings` changes while the grid runs, by a reload."""

    settings: Settings
    parts: RunningParts
    """The code and the browsers that run, and how to find them anew."""
    runtime: RuntimeDir
    """Locked by the caller."""
    redis_url: str
    redis: EmbeddedRedis | None
    """None for an external Redis."""
    listeners: Listeners
    roles: Roles
    messages: StartMessages
    argv: Sequence[str]
    """The command that runs this master, for a version change."""
    leftovers: Leftovers
    """The children to adopt."""
    kept_open: KeptOpen | None = None
    """What this process kept when it executed itself."""
    lifeline_fd: int | None = None
    """The grid stops at the end of file on it."""

    def common(self, pool: PoolSettings | None = None) -> tuple[Settings, str, Path]:
        """The first arguments of every role: settings (a worker gets those of its pool), the URL of Redis, the runtime
        directory."""
        settings = self.settings if pool is None else self.settings.of_pool(pool)
        return settings, self.redis_url, self.runtime.directory
