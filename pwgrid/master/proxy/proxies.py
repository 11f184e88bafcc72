"""The proxy and, while it is being replaced, its successor and those that go: a change of hands that refuses nobody."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.control.frames import Frame
from pwgrid.master.config import MasterConfig
from pwgrid.master.loop import Loop
from pwgrid.master.proxy.child import ProxyChild
from pwgrid.master.restart.leftovers import Former

log = structlog.get_logger()

START_S: Final = 20.0
"""A successor that does not listen by then is given up; the old one stays."""

Data = dict[str, Any]


class Proxies:
    """Runs one proxy. `on_event(name, data)` is called for each request that comes through any of them."""

    def __init__(self, loop: Loop, config: MasterConfig, on_event: Callable[[str, Data], None]) -> None:
        self._loop = loop
        self._config = config
        self._on_event = on_event
        self._current = self._make(config.listeners)
        self._coming: ProxyChild | None = None
        self._leaving: list[ProxyChild] = []
        self._start_by = math.inf
        self._wanted: str | None = None
        self._then: Callable[[], None] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the one that serves, None between a death and the restart."""
        return self._current.pid

    @property
    def listening(self) -> bool:
        """Whether it serves."""
        return self._current.listening

    @property
    def ready(self) -> bool:
        """Whether it serves, and knows that it can take a session of every pool."""
        return self._current.listening and self._current.ready

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """The listening sockets; empty while only a proxy of a former master has them."""
        return self._current.listeners

    @property
    def is_being_replaced(self) -> bool:
        """Whether a change of hands is under way."""
        return self._wanted is not None or self._coming is not None

    def pids(self) -> set[int]:
        """Of all that there are."""
        return {each.pid for each in self._all() if each.pid is not None}

    def adopt(self, former: Former) -> None:
        """Go on with what a former master left; second proxies finish what they have and go."""
        if former.proxy is not None:
            self._current.adopt(former.proxy)
        for state in former.retiring:
            leaving = self._make(())
            leaving.adopt(state)
            self._retire(leaving)

    def replace(self, reason: str, then: Callable[[], None] | None = None) -> None:
        """Start another one, and retire this one once that serves; `then` is called when it does, or cannot."""
        self._wanted = reason
        self._then = then or self._then

    def tick(self, now: float) -> None:
        """Start, restart, replace, and end what is due."""
        self._current.tick(now)
        if self._wanted is not None and self._coming is None and self._current.listening and self.listeners:
            log.info("proxy_replacing", pid=self.pid, reason=self._wanted)
            self._wanted, self._start_by = None, now + START_S
            self._coming = self._make(self.listeners)
        if self._coming is not None:
            self._coming.tick(now)
            self._judge(self._coming, now)
        for each in self._leaving:
            each.tick(now)
        self._leaving = [each for each in self._leaving if each.pid is not None]

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        coming = min(self._coming.deadline(), self._start_by) if self._coming else math.inf
        return min(coming, *(each.deadline() for each in (self._current, *self._leaving)))

    def push_state(self, state: Data) -> None:
        """Tell all of them what there is."""
        for each in self._all():
            each.push_state(state)

    def send(self, name: str, data: Data) -> None:
        """A command, delivered to the proxy that serves or, if it dies first, to the next one; and to those that go."""
        self._current.send(name, data)
        for each in self._leaving:
            if each.pid is not None:
                each.send(name, data)

    def stop(self, now: float) -> None:
        """Ask all of them to end, then see to it."""
        self._end_replacement()
        for each in self._all():
            each.stop(now)

    def kill(self, now: float) -> None:
        """End all of them without asking."""
        self._end_replacement()
        for each in self._all():
            each.kill(now)

    def attach(self, pid: int, sock: socket.socket, frame: Frame, init: bytes, fds: list[int]) -> bool:
        """Take the reconnect of process `pid`; False when it is none of ours."""
        return any(each.pid == pid and each.attach(sock, frame, init, fds) for each in self._all())

    def _judge(self, coming: ProxyChild, now: float) -> None:
        if coming.listening:
            self._retire(self._current)
            self._current, self._coming = coming, None
            log.info("proxy_replaced", pid=self.pid)
        elif coming.has_failed or now >= self._start_by:
            log.error("proxy_not_replaced", reason=coming.problem or f"it does not listen after {START_S:g} s")
            self._coming = None
            coming.kill(now)
            self._leaving.append(coming)
        else:
            return
        then, self._then = self._then, None
        if then is not None:
            then()

    def _retire(self, proxy: ProxyChild) -> None:
        proxy.retire(self._loop.now())
        self._leaving.append(proxy)

    def _end_replacement(self) -> None:
        self._wanted = self._then = None
        if self._coming is not None:
            self._leaving.append(self._coming)
            self._coming = None

    def _make(self, listeners: tuple[socket.socket, ...]) -> ProxyChild:
        return ProxyChild(self._loop, self._config, self._on_event, listeners)

    def _all(self) -> list[ProxyChild]:
        return [self._current, *([self._coming] if self._coming else []), *self._leaving]
