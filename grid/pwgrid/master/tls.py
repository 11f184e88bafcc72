"""Runs the process that speaks TLS, to clients and to other hosts, if the grid does; and old ones until their last
session has ended."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.master_side import MasterSide
from pwgrid.control.server import Reconnect
from pwgrid.master.child import NO_DEATHS, Child, Exit, RestartedChild, fork_linked
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.leftovers import Leftovers
from pwgrid.runtime.child_arguments import TlsArguments
from pwgrid.runtime.child_files import RETIRING, ChildState

log = structlog.get_logger()

NAME: Final = "tls"
"""What its processes call themselves."""

STOP_GRACE_S: Final = 5.0
"""When all browser servers and proxies have ended, clients still get what those have said last."""

_QUICKLY: Final = replace(NO_DEATHS, cap_s=1.0)
"""While there is none, no client is served."""

Listeners = Callable[[], tuple[socket.socket, ...]]


class TlsChild(RestartedChild):
    """Runs one. `listeners` returns the sockets that it accepts clients on."""

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter, listeners: Listeners) -> None:
        super().__init__(NAME, loop, files)
        self._backoff = _QUICKLY
        self._config = config
        self._listeners = listeners
        self._link: MasterSide | None = None
        self.sessions = 0
        self.certificate_problem: str | None = None
        """Why new clients do not get the certificate that is in the files now."""
        self.kernel: str | None = None
        """The highest version of TLS that the kernel speaks with clients."""
        self.why_no_kernel: str | None = None
        """Why it speaks none."""

    def adopt(self, state: ChildState) -> None:
        """Take over one that another master forked; it has WORKER_LOST_THRESHOLD to reconnect."""
        super().adopt(state)
        if self._child is not None:
            self._link = self._new_link(adopts=True)

    def attach(self, reconnect: Reconnect) -> bool:
        """Take its new connection; False when there is no link for it. Raises ProtocolError."""
        if self._link is None:
            return False
        self._link.attach(reconnect.sock, reconnect.init)
        for each in reconnect.sockets:
            each.close()
        return True

    def send(self, name: str, data: Frame) -> None:
        """Send it a command, if it runs."""
        if self._link is not None:
            self._link.send(name, data)

    def leave(self, term_at: float = math.inf) -> None:
        """Have it accept nobody any more, and end with its last session; end it at `term_at` (monotonic seconds)."""
        self.stop_by(term_at, term_at + STOP_GRACE_S)
        self.send("leave", {})
        self._write_file(RETIRING)

    def _fork(self) -> Child:
        config, (settings, _, runtime) = self._config, self._config.common()
        found = self._listeners() if settings.tls_cert else ()
        listeners = tuple(each for each in found if each.family != socket.AF_UNIX)
        child, control = fork_linked(
            self._loop,
            lambda control: config.roles.tls(TlsArguments(settings, runtime, control, listeners)),
            listeners,
        )
        link = self._link = self._new_link()
        link.attach(control)
        return child

    def _on_exit(self, ended: Exit) -> str:
        self.sessions, self.certificate_problem = 0, None
        if self._link is not None:
            self._link.read_what_is_left()
            self._link.close("ended")
            self._link = None
        return f"tls ended with {ended}"

    def _new_link(self, *, adopts: bool = False) -> MasterSide:
        lost_s = self._config.settings.worker_lost_threshold
        return MasterSide(self._loop, NAME, lost_s, self._heard, self._is_not_heard, adopts=adopts)

    def _heard(self, frame: Frame) -> None:
        match frame:
            case {"t": "state", "data": {"sessions": int(sessions), "problem": problem} as said}:
                self.sessions, self.certificate_problem = sessions, None if problem is None else str(problem)
                self.kernel, self.why_no_kernel = said.get("kernel"), said.get("whyNot")

    def _is_not_heard(self) -> None:
        """A frozen one moves no byte, and accepts nobody."""
        if self._child is not None:
            log.error("tls_silent", pid=self.pid, after_s=self._config.settings.worker_lost_threshold)
            now = self._loop.now()
            self._child.end_by(now, now)


class TlsProcesses:
    """Runs one, `current`, where the grid speaks TLS, and others until their last session has ended."""

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter, listeners: Listeners) -> None:
        self._loop = loop
        self._config = config
        self._files = files
        self._listeners = listeners
        self.current = self._make()
        self._leaving: list[TlsChild] = []

    @property
    def is_due(self) -> bool:
        """Whether the grid has a certificate, or is to reach hosts that have one."""
        return bool(self._config.settings.tls_cert or self._config.settings.tls_ca)

    def start_if_due(self) -> None:
        """Keep it running from now on, if it is due, and there is something to accept clients on. Idempotent."""
        if self.is_due and self._listeners():
            self.current.start()

    def adopt(self, leftovers: Leftovers) -> None:
        """Take over those that another master left; the newest one goes on accepting, unless it is not due, or runs
        other code or with other settings."""
        accepting = leftovers.tls
        for state in leftovers.retiring_tls:
            self._adopt_leaving(state)
        if accepting is None:
            return
        is_as_wanted = (accepting.version, accepting.settings) == (
            self._config.parts.code,
            self._files.settings_of(NAME),
        )
        if self.is_due and is_as_wanted:
            self.current.adopt(accepting)
        else:
            self._adopt_leaving(accepting)

    def replace(self) -> None:
        """Have another one accept clients, with the code of now; the old one ends with its last session."""
        if self.current.pid is None or not self.current.is_wanted:
            return
        old, self.current = self.current, self._make()
        self.start_if_due()
        old.leave()
        self._leaving.append(old)

    def tell_all(self, name: str, data: Frame) -> None:
        for each in self._all():
            each.send(name, data)

    def leave(self) -> None:
        """Have all of them accept nobody any more, and end with their last sessions."""
        for each in self._all():
            each.leave()

    def stop(self) -> None:
        """Have all of them end with their last sessions, whose other ends are closed by now; after STOP_GRACE_S they
        are ended."""
        for each in self._all():
            each.leave(self._loop.now() + STOP_GRACE_S)

    def kill(self) -> None:
        for each in self._all():
            each.kill()

    def pids(self) -> set[int]:
        return {each.pid for each in self._all() if each.pid is not None}

    def attach(self, reconnect: Reconnect) -> bool:
        """Take the new connection of one of them; False when it is none."""
        return any(each.pid == reconnect.pid and each.attach(reconnect) for each in self._all())

    def status_reply(self) -> dict[str, Any] | None:
        """What the status says of them; None where there are none."""
        self._leaving = [each for each in self._leaving if each.pid is not None]
        if not self.is_due and not self._leaving:
            return None
        sessions = sum(each.sessions for each in self._all())
        problem = self.current.certificate_problem if self.current.pid is not None else self.current.problem
        return {
            "pid": self.current.pid,
            "sessions": sessions,
            "problem": problem,
            "kernel": self.current.kernel,
            "whyNotKernel": self.current.why_no_kernel,
        }

    def _adopt_leaving(self, state: ChildState) -> None:
        child = self._make()
        child.adopt(state)
        child.leave()
        self._leaving.append(child)

    def _make(self) -> TlsChild:
        return TlsChild(self._loop, self._config, self._files, self._listeners)

    def _all(self) -> Iterator[TlsChild]:
        yield self.current
        yield from self._leaving
