"""What a master leaves of its children to the next one, a file about each; and which of those that have such files the
next one adopts, or ends."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import ChildKind
from pwgrid.master.policy.changed_settings import concerning, concerning_pool
from pwgrid.master.policy.worker_state_machine import Purpose
from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import (
    RETIRING,
    ChildState,
    boot_id,
    digest,
    read_states,
    remove_state,
    state_path,
)
from pwgrid.runtime.directory import CODE_CACHE, UNWRITTEN
from pwgrid.runtime.process_identity import end, send, wait_ended
from pwgrid.settings.model import Part, Settings
from pwgrid.settings.pools import PoolSettings

if TYPE_CHECKING:
    from pwgrid.master.child import Child
    from pwgrid.master.config import MasterConfig
    from pwgrid.master.upgrade import KeptOpen
    from pwgrid.master.workers.worker import ManagedWorker

log = structlog.get_logger()

AGAIN_S: Final = 3.0
END_S: Final = 3.0


class ChildFileWriter:
    """Keeps one file for each child, below the runtime directory. What a full disk refuses is tried again later."""

    def __init__(self, loop: Loop, config: MasterConfig) -> None:
        self._loop = loop
        self._config = config
        self._runtime = config.runtime.directory
        self._workers: dict[str, ChildState] = {}
        self._refused: dict[Path, ChildState] = {}
        self._again = loop.timer(self._write_refused)

    def settings_of(self, kind: ChildKind) -> str:
        """The fingerprint of the settings that concern a service of this kind, as they are now."""
        parts: tuple[Part, ...] = ("proxy",) if kind == "proxy" else ()
        return digest(concerning(self._config.settings.plain(), *parts))

    def settings_of_pool(self, pool: PoolSettings) -> str:
        """The fingerprint of the settings that the workers of a pool are forked with."""
        return digest(concerning_pool(self._config.settings, pool))

    def worker(self, record: ManagedWorker) -> None:
        """Write a worker's file, if anything in it has changed."""
        if not record.life.has_process:
            self._workers.pop(record.worker_id, None)
            return
        state = self._state("worker", record.worker_id, record.child, record.forked_at, record.settings)
        state.browser_type, state.pool = record.browser_type, record.pool
        state.version = record.code
        state.launched = record.launched
        state.status, state.reason = record.life.status.value, record.life.reason
        state.recycle = record.recycle
        state.spare = record.life.purpose is Purpose.SPARE
        state.is_successor = record.life.successors > 0
        state.sessions_until = record.life.sessions_until if record.life.sessions_until < math.inf else None
        if self._workers.get(record.worker_id) != state:
            self._workers[record.worker_id] = state
            self._write(state)

    def service(self, kind: ChildKind, child: Child, *, status: str = "") -> None:
        """Write the file of a proxy or of the embedded Redis; `status` is RETIRING for a proxy that retires."""
        # By its forked_at the next master finds the newest proxy: it stays, however often the file is written.
        state = self._state(kind, str(child.pid), child, child.create_time, self.settings_of(kind))
        state.status = status
        self._write(state)

    def remove(self, kind: ChildKind, name: str) -> None:
        """Remove the file of a child that has ended. Idempotent."""
        self._refused.pop(state_path(self._runtime, kind, name), None)
        remove_state(self._runtime, kind, name)

    def _state(self, kind: ChildKind, name: str, child: Child, forked_at: float, settings: str) -> ChildState:
        return ChildState(
            kind=kind,
            name=name,
            pid=child.pid,
            create_time=child.create_time,
            registry=registry_of(self._config.redis_url, self._config.settings),
            settings=settings,
            version=self._config.code,
            forked_at=forked_at,
            started_at=child.started_at,
            boot_id=boot_id(),
        )

    def _write(self, state: ChildState) -> None:
        path = state.path(self._runtime)
        known = self._refused.pop(path, None)
        try:
            state.write(self._runtime)
        except FileNotFoundError:
            pass  # a worker removes its directory as the last thing it does
        except OSError as error:
            self._refused[path] = state
            if known is None:
                log.warning("child_file_not_written", process=state.name, reason=error.strerror or str(error))
        if self._refused:
            self._again.arm(min(self._again.when, self._loop.now() + AGAIN_S))

    def _write_refused(self) -> None:
        """Write again what the disk refused: the next master would not know a child without a file."""
        for state in list(self._refused.values()):
            self._write(state)


def registry_of(redis_url: str, settings: Settings) -> str:
    """A name for the Redis and key prefix of these settings, from which no password can be read."""
    return digest((redis_url, settings.redis_key_prefix))


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
