"""What the master gives to a child that it forks: plain data and open sockets."""

import math
import socket
from dataclasses import dataclass
from pathlib import Path

from pwgrid.common.types import BrowserType
from pwgrid.common.worker_lifecycle import DrainTime
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import PoolSettings


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """Everything a worker needs that only the master can give; `settings` are those of its `pool`.

    `ipc` is the worker's end of Node's IPC link and `ipc_child` the browser server's end (None when this worker takes
    over the browser server of a dead one). The master keeps a copy of `ipc`, so that the link outlives the worker.
    `registry_seen`: a worker has registered since the grid started, so this one need not wait for a Redis that is away.
    `spare`: it waits, warm and unregistered, until the master tells it to serve.
    `sessions_until`: how long the sessions of a dead worker may go on (monotonic seconds), by its `drain_time`.
    `tokens_file` is as a proxy's.
    """

    settings: Settings
    redis_url: str
    runtime: Path
    directory: Path
    worker_id: str
    pool: PoolSettings
    control: socket.socket
    ipc: socket.socket
    ipc_child: socket.socket | None
    adopt_node_pid: int | None = None
    registry_seen: bool = False
    spare: bool = False
    sessions_until: float = math.inf
    drain_time: DrainTime = DrainTime.RECYCLE
    tokens_file: Path | None = None

    @property
    def browser_type(self) -> BrowserType:
        return self.pool.browser_type


@dataclass(frozen=True, slots=True)
class ProxyArguments:
    """Everything the proxy needs that only the master can give. `listeners` are bound and listening already;
    `tokens_file` is where `pwgrid token` keeps its tokens, None where that file is not read."""

    settings: Settings
    redis_url: str
    runtime: Path
    control: socket.socket
    listeners: tuple[socket.socket, ...]
    tokens_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ForwarderArguments:
    """Everything that the forwarder needs. It connects to the master's control socket, as a later master's."""

    settings: Settings
    runtime: Path


@dataclass(frozen=True, slots=True)
class TlsArguments:
    """Everything that a TLS process needs that only the master can give. `listeners` are those for clients that speak
    TLS, bound and listening already."""

    settings: Settings
    runtime: Path
    control: socket.socket
    listeners: tuple[socket.socket, ...]
