"""The embedded Redis as a child: started first, ended last; speaks no Redis, only knows whether it accepts."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from typing import Final

import structlog

from pwgrid.master.child import Child, Exit
from pwgrid.master.config import RedisSpec
from pwgrid.master.fork import fork_command
from pwgrid.master.loop import Loop
from pwgrid.master.restart.child_file_writer import Ledger
from pwgrid.master.restart.leftovers import open_child
from pwgrid.master.single_child import Service
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

PROBE_S: Final = 0.01
STOP_GRACE_S: Final = 10.0
_OUTPUT: Final = "output.log"


class RedisChild:
    """Runs the embedded Redis, or nothing when it is an external one (`spec` None): that one is taken as ready."""

    def __init__(self, loop: Loop, spec: RedisSpec | None, ledger: Ledger | None = None) -> None:
        self._loop = loop
        self._ledger = ledger
        self._spec = spec
        self.ready = spec is None
        self._service = Service("redis", loop, self._fork, self._on_exit) if spec else None
        self._probe_at = math.inf

    @property
    def pid(self) -> int | None:
        """Its pid; None for an external one, and between a death and the restart."""
        return self._service.pid if self._service else None

    @property
    def problem(self) -> str | None:
        """Why it does not run, None while it does."""
        return self._service.backoff.reason if self._service and not self.ready else None

    def tick(self, now: float) -> None:
        """Start it, restart it, and see whether it accepts connections."""
        if self._service is None:
            return
        self._service.tick(now)
        if self._ledger is not None:
            self._ledger.tick(now)
        if now >= self._probe_at and self._service.pid is not None:
            self.ready = self._accepts()
            self._probe_at = math.inf if self.ready else now + PROBE_S
            if self.ready:
                log.info("redis_ready", pid=self._service.pid)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return min(self._service.deadline(), self._probe_at) if self._service else math.inf

    def adopt(self, state: ChildState) -> None:
        """Go on with the one that a former master forked, if it still lives."""
        child = open_child(state)
        if child is not None and self._service is not None:
            self._service.adopt(child, self._loop.now())
            self._probe_at = self._loop.now()

    def stop(self, now: float) -> None:
        """End it; it must be the last to go."""
        if self._service is not None:
            self._service.stop(now, now + STOP_GRACE_S)

    def kill(self, now: float) -> None:
        """End it without waiting for anything."""
        if self._service is not None:
            self._service.stop(now, now)

    def _fork(self) -> Child:
        assert self._spec is not None
        directory = self._directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A socket file of its killed predecessor would be in the way of knowing when this one listens.
        self._spec.socket_path.unlink(missing_ok=True)
        child = fork_command("redis", self._spec.argv, directory, directory / _OUTPUT)
        self._probe_at = self._loop.now()
        if self._ledger is not None:
            self._ledger.service("redis", child)
        return child

    def _on_exit(self, ended: Exit) -> str:
        self.ready = False
        self._probe_at = math.inf
        said = self._last_words()
        return f"redis-server ended with {ended}" + (f": {said}" if said else "")

    def _last_words(self) -> str:
        try:
            lines = (self._directory() / _OUTPUT).read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[-200:] if lines else ""

    def _directory(self) -> Path:
        assert self._spec is not None
        return self._spec.socket_path.parent

    def _accepts(self) -> bool:
        assert self._spec is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
            return probe.connect_ex(str(self._spec.socket_path)) == 0
