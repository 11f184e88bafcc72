"""Runs the forwarder, if the grid may have other hosts; keeps its sessions while there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.server import Reconnect
from pwgrid.master.child import NO_DEATHS, Child, Exit, RestartedChild, fork_role
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.parked_sessions import ParkedSessions
from pwgrid.runtime.child_arguments import ForwarderArguments
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

LEAVE_S: Final = 10.0
"""Time to leave its sessions to a successor; they go on all the same if it is killed."""

HAS_ALL_S: Final = 5.0
"""How long this process waits for a forwarder before it ends or executes itself: a start takes a second at the most."""

_LOOK_S: Final = 0.02

_QUICKLY: Final = replace(NO_DEATHS, cap_s=1.0)
"""While there is no forwarder, the sessions of all clients of other hosts' workers stand still."""


class ForwarderChild(RestartedChild):
    """`parked` are the sessions that go on when it dies: the next one takes them over."""

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter) -> None:
        super().__init__("forwarder", loop, files)
        self._backoff = _QUICKLY
        self._config = config
        self._is_outdated = False
        """Whether it runs with other code or settings than are wanted now."""
        self._leaves = False
        """Whether it was told to make room for a successor."""
        self._end_at = -math.inf
        """Until when sessions may go on once it is to end (monotonic seconds)."""
        self._is_last = False
        """Whether it was forked for the sessions of another one that was to end, and takes nobody new."""
        self.parked = ParkedSessions(loop, lambda: config.settings.worker_lost_threshold, self._is_not_heard)

    @property
    def has_ended(self) -> bool:
        """Whether it has, for good: while sessions may go on, another one takes over those that it has left."""
        return self.pid is None and not self._goes_on

    @property
    def _goes_on(self) -> bool:
        return self._is_wanted or (len(self.parked) > 0 and self._loop.now() < self._end_at)

    @property
    def is_due(self) -> bool:
        """Whether the grid may have other hosts: they share a Redis, and reach each other."""
        return self._config.redis is None and bool(self._config.settings.advertised_host)

    def start_if_due(self) -> None:
        """Keep it running from now on, if it is due. Idempotent."""
        if self.is_due:
            self.start()

    def adopt(self, state: ChildState) -> None:
        """Take over one that another master forked: it reconnects, and parks its sessions here. One that runs other
        code leaves them to a successor; one that is not due any more ends with the last of them."""
        super().adopt(state)
        if self._child is None:
            return
        self.parked.expect_within(self._config.settings.worker_lost_threshold)
        self._is_outdated = state.version != self._config.parts.code
        if not self.is_due:
            self.stop(math.inf)

    def attach(self, reconnect: Reconnect) -> bool:
        """Take its connection; False if it is no child of this master. Raises ProtocolError."""
        if reconnect.pid != self.pid:
            return False
        for each in reconnect.sockets:
            each.close()
        self.parked.attach(reconnect.sock, reconnect.init)
        if self._is_last:
            self.parked.tell("drain", {})  # behind the sessions: with a signal it could end before it has them
        if self._is_outdated:
            self.replace()
        return True

    def replace(self) -> None:
        """Have it leave its sessions to a successor, which has the code and the settings of now."""
        if self._child is None or not self.is_wanted:
            return
        self._is_outdated = True
        if not self.parked.is_connected:  # it has not parked its sessions here yet
            return
        self._leaves = True
        self._child.end_by(math.inf, self._loop.now() + LEAVE_S)
        self.parked.tell("leave", {})

    def once_it_has_all(self, then: Callable[[], None]) -> None:
        """Call `then`, which ends this process or executes it anew, now or when the forwarder has all sessions that are
        parked here: they would end with this process. After HAS_ALL_S it is called all the same."""
        self._look(then, self._loop.now() + HAS_ALL_S)

    def _look(self, then: Callable[[], None], until: float) -> None:
        self.parked.read_what_is_left()
        has_ended = self._child is not None and not self._child.lives
        has_all, now = self.parked.are_with_forwarder and not (self._leaves or has_ended), self._loop.now()
        if not has_all and now < until:
            self._loop.call_at(now + _LOOK_S, lambda: self._look(then, until))
            return
        if not has_all:
            log.error("forwarded_sessions_lost", sessions=len(self.parked), after_s=HAS_ALL_S)
        then()

    def tell(self, name: str, data: Frame) -> None:
        """Send it a command, if it is connected."""
        self.parked.tell(name, data)

    def stop(self, end_at: float) -> None:
        """Have it take nobody new, and end with its last session; at `end_at` (monotonic seconds) it is killed. If it
        ends before, another one goes on with what it leaves."""
        self._end_at = end_at
        self.stop_by(self._loop.now(), end_at)
        if self._child is None:
            self._start()

    def kill(self) -> None:
        self._end_at = -math.inf
        super().kill()
        self.parked.close()

    def _start(self) -> None:
        if not self._goes_on:
            self.parked.close()
            return
        super()._start()
        if self._child is not None and not self._is_wanted:
            self._child.end_by(math.inf, self._end_at)

    def _fork(self) -> Child:
        config, (settings, _, runtime) = self._config, self._config.common()
        child = fork_role(self._loop, lambda: config.roles.forwarder(ForwarderArguments(settings, runtime)), ())
        self._is_outdated = self._leaves = False
        self._is_last = not self.is_wanted
        self.parked.expect_within(settings.worker_lost_threshold)
        return child

    def _ended(self, pid: int, ended: Exit) -> None:
        self.parked.drop_link()  # what it has said last tells what it leaves
        if not (self._leaves and self._goes_on):
            super()._ended(pid, ended)
            return
        self._child = None
        self._files.remove("forwarder", str(pid))
        log.info("forwarder_replaced", pid=pid, reason=self._on_exit(ended))
        self._start()

    def _on_exit(self, ended: Exit) -> str:
        self.parked.expect_within(math.inf)
        if not self._goes_on:
            self.parked.close()
        return f"forwarder ended with {ended}"

    def _is_not_heard(self) -> None:
        """A frozen one moves no byte."""
        if self._child is not None:
            log.error("forwarder_silent", pid=self.pid, after_s=self._config.settings.worker_lost_threshold)
            now = self._loop.now()
            self._child.end_by(now, now)
