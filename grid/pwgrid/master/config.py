"""What pwgrid/cli/start_master.py gives the master: settings, sockets, the roles as callables, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

from pwgrid.master.leftovers import KeptOpen, Leftovers
from pwgrid.registry.embedded_redis import EmbeddedRedis
from pwgrid.runtime.child_arguments import ProxyArguments, WorkerArguments
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


@dataclass(slots=True)
class MasterConfig:
    """Everything the master needs. Only `settings` changes while the grid runs, by a reload."""

    settings: Settings
    redis_url: str
    redis: EmbeddedRedis | None
    """None for an external Redis."""
    runtime: RuntimeDir
    """Locked by the caller."""
    listeners: tuple[socket, ...]
    """Empty where a proxy that another master forked has them."""
    run_worker: Callable[[WorkerArguments], int]
    """What a forked worker does; returns its exit code."""
    run_proxy: Callable[[ProxyArguments], int]
    code: str
    """A digest of the code that runs: children of other code are replaced."""
    reload: Callable[[Collection[str]], tuple[Settings, Callable[[], None]]]
    """Reads the configuration again; gets the pools that have workers although it asks for none. Returns it, and a
    function to call if it is accepted. Raises GridError."""
    check_argv: Sequence[str]
    """Tries the code that `exec_argv` would run."""
    exec_argv: Sequence[str]
    tokens_file: Path | None
    """Where the proxy finds the tokens of `pwgrid token`."""
    lifeline_fd: int | None
    """The grid stops at the end of file on it."""
    open_listeners: Callable[[], tuple[socket, ...]]
    """Makes new listeners if the proxy that has them does not hand them over."""
    leftovers: Leftovers
    """The children to adopt."""
    kept_open: KeptOpen | None
    """What this process kept when it executed itself."""
    describe_settings: Callable[[Settings], dict[str, Any]]
    """The settings with the source of each."""
    is_up_to_date: Callable[[Settings], bool]
    """Whether the code and the browsers that are installed now are those that run."""
    prepare_pool: Callable[[Settings, PoolSettings], None]
    """Raises GridError when a pool that is scaled up from 0 cannot have workers."""
    on_progress: Callable[[str], None]
    """Gets texts while the grid starts."""
    on_ready: Callable[[dict[str, Any]], None]
    """Gets the status once, when the grid is ready."""
    on_not_ready: Callable[[dict[str, Any]], None]
    """Gets the status at most once, before that: the start is over, and status["reason"] says why it is not ready."""
    on_stopping: Callable[[str], None]
    """Gets texts that say what a stop waits for."""
    count_down: Callable[[str], None] | None
    """Gets texts that say, on a terminal, how long a stop may still take."""

    def common(self, pool: PoolSettings | None = None) -> tuple[Settings, str, Path]:
        """The first arguments of every role: settings (a worker gets those of its pool), the URL of Redis, the runtime
        directory."""
        settings = self.settings if pool is None else self.settings.of_pool(pool)
        return settings, self.redis_url, self.runtime.directory
