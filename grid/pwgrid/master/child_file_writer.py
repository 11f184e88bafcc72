"""Keeps one file for each child of the master, by which the next master knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import ChildKind
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.changed_settings import concerning, concerning_pool
from pwgrid.runtime.child_files import ChildState, boot_id, digest, registry_of, remove_state, state_path
from pwgrid.settings.model import Part
from pwgrid.settings.pools import PoolSettings

log = structlog.get_logger()

RETRY_INTERVAL_S: Final = 3.0
"""How long a file waits that a full disk has refused."""


_PARTS: Final[Mapping[ChildKind, tuple[Part, ...]]] = {"proxy": ("proxy", "fixed"), "tls": ("fixed",)}
"""What concerns a service. What is fixed while one master runs may be different for the next one."""


class ForkedProcess(Protocol):
    """A process of a child: `create_time` in seconds since boot, `started_at` in Unix seconds."""

    @property
    def pid(self) -> int: ...
    @property
    def create_time(self) -> float: ...
    @property
    def started_at(self) -> float: ...


class ChildFileWriter:
    """Writes below the runtime directory. What a full disk refuses is tried again later."""

    def __init__(self, loop: Loop, config: MasterConfig) -> None:
        self._loop = loop
        self._config = config
        self._runtime = config.runtime.directory
        self._written: dict[Path, ChildState] = {}
        self._refused: dict[Path, ChildState] = {}
        self._again = loop.timer(self._write_refused)

    def settings_of(self, kind: ChildKind) -> str:
        """The fingerprint of the settings that concern a service of this kind, as they are now."""
        return digest(concerning(self._config.settings.plain(), *_PARTS.get(kind, ())))

    def settings_of_pool(self, pool: PoolSettings) -> str:
        """The fingerprint of the settings that the workers of a pool are forked with."""
        return digest(concerning_pool(self._config.settings, pool))

    def new_state(self, kind: ChildKind, name: str, process: ForkedProcess, forked_at: float) -> ChildState:
        """What any child's file says of it; its settings are those that concern its kind now."""
        return ChildState(
            kind=kind,
            name=name,
            pid=process.pid,
            create_time=process.create_time,
            registry=registry_of(self._config.redis_url, self._config.settings.redis_key_prefix),
            settings=self.settings_of(kind),
            version=self._config.parts.code,
            forked_at=forked_at,
            started_at=process.started_at,
            boot_id=boot_id(),
        )

    def write(self, state: ChildState) -> None:
        """Write the child's file, if anything in it has changed."""
        path = state.path(self._runtime)
        if self._written.get(path) != state:
            self._written[path] = state
            self._write(state)

    def forget(self, kind: ChildKind, name: str) -> None:
        """Write the child's file anew at the next time, whatever it says: another process has its name by then."""
        self._written.pop(state_path(self._runtime, kind, name), None)

    def remove(self, kind: ChildKind, name: str) -> None:
        """Remove the file of a child that has ended. Idempotent."""
        self.forget(kind, name)
        self._refused.pop(state_path(self._runtime, kind, name), None)
        remove_state(self._runtime, kind, name)

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
            self._again.arm(min(self._again.when, self._loop.now() + RETRY_INTERVAL_S))

    def _write_refused(self) -> None:
        """Write again what the disk refused: the next master would not know a child without a file."""
        for state in list(self._refused.values()):
            self._write(state)
