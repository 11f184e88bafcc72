"""The embedded Redis as a child: started first, ended last, and ready once it accepts a connection."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.child import Child, Exit, RestartedChild, fork_command, said
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.registry.embedded_redis_config import EmbeddedRedis
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

PROBE_S: Final = 0.01
STOP_GRACE_S: Final = 10.0
TERM_AFTER_S: Final = 5.0
"""When it gets SIGTERM, if it was told to end and has not."""


class RedisChild(RestartedChild):
    """`ready`: whether it accepts connections."""

    def __init__(self, loop: Loop, server: EmbeddedRedis, files: ChildFileWriter) -> None:
        super().__init__("redis", loop, files)
        self.ready = False
        self._server = server
        self._output = server.socket_path.parent / "output.log"
        self._probe = loop.timer(self._try_connecting)

    @property
    def problem(self) -> str | None:
        """Why it does not run, None while it does."""
        return None if self.ready else super().problem

    def adopt(self, state: ChildState) -> None:
        super().adopt(state)
        if self._child is not None:
            self._try_connecting()

    def stop(self) -> None:
        """End it; all other children must have ended before."""
        now = self._loop.now()
        self.stop_by(now + TERM_AFTER_S if self._tell_to_end() else now, now + STOP_GRACE_S)

    def _fork(self) -> Child:
        directory = self._output.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A killed predecessor leaves its socket file, but only this one's may show that it listens.
        self._server.socket_path.unlink(missing_ok=True)
        child = fork_command(self._loop, self._server.argv, directory, self._output)
        self._probe.arm(self._loop.now())
        return child

    def _on_exit(self, ended: Exit) -> str:
        self.ready = False
        self._probe.cancel()
        lines = said(self._output).splitlines()
        return f"redis-server ended with {ended}" + (f": {lines[-1].strip()[-200:]}" if lines else "")

    def _tell_to_end(self) -> bool:
        """Whether it could be told. It looks only once a second (hz in redis.conf) whether it got a signal, but obeys a
        command at once."""
        with suppress(OSError), _new_socket() as told:
            told.connect(str(self._server.socket_path))
            told.send(b"SHUTDOWN NOSAVE\r\n")
            return True
        return False

    def _try_connecting(self) -> None:
        with suppress(OSError), _new_socket() as probe:  # no descriptor may be free now
            self.ready = probe.connect_ex(str(self._server.socket_path)) == 0
        if self.ready:
            log.info("redis_ready", pid=self.pid)
        else:
            self._probe.arm(self._loop.now() + PROBE_S)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
