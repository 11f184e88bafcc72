"""The embedded Redis as a child: started first, ended last; speaks no Redis, only knows whether it accepts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.loop import Loop
from pwgrid.master.child import Child, Exit
from pwgrid.master.config import RedisSpec
from pwgrid.master.fork import fork_command
from pwgrid.master.restart.child_file_writer import ChildFileWriter
from pwgrid.master.restart.leftovers import open_child
from pwgrid.master.single_child import SingleChild
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

PROBE_S: Final = 0.01
STOP_GRACE_S: Final = 10.0
_OUTPUT: Final = "output.log"


class RedisChild:
    """Runs the embedded Redis."""

    def __init__(self, loop: Loop, spec: RedisSpec, files: ChildFileWriter) -> None:
        self.ready = False
        """Whether it accepts connections."""
        self._loop = loop
        self._spec = spec
        self._files = files
        self._child = SingleChild("redis", loop, self._fork, self._on_exit)
        self._probe = loop.timer(self._look)

    @property
    def pid(self) -> int | None:
        """None between a death and the restart."""
        return self._child.pid

    @property
    def problem(self) -> str | None:
        """Why it does not run, None while it does."""
        return None if self.ready else self._child.backoff.reason

    def start(self) -> None:
        """Start it, and again whenever it ends. Idempotent."""
        self._child.start()

    def adopt(self, state: ChildState) -> None:
        """Go on with the one that another master forked, if it still lives."""
        child = open_child(self._loop, state)
        if child is not None:
            self._child.adopt(child)
            self._look()

    def stop(self) -> None:
        """End it; it must be the last to go."""
        now = self._loop.now()
        self._child.stop(now, now + STOP_GRACE_S)

    def kill(self) -> None:
        """End it without waiting for anything."""
        now = self._loop.now()
        self._child.stop(now, now)

    def _fork(self) -> Child:
        directory = self._directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A socket file of its killed predecessor would be in the way of knowing when this one listens.
        self._spec.socket_path.unlink(missing_ok=True)
        child = fork_command(self._loop, self._spec.argv, directory, directory / _OUTPUT)
        self._probe.arm(self._loop.now())
        self._files.service("redis", child)
        return child

    def _on_exit(self, _pid: int, ended: Exit) -> str:
        self.ready = False
        self._probe.cancel()
        said = self._last_words()
        return f"redis-server ended with {ended}" + (f": {said}" if said else "")

    def _last_words(self) -> str:
        try:
            lines = (self._directory() / _OUTPUT).read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[-200:] if lines else ""

    def _directory(self) -> Path:
        return self._spec.socket_path.parent

    def _look(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
            self.ready = probe.connect_ex(str(self._spec.socket_path)) == 0
        if self.ready:
            log.info("redis_ready", pid=self.pid)
        else:
            self._probe.arm(self._loop.now() + PROBE_S)
