"""Runs the proxy, and replaces it without refusing a client: the new one listens before the old one retires."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.server import Reconnect
from pwgrid.master.config import MasterConfig
from pwgrid.master.proxy.proxy_child import ProxyChild
from pwgrid.master.restart.child_file_writer import ChildFileWriter
from pwgrid.master.restart.children_to_adopt import Leftovers

log = structlog.get_logger()

START_S: Final = 20.0
"""A new proxy that does not listen after so long is killed; the old one stays."""

Data = dict[str, Any]


class Proxies:
    """Runs one proxy, `current`, and others during a replacement. `on_event(name, data)` is called for each operator's
    request that any of them passes on."""

    def __init__(
        self, loop: Loop, config: MasterConfig, files: ChildFileWriter, on_event: Callable[[str, Data], None]
    ) -> None:
        self._loop = loop
        self._config = config
        self._files = files
        self._on_event = on_event
        self.configuration = ""
        """A name for the latest configuration; each proxy reports which one it knows."""
        self.current = self._make(config.listeners)
        self._coming: ProxyChild | None = None
        self._leaving: list[ProxyChild] = []
        self._late = loop.timer(lambda: self._keep_current(f"it does not listen after {START_S:g} s"))
        self._wanted: str | None = None
        self._then: Callable[[], None] | None = None

    @property
    def is_being_replaced(self) -> bool:
        """Whether a replacement is asked for or under way."""
        return self._wanted is not None or self._coming is not None

    def waiting(self) -> Data:
        """How many clients wait for a slot in all proxies, in total and by run."""
        told = [each.waiting for each in self._all()]
        by_run = [run for each in told for run in each["waitingByRun"]]
        return {"waiting": sum(each["waiting"] for each in told), "waitingByRun": by_run}

    def pids(self) -> set[int]:
        return {each.pid for each in self._all() if each.pid is not None}

    def start(self) -> None:
        """Keep one running from now on. Idempotent."""
        self.current.start()

    def adopt(self, leftovers: Leftovers) -> None:
        """Take over the proxies that another master left; all but one serve their clients and end."""
        if leftovers.proxy is not None:
            self.current.adopt(leftovers.proxy)
        for state in leftovers.retiring:
            leaving = self._make(())
            leaving.adopt(state)
            self._retire(leaving)

    def replace(self, reason: str, then: Callable[[], None] | None = None) -> None:
        """Start a new proxy, and retire the current one when it listens; `then` is called when it does, or has
        failed."""
        self._wanted = reason
        self._then = then or self._then

    def go_on_replacing(self) -> None:
        """Take the next step of a replacement, if it can be taken now. Call it after each turn of the loop."""
        if self._coming is not None:
            if self._coming.listening:
                self._take_over(self._coming)
            elif self._coming.problem is not None:
                self._keep_current(self._coming.problem)
        elif self._wanted is not None and self.current.listening and self.current.listeners:
            log.info("proxy_replacing", pid=self.current.pid, reason=self._wanted)
            self._wanted = None
            self._late.arm(self._loop.now() + START_S)
            self._coming = self._make(self.current.listeners)
            self._coming.start()
        for each in self._leaving:
            if each.pid is None:  # it is restarted no more: what it has not heard is the current one's to hear
                for name, data in each.take_undelivered():
                    self.current.send(name, data)
        self._leaving = [each for each in self._leaving if each.pid is not None]

    def push_state(self, state: Data) -> None:
        told = {**state, "configuration": self.configuration}
        for each in self._all():
            each.push_state(told)

    def know_configuration(self) -> bool:
        """Whether each proxy that accepts clients has the latest configuration."""
        return all(each.configuration == self.configuration for each in self._all() if each.listening)

    def send(self, name: str, data: Data) -> None:
        """Send a command to the current proxy or, if it dies before it hears it, to the next one; and to retiring
        ones."""
        self.current.send(name, data)
        for each in self._leaving:
            if each.pid is not None:
                each.send(name, data)

    def tell_all(self, name: str, data: Data) -> None:
        for each in self._all():
            each.send(name, data)

    def stop(self) -> None:
        """Ask all proxies to end; those that do not are killed."""
        self._end_replacement()
        for each in self._all():
            each.stop()

    def kill(self) -> None:
        self._end_replacement()
        for each in self._all():
            each.kill()

    def attach(self, reconnect: Reconnect) -> bool:
        """Take a proxy's new connection; False when it is none of these proxies."""
        return any(each.pid == reconnect.pid and each.attach(reconnect) for each in self._all())

    def _take_over(self, coming: ProxyChild) -> None:
        self._retire(self.current)
        self.current, self._coming = coming, None
        log.info("proxy_replaced", pid=self.current.pid)
        self._replacement_ended()

    def _keep_current(self, reason: str) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            log.error("proxy_not_replaced", reason=reason)
            coming.kill()
            self._leaving.append(coming)
            self._replacement_ended()

    def _replacement_ended(self) -> None:
        self._late.cancel()
        then, self._then = self._then, None
        if then is not None:
            then()

    def _retire(self, proxy: ProxyChild) -> None:
        proxy.retire()
        self._leaving.append(proxy)

    def _end_replacement(self) -> None:
        self._late.cancel()
        self._wanted = self._then = None
        if self._coming is not None:
            self._leaving.append(self._coming)
            self._coming = None

    def _make(self, listeners: tuple[socket.socket, ...]) -> ProxyChild:
        return ProxyChild(self._loop, self._config, self._files, self._on_event, listeners)

    def _all(self) -> list[ProxyChild]:
        return [self.current, *([self._coming] if self._coming else []), *self._leaving]
