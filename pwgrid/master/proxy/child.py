"""The proxy as a child: its link, its state, its restart with the listening sockets kept; sees no client."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.common.errors import GridError
from pwgrid.control.frames import Frame
from pwgrid.control.master_end import Channel
from pwgrid.control.protocol import Applied, Link, LinkFullError, Received, StateSeen
from pwgrid.master.child import Child, Exit
from pwgrid.master.config import MasterConfig
from pwgrid.master.fork import fork_role
from pwgrid.master.loop import Loop
from pwgrid.master.restart.child_file_writer import Ledger
from pwgrid.master.restart.leftovers import open_child
from pwgrid.master.single_child import Service
from pwgrid.master.workers.adopt import resumed_link, sockets
from pwgrid.runtime.child_arguments import ProxyArguments
from pwgrid.runtime.child_files import ChildState

log = structlog.get_logger()

STOP_GRACE_S: Final = 5.0
RETIRE_GRACE_S: Final = 30.0
"""What a proxy that retires has beyond the wait of its last client."""

Data = dict[str, Any]


class ProxyChild:
    """Runs the proxy. `on_event(name, data)` is called for each request that comes through it."""

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        on_event: Callable[[str, Data], None],
        listeners: tuple[socket.socket, ...],
    ) -> None:
        self._loop = loop
        self._config = config
        self._on_event = on_event
        self._service = Service("proxy", loop, self._fork, self._on_exit)
        self._channel: Channel | None = None
        self._undelivered: list[tuple[str, Data]] = []
        self._state: Data = {}
        self._ledger = Ledger(config)
        self._is_claimed = True
        self.listeners = listeners
        self.listening = False
        self.ready = False
        """Whether it knows that it can take a session of every pool."""

    @property
    def pid(self) -> int | None:
        """Its pid, None between a death and the restart."""
        return self._service.pid

    @property
    def has_failed(self) -> bool:
        """Whether it has ended at least once."""
        return self._service.backoff.reason is not None

    @property
    def problem(self) -> str | None:
        """Why it ended last."""
        return self._service.backoff.reason

    def tick(self, now: float) -> None:
        """Start or restart it; end it if it is silent for too long."""
        self._service.tick(now)
        self._ledger.tick(now)
        if self._channel is not None:
            self._channel.tick(now)
            if now >= self._lost_at() and self._service.child is not None:
                log.error("proxy_silent", pid=self.pid, after_s=self._config.settings.worker_lost_threshold)
                self._channel.heard_at = now
                self._service.child.end_now(now)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return min(self._service.deadline(), self._lost_at())

    def adopt(self, state: ChildState) -> None:
        """Go on with the one that a former master forked, if it still lives; it has the lost threshold to come back."""
        child = open_child(state)
        if child is None:
            self._ledger.strike("proxy", state.name)
            return
        self._service.adopt(child, self._loop.now())
        self._channel = Channel(self._loop, Link("master", "proxy"), self._received, self._link_down)
        self._is_claimed = False

    def push_state(self, state: Data) -> None:
        """Tell the proxy, and each of its successors, what there is; only what changed is sent."""
        if state != self._state:
            self._state = state
            if self._channel is not None:
                self._channel.push_state(state)

    def send(self, name: str, data: Data) -> None:
        """A command, delivered to this proxy or, if it dies first, to the next one."""
        if self._channel is None:
            self._undelivered.append((name, data))
            return
        try:
            self._channel.send(name, data)
        except LinkFullError as error:
            log.error("command_dropped", command=name, reason=str(error))

    def stop(self, now: float) -> None:
        """Ask it to end, then see to it."""
        self._service.stop(now + STOP_GRACE_S, now + 2 * STOP_GRACE_S)
        if self._channel is not None:
            self.send("stop", {})

    def retire(self, now: float) -> None:
        """Ask it to serve whom it has accepted, accept nobody else, and go; then see to it."""
        deadline = now + self._config.settings.worker_select_timeout + RETIRE_GRACE_S
        self._service.stop(deadline, deadline + STOP_GRACE_S)
        if self._channel is not None:
            self.send("retire", {})

    def kill(self, now: float) -> None:
        """End it without asking."""
        self._service.stop(now, now)

    def attach(self, sock: socket.socket, frame: Frame, init: bytes, fds: list[int]) -> bool:
        """Take a reconnect of the proxy's; False when there is none to have it. `fds` are its listening sockets.

        Raises ProtocolError when `frame`, the init, says something impossible.
        """
        if self._channel is None:
            return False
        if not self._is_claimed:
            self._channel.link = resumed_link(self._channel.link, frame)
            self._channel.link.state(self._state)
            self._is_claimed = self.listening = True
            log.info("proxy_came_back", pid=self.pid)
        came = tuple(sockets(fds))
        if self.listeners:
            for spare in came:
                spare.close()
        else:
            self.listeners = came
        self._channel.attach(sock, self._greeting(), init)
        return True

    def _fork(self) -> Child:
        if not self.listeners:
            try:
                self.listeners = self._config.open_listeners()
            except GridError as error:
                raise OSError(errno.EADDRINUSE, str(error)) from None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = self._config
        boot = ProxyArguments(config.settings, config.redis_url, config.runtime.directory, theirs, self.listeners)
        keep = {theirs.fileno(), *(listener.fileno() for listener in self.listeners)}
        try:
            child = fork_role("proxy", lambda: config.roles.proxy(boot), keep)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(self._loop, Link("master", "proxy"), self._received, self._link_down)
        self._channel.attach(ours, self._greeting())
        self._channel.push_state(self._state)
        for name, data in self._undelivered:
            self._channel.send(name, data)
        self._undelivered.clear()
        self._is_claimed = True
        self._ledger.service("proxy", child)
        return child

    def _on_exit(self, ended: Exit) -> str:
        self.listening = self.ready = False
        if self.pid is not None:
            self._ledger.strike("proxy", str(self.pid))
        if self._channel is not None:
            self._channel.read_rest()
            self._channel.close()
            # What it may not have done is its successor's to do; `stop` was meant for this one.
            self._undelivered = [
                item for item in self._channel.link.unacknowledged() if item[0] not in ("stop", "retire")
            ]
            self._channel = None
        return f"proxy ended with {ended}"

    def _received(self, item: Received) -> None:
        if isinstance(item, StateSeen):
            self.ready = bool(item.data.get("ready"))
        elif isinstance(item, Applied):
            if item.name == "listening":
                self.listening = True
            else:
                self._on_event(item.name, item.data)

    def _link_down(self, reason: str) -> None:
        log.info("control_link_down", process="proxy", pid=self.pid, reason=reason)

    def _lost_at(self) -> float:
        return self._channel.heard_at + self._config.settings.worker_lost_threshold if self._channel else math.inf

    def _greeting(self) -> Data:
        return {"lostThresholdS": self._config.settings.worker_lost_threshold}
