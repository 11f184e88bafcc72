"""What pwgrid/cli/serve.py gives the master: settings, sockets, the roles as callables, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any

from pwgrid.master.restart.children_to_adopt import Leftovers
from pwgrid.master.restart.reexec import KeptOpen
from pwgrid.registry.embedded_redis import EmbeddedRedis
from pwgrid.runtime.child_arguments import ProxyArguments, WorkerArguments
from pwgrid.runtime.directory import RuntimeDir
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


@dataclass(frozen=True, slots=True)
class Roles:
    """What the forked children run; each returns its exit code."""

    worker: Callable[[WorkerArguments], int]
    proxy: Callable[[ProxyArguments], int]


def _do_nothing(*_arguments: object) -> None: ...


def _is_always(_settings: Settings) -> bool:
    return True


def _no_sources(_settings: Settings) -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class MasterConfig:
    """Everything the master needs. `runtime` is locked by the caller; `redis` is None for an external Redis.

    Only `settings` changes while the grid runs, by a reload. `listeners` is empty where a proxy that another master
    forked has them; `open_listeners` makes new ones if that proxy does not hand them over. `leftovers` are the children
    to adopt, and `kept_open` is what this process kept when it executed itself. `reload(scaled_up)` reads the
    configuration again, whose pools in `scaled_up` have workers although it asks for none, and returns it with a
    function to call if it is accepted; `describe_settings` adds the source of each setting. `is_up_to_date(settings)`
    says whether the code and the browsers that are installed now are those that run; `check_argv` tries the code that
    `exec_argv` would run. The proxy finds the tokens of `pwgrid token` in `tokens_file`.

    `prepare_pool(settings, pool)` raises GridError when a pool that is scaled up from 0 cannot have workers.
    `on_progress(text)` is called while the grid starts, `on_ready(status)` once, when it is ready, and before that at
    most once `on_not_ready(status)`, when the start is over and the grid is not ready (status["reason"] says why).
    `on_stopping(text)` says what a stop waits for, and `count_down(text)`, on a terminal, how long it may still take.
    The grid stops at the end of file on `lifeline_fd`.
    """

    settings: Settings
    redis_url: str
    redis: EmbeddedRedis | None
    runtime: RuntimeDir
    listeners: tuple[socket, ...]
    roles: Roles
    version: str
    code: str
    endpoint: str
    tokens_file: Path | None = None
    lifeline_fd: int | None = None
    open_listeners: Callable[[], tuple[socket, ...]] = tuple
    leftovers: Leftovers = field(default_factory=Leftovers)
    kept_open: KeptOpen | None = None
    reload: Callable[[Collection[str]], tuple[Settings, Callable[[], None]]] | None = None
    describe_settings: Callable[[Settings], dict[str, Any]] = _no_sources
    is_up_to_date: Callable[[Settings], bool] = _is_always
    check_argv: Sequence[str] = ()
    exec_argv: Sequence[str] = ()
    prepare_pool: Callable[[Settings, PoolSettings], None] = _do_nothing
    on_progress: Callable[[str], None] = _do_nothing
    on_ready: Callable[[dict[str, Any]], None] = _do_nothing
    on_not_ready: Callable[[dict[str, Any]], None] = _do_nothing
    on_stopping: Callable[[str], None] = _do_nothing
    count_down: Callable[[str], None] | None = None

    def common(self, pool: PoolSettings | None = None) -> tuple[Settings, str, Path]:
        """The first arguments of every role: settings (a worker gets those of its pool), the URL of Redis, the runtime
        directory."""
        settings = self.settings if pool is None else self.settings.of_pool(pool)
        return settings, self.redis_url, self.runtime.directory
