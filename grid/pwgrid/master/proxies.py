"""Runs the proxy, and replaces it without refusing a client: the new one listens before the old one retires, or is
killed because it is frozen. One that is restarted gets the listening sockets of the one before it."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from pwgrid.common.errors import GridError
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.master_side import MasterSide
from pwgrid.control.server import Reconnect
from pwgrid.master.child import Child, Exit, RestartedChild, fork_linked
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.leftovers import Leftovers
from pwgrid.master.listener import addresses
from pwgrid.master.policy import validate_reports
from pwgrid.master.policy.backoff import Backoff
from pwgrid.runtime.child_arguments import ProxyArguments
from pwgrid.runtime.child_files import COMING, RETIRING, ChildState

log = structlog.get_logger()

START_S: Final = 20.0
"""A new proxy that does not listen after so long is killed; the old one stays."""

TRIES: Final = Backoff(first_s=1.0, cap_s=60.0)
"""When a replacement that has failed is tried again."""

STOP_GRACE_S: Final = 5.0
RETIRE_GRACE_S: Final = 30.0
"""Time for a retiring proxy beyond the longest wait of a client."""

NOBODY_WAITS: Final[Frame] = {"waiting": 0, "waitingByRun": []}
NO_DEMAND: Final[Counter[str]] = Counter()


class ProxyChild(RestartedChild):
    """Runs one proxy. `on_silence` is called when nothing has come from it for WORKER_LOST_THRESHOLD.

    `listeners` are its listening sockets: none while only a proxy that another master forked has them.
    """

    _first_status = COMING

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        files: ChildFileWriter,
        on_silence: Callable[[ProxyChild], None],
        listeners: tuple[socket.socket, ...],
    ) -> None:
        super().__init__("proxy", loop, files)
        self.listeners = listeners
        self.listening = False
        self.ready = False
        """Whether it knows that it can take a session of every pool."""
        self.is_silent = False
        """Whether `on_silence` was called, and nothing has come since."""
        self.configuration = ""
        """The name of the configuration that it reported last."""
        self.waiting: Frame = NOBODY_WAITS
        """How many clients wait in it for a slot, in total and by run, as it reported last."""
        self.demand = NO_DEMAND
        """How many clients wait in it for pools that start on demand, by pool, as it reported last."""
        self._config = config
        self._longest_wait_s = config.settings.longest_wait_s()
        """Of its clients, by the settings that it has: a reload may have changed them."""
        self._on_silence = on_silence
        self._link: MasterSide | None = None
        self._undelivered: list[tuple[str, Frame]] = []
        self._state: Frame = {}

    def adopt(self, state: ChildState) -> None:
        """Take over a proxy that another master forked; it has WORKER_LOST_THRESHOLD to reconnect."""
        super().adopt(state)
        if self._child is not None:
            self._link = self._new_link(adopts=True)

    def push_state(self, state: Frame) -> None:
        """Send the state to the proxy, and to each one started after it; nothing is sent when it has not changed."""
        if state != self._state:
            self._state = state
            if self._link is not None:
                self._link.push_state(state)

    def send(self, name: str, data: Frame) -> None:
        """Send a command to this proxy or, if it dies before it hears it, to the next one."""
        if self._link is None:
            self._undelivered.append((name, data))
        else:
            self._link.send(name, data)

    def take_undelivered(self) -> list[tuple[str, Frame]]:
        """The commands that this one may not have heard before it died. The caller sends them to another proxy."""
        undelivered, self._undelivered = self._undelivered, []
        return undelivered

    def stop(self) -> None:
        """Ask it to end; if it does not within STOP_GRACE_S, SIGTERM it, and SIGKILL it after as long again."""
        self._end("stop", self._loop.now() + STOP_GRACE_S)

    def retire(self) -> None:
        """Ask it to accept no more clients, serve those that it has, and end; if it does not in time, it is killed."""
        self._end("retire", self._loop.now() + self._longest_wait_s + RETIRE_GRACE_S)
        self._write_file(RETIRING)

    def kill_silent(self) -> None:
        """SIGKILL it, since it would hear of nothing else; it is started again if it is still wanted."""
        if self._child is not None:
            now = self._loop.now()
            self._child.end_by(now, now)

    def is_still_silent(self) -> bool:
        """The same as `is_silent`, after a look at what it may just have said: a process may wake at any moment."""
        if self._link is not None:
            self._link.read_what_is_left()
        return self.is_silent

    def attach(self, reconnect: Reconnect) -> bool:
        """Take the proxy's new connection, and its listening sockets if this process has none; False when there is no
        link for it. Raises ProtocolError when the first frame is not valid for the link.
        """
        if self._link is None:
            return False
        self._link.attach(reconnect.sock, reconnect.init)
        if self.listeners:
            for each in reconnect.sockets:
                each.close()
        else:
            self.listeners = tuple(reconnect.sockets)
        return True

    def move_listeners(self) -> bool:
        """Listen where the settings say, if its listening sockets are of another address; returns whether they were.
        The proxy itself accepts on those until it is replaced. Raises OSError."""
        old = self.listeners
        try:
            self.listeners = self._config.listeners.moved(old)
        except GridError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from None
        if self.listeners == old:
            return False
        log.info("address_changed", was=addresses(old), now=addresses(self.listeners))
        for each in old:
            each.close()
        return True

    def complete_listeners(self) -> None:
        """Add to its listening sockets what the settings need besides, if it has any. Raises OSError."""
        try:
            self.listeners = self._config.listeners.completed(self.listeners)
        except GridError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from None

    def _end(self, command: str, term_at: float) -> None:
        self.stop_by(term_at, term_at + STOP_GRACE_S)
        if self._link is not None:
            self._link.send(command, {})

    def _fork(self) -> Child:
        if not self.listeners:
            try:
                self.listeners = self._config.listeners.open()
            except GridError as error:
                raise OSError(errno.EADDRINUSE, str(error)) from None
        self.complete_listeners()
        config, common = self._config, self._config.common()
        self._longest_wait_s = config.settings.longest_wait_s()
        child, control = fork_linked(
            self._loop,
            lambda control: config.roles.proxy(
                ProxyArguments(*common, control, self.listeners, config.parts.tokens_file)
            ),
            self.listeners,
        )
        link = self._link = self._new_link()
        link.attach(control)
        link.push_state(self._state)
        for name, data in self.take_undelivered():
            link.send(name, data)
        return child

    def _on_exit(self, ended: Exit) -> str:
        self.listening = self.ready = self.is_silent = False
        self.configuration = ""
        self.waiting, self.demand = NOBODY_WAITS, NO_DEMAND
        if self._link is not None:
            self._link.read_what_is_left()
            self._link.close("ended")
            # The next proxy does what this one may not have done, except to stop or retire: only this one had to.
            is_done = ended.is_clean and not self._is_wanted
            unheard = [] if is_done else self._link.unacknowledged()
            self._undelivered = [item for item in unheard if item[0] not in ("stop", "retire")]
            self._link = None
        return f"proxy ended with {ended}"

    def _new_link(self, *, adopts: bool = False) -> MasterSide:
        lost_s = self._config.settings.worker_lost_threshold
        return MasterSide(self._loop, "proxy", lost_s, self._heard, self._is_not_heard, adopts=adopts)

    def _heard(self, frame: Frame) -> None:
        self.is_silent = False
        match frame:
            case {"t": "init"}:
                # A proxy that another master forked does not repeat its first event, which said that it listens.
                if frame["lastEventIdx"] > 0:
                    self._listens()
            case {"t": "state", "data": data}:
                self.ready = bool(data.get("ready"))
                self.configuration = str(data.get("configuration", ""))
                self.waiting = {
                    "waiting": validate_reports.count(data.get("waiting")),
                    "waitingByRun": validate_reports.waiting_by_run(data.get("waitingByRun")),
                }
                self.demand = Counter(validate_reports.demand(data.get("demand")))
            case {"t": "stopping"}:
                self.listening = self.ready = False
            case {"t": "event", "name": "listening"}:
                self._listens()
            case {"t": "event", "name": name}:
                log.warning("event_unknown", process="proxy", name=name)

    def _listens(self) -> None:
        if not self.listening and self._is_wanted:  # the file of one that retires says so already
            self._write_file("")
        self.listening = True

    def _is_not_heard(self) -> None:
        if self._child is not None:
            log.error("proxy_silent", pid=self.pid, after_s=self._config.settings.worker_lost_threshold)
            self.is_silent = True
            self._on_silence(self)


class Proxies:
    """Runs one proxy, `current`, and others during a replacement."""

    def __init__(self, loop: Loop, config: MasterConfig, files: ChildFileWriter) -> None:
        self._loop = loop
        self._config = config
        self._files = files
        self.configuration = ""
        """A name for the latest configuration; each proxy reports which one it knows."""
        self.current = self._make(config.listeners.there)
        self._coming: ProxyChild | None = None
        self._leaving: list[ProxyChild] = []
        self._late = loop.timer(lambda: self._replaced(f"it does not listen after {START_S:g} s"))
        self._wanted: Reason[WorkerEnd] | None = None
        self._under_way: Reason[WorkerEnd] | None = None
        """Why `_coming` comes."""
        self._then: Callable[[], None] | None = None
        self._once_none_comes: list[Callable[[], None]] = []
        self._started_at = 0.0
        self._tries = TRIES
        self._outdated_pid: int | None = None
        """The current one's pid when its replacement failed."""
        self._again = loop.timer(lambda: None)  # `go_on_replacing` follows each timer

    @property
    def is_to_be_replaced(self) -> bool:
        """Whether a replacement is asked for or under way, or will be tried again since it has failed."""
        return self._wanted is not None or self._coming is not None

    @property
    def is_being_replaced(self) -> bool:
        """The same, but not while it only waits to be tried again: new code may be what it needs."""
        return self._coming is not None or (self._wanted is not None and not self._tries.deaths)

    @property
    def one_comes(self) -> bool:
        """Whether a new proxy was started that does not listen yet, and has not failed."""
        return self._coming is not None

    def once_none_comes(self, then: Callable[[], None]) -> None:
        """Call `then` when the one that comes listens, or has failed: within START_S."""
        self._once_none_comes.append(then)

    def waiting(self) -> Frame:
        """How many clients wait for a slot in all proxies, in total and by run."""
        told = [each.waiting for each in self._all()]
        by_run = [run for each in told for run in each["waitingByRun"]]
        return {"waiting": sum(each["waiting"] for each in told), "waitingByRun": by_run}

    def demand(self) -> Counter[str]:
        """How many clients wait in all proxies for pools that start on demand, by pool."""
        return sum((each.demand for each in self._all()), NO_DEMAND)

    def pids(self) -> set[int]:
        return {each.pid for each in self._all() if each.pid is not None}

    def adopt(self, leftovers: Leftovers) -> None:
        """Take over the proxies that another master left; all but one serve their clients and end."""
        if leftovers.proxy is not None:
            self.current.adopt(leftovers.proxy)
        for state in leftovers.retiring:
            leaving = self._make(())
            leaving.adopt(state)
            self._retire(leaving)

    def replace(self, reason: Reason[WorkerEnd], then: Callable[[], None] | None = None) -> None:
        """Start a new proxy, and retire the current one when it listens; `then` is called when it does, or has
        failed. After a failure it is tried again, until the current one has ended: what is started then is new."""
        self._forget_failures()
        self._wanted = reason
        self._then = then or self._then

    def go_on_replacing(self) -> None:
        """Take the next step of a replacement, if it can be taken now. Call it after each turn of the loop."""
        now = self._loop.now()
        if self._tries.deaths and self.current.pid != self._outdated_pid:
            self._wanted = None
            self._forget_failures()
        if self._coming is not None:
            if self._coming.listening or self._coming.problem is not None:
                self._replaced(None if self._coming.listening else self._coming.problem)
        elif self._wanted is None or now < self._tries.not_before:
            pass
        elif self.current.listening and self.current.listeners:
            log.info("proxy_replacing", pid=self.current.pid, reason=str(self._wanted))
            self._under_way, self._wanted = self._wanted, None
            self._started_at = now
            self._late.arm(now + START_S)
            self._coming = self._make(self.current.listeners)
            self._coming.start()
        for each in self._leaving:
            if each.pid is None:  # it is restarted no more: what it has not heard is the current one's to hear
                for name, data in each.take_undelivered():
                    self.current.send(name, data)
        self._leaving = [each for each in self._leaving if each.pid is not None]

    def push_state(self, state: Frame) -> None:
        told = {**state, "configuration": self.configuration}
        for each in self._all():
            each.push_state(told)

    def know_configuration(self) -> bool:
        """Whether each proxy that accepts clients has the latest configuration."""
        return all(each.configuration == self.configuration for each in self._all() if each.listening)

    def send(self, name: str, data: Frame) -> None:
        """Send a command to the current proxy or, if it dies before it hears it, to the next one; and to retiring
        ones."""
        self.current.send(name, data)
        for each in self._leaving:
            if each.pid is not None:
                each.send(name, data)

    def tell_all(self, name: str, data: Frame) -> None:
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
        proxy = next((each for each in self._all() if each.pid == reconnect.pid), None)
        has_its_sockets = proxy is not None and bool(proxy.listeners)
        if proxy is None or not proxy.attach(reconnect):
            return False
        if proxy is self.current:  # one that ends must not take the place of the current one's sockets
            try:
                if not has_its_sockets and proxy.move_listeners():
                    self.replace(self._wanted or Reason(WorkerEnd.CONFIGURATION))
                proxy.complete_listeners()
            except OSError as error:  # the next proxy to be forked tries again
                log.error("listener_not_opened", reason=error.strerror or str(error))
        return True

    def _is_silent(self, proxy: ProxyChild) -> None:
        """A successor accepts on the same sockets at once, where clients wait already; one that is not current, or
        whose sockets this process does not have, is killed first."""
        if proxy is not self.current or not proxy.listening or not proxy.listeners or not proxy.is_wanted:
            proxy.kill_silent()
        elif not self.is_being_replaced:
            lost_s = self._config.settings.worker_lost_threshold
            self.replace(Reason(WorkerEnd.SILENT, f"{lost_s:g} s"))

    def _replaced(self, problem: str | None) -> None:
        """The new proxy takes over, or the current one stays because of a problem."""
        coming, self._coming = self._coming, None
        assert coming is not None
        self._late.cancel()
        if problem is None:
            if self.current.is_still_silent():  # what it has accepted and not handed over is lost
                self.current.kill()
                self._leaving.append(self.current)
            else:
                self._retire(self.current)
            self.current = coming
            self._forget_failures()
            log.info("proxy_replaced", pid=coming.pid)
        else:
            coming.kill()
            self._leaving.append(coming)
            if self.current.is_still_silent():
                self.current.kill_silent()
            self._try_again(problem)
        then, self._then = self._then, None
        if then is not None:
            then()
        self._tell_that_none_comes()

    def _tell_that_none_comes(self) -> None:
        waiting, self._once_none_comes = self._once_none_comes, []
        for each in waiting:
            self._loop.call_at(self._loop.now(), each)  # after this turn, for it may execute this process anew

    def _try_again(self, problem: str) -> None:
        now = self._loop.now()
        self._wanted = self._wanted or self._under_way
        self._outdated_pid = self.current.pid
        self._tries = self._tries.died(now, problem, self._started_at)
        self._again.arm(self._tries.not_before)
        log.error("proxy_not_replaced", reason=problem, retry_s=self._tries.retry_s(now))

    def _forget_failures(self) -> None:
        self._tries, self._outdated_pid = TRIES, None
        self._again.cancel()

    def _retire(self, proxy: ProxyChild) -> None:
        proxy.retire()
        self._leaving.append(proxy)

    def _end_replacement(self) -> None:
        self._late.cancel()
        self._wanted = self._then = None
        self._forget_failures()
        if self._coming is not None:
            self._leaving.append(self._coming)
            self._coming = None
            self._tell_that_none_comes()

    def _make(self, listeners: tuple[socket.socket, ...]) -> ProxyChild:
        return ProxyChild(self._loop, self._config, self._files, self._is_silent, listeners)

    def _all(self) -> list[ProxyChild]:
        return [self.current, *([self._coming] if self._coming else []), *self._leaving]
