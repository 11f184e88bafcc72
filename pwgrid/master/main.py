"""The master: one synchronous loop that keeps what is wanted running and ends it in order; touches no client byte."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from typing import Any, Final

import structlog

from pwgrid.common import systemd
from pwgrid.common.errors import GridError
from pwgrid.common.types import BROWSER_TYPES, BrowserType
from pwgrid.control.frames import Frame
from pwgrid.control.server import ControlServer, Deferred
from pwgrid.master.config import MasterConfig, RedisSpec, Roles
from pwgrid.master.fork import become_subreaper
from pwgrid.master.loop import Loop
from pwgrid.master.memory.meter import MemoryMeter
from pwgrid.master.policy.plan import Action, Serve, Spawn, next_start, plan
from pwgrid.master.policy.spares import expected_rate
from pwgrid.master.proxy.proxies import Proxies
from pwgrid.master.redis import RedisChild
from pwgrid.master.restart.changes import Changes, limits_of
from pwgrid.master.restart.child_file_writer import Ledger
from pwgrid.master.restart.leftovers import Former, Handover
from pwgrid.master.restart.reexec import execute
from pwgrid.master.shutdown import Phase, Shutdown, Step
from pwgrid.master.signals import Signals, has_terminal
from pwgrid.master.start_report import StartReport
from pwgrid.master.status import Reporter
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.record import WorkerRecord
from pwgrid.master.workers.workers import Workers, select
from pwgrid.runtime.process_tree import reap_orphans
from pwgrid.settings.kinds import MAX_WORKERS

__all__ = ["Master", "MasterConfig", "RedisSpec", "Roles"]

log = structlog.get_logger()

MIN_STARTING: Final = 4
"""Starts compete with sessions for the cores, thread by thread: two at a time fall behind on two busy cores."""

AFTER_DRAIN_S: Final = 60.0
"""What the service manager gives a stop beyond the drain: for browsers that hang, the proxy and Redis."""

_BEFORE: Final = "worker ended while the grid had no master"


class Master:
    """Supervises one grid. `run` returns when everything it started is gone."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        self._loop = Loop()
        self._signals = Signals()
        self._pools = {name: self._pool(name, _wanted(config, name)) for name in BROWSER_TYPES}
        self._workers = Workers(self._loop, config, self._pools, self._tell_proxy)
        self._proxy = Proxies(self._loop, config, self._on_proxy_event)
        self._redis = RedisChild(self._loop, config.redis, Ledger(config))
        self._control = ControlServer(
            self._loop,
            config.runtime.control_path,
            {
                "status": lambda _data: self.status(),
                "redis": lambda _data: {"url": config.redis_url, "prefix": config.settings.redis_key_prefix},
                "drain": self._drain_request,
                "scale": self._scale_request,
                "reload": lambda _data: self._reload(),
                "upgrade": lambda _data: self._upgrade(),
            },
            self._on_init,
            _inherited(config.handover),
        )
        self._shutdown = Shutdown()
        self._memory = MemoryMeter(config, self._workers)
        self._started_at = config.handover.started_at if config.handover else time.time()
        self._reporter = Reporter(config, self._pools.values(), self._workers, self._memory, self._started_at)
        self._start_report = StartReport(config, self._pools.values(), self._workers, self.status)
        self._changes = Changes(self._loop, config, self._pools, self._workers, self._proxy, self._execute)
        self._has_terminal = False

    def run(self) -> int:
        """Start everything, keep it running, and end it when told; 0. Raises OSError when it cannot even start."""
        self._has_terminal = has_terminal()
        become_subreaper()
        self._signals.install()
        try:
            self._loop.add(self._signals.fd, self._on_signals)
            if self._config.lifeline_fd is not None:
                self._loop.add(self._config.lifeline_fd, self._on_lifeline)
            self._control.open()
            self._adopt(self._config.former)
            gc.collect()
            gc.freeze()  # so that a collection in a child does not copy the pages that it shares with us
            log.info("master_started", pid=os.getpid(), endpoint=self._config.endpoint)
            self._serve()
        except BaseException:
            self._kill_everything()
            raise
        finally:
            self._control.close()
            self._signals.restore()
        log.info("master_stopped", pid=os.getpid())
        return 0

    def stop(self) -> None:
        """Ask for the end, as SIGTERM does; a second time means now."""
        now = self._loop.now()
        if not self._shutdown.ask(now):
            return
        self._changes.cancel()
        systemd.stopping(self._config.settings.drain_timeout + AFTER_DRAIN_S)
        log.info("stopping", now=self._shutdown.is_hurried, workers=len(self._workers.records))
        if self._shutdown.phase is Phase.WORKERS:
            self._proxy.push_state(self._reporter.roster(stopping=True))
            for record in list(self._workers.records.values()):
                self._workers.drain(record, "shutdown", now=self._shutdown.is_hurried)

    def detach(self) -> None:
        """Leave at once; the children serve on for the next master, or end after the lost threshold."""
        if self._shutdown.is_stopping:
            log.warning("detach_refused", reason="the grid is stopping")
            return
        self._changes.cancel()
        self._config.runtime.keep()
        self._shutdown.step(Step.DETACHED)
        log.info("detached", workers=len(self._workers.records))

    def status(self) -> dict[str, Any]:
        """What is there, and why something is not."""
        return self._reporter.status(self._proxy, self._redis, self._shutdown.is_stopping)

    # The loop

    def _serve(self) -> None:
        while self._shutdown.phase is not Phase.DONE:
            now = self._loop.now()
            self._turn(now)
            self._loop.wait(self._deadline(now))

    def _turn(self, now: float) -> None:
        """Everything that time or the last events made due."""
        self._redis.tick(now)
        self._memory.tick(now)
        self._workers.tick(now)
        self._changes.tick(now)
        if self._goes_on or self._proxy.pid is not None:
            self._proxy.tick(now)
        for pool in self._pools.values():
            pool.held = self._memory.guard.reason
            pool.observe(self._workers.of(pool.browser_type), now)
        if self._shutdown.is_stopping:
            self._go_on_stopping(now)
        elif self._goes_on:
            for action in self._plan(now):
                self._perform(action)
            self._start_report.tell(listens=self._proxy.listening, ready=self._proxy.ready)
        self._proxy.push_state(self._reporter.roster(self._shutdown.is_stopping))

    def _deadline(self, now: float) -> float:
        if self._shutdown.phase is Phase.DONE:
            return now
        wanted = {name: pool.wanted(now) for name, pool in self._pools.items()}
        parts = [
            self._redis.deadline(),
            self._workers.deadline(),
            self._memory.deadline(),
            self._changes.deadline(),
            next_start(wanted, now),
        ]
        if self._goes_on or self._proxy.pid is not None:
            parts.append(self._proxy.deadline())
        return min(parts)

    @property
    def _goes_on(self) -> bool:
        """Whether what is wanted is started. Only at the very start that has to wait for Redis."""
        return self._redis.ready or self._workers.registry_seen

    def _plan(self, now: float) -> list[Action]:
        for pool in self._pools.values():
            pool.foresee(self._workers.of(pool.browser_type), self._config.settings, now)
        wanted = {name: pool.wanted(now) for name, pool in self._pools.items()}
        views = [record.view() for record in self._workers.records.values()]
        limits = limits_of(self._config.settings, os.cpu_count(), MIN_STARTING)
        return plan(wanted, views, now, self._memory.limits(limits))

    def _perform(self, action: Action) -> None:
        if isinstance(action, Spawn):
            self._workers.start(action.browser_type, spare=action.spare)
        elif isinstance(action, Serve):
            self._workers.serve(self._workers.records[action.worker_id])
        else:
            self._workers.drain(self._workers.records[action.worker_id], action.reason)

    def _go_on_stopping(self, now: float) -> None:
        """One phase after the other: what is ended later is still used by what is ended first."""
        shutdown = self._shutdown
        if shutdown.phase is Phase.WORKERS and not self._workers.records:
            shutdown.step(Step.WORKERS_GONE)
            self._proxy.stop(now)
        if shutdown.phase is Phase.PROXY and not self._proxy.pids():
            shutdown.step(Step.PROXY_GONE)
            self._redis.stop(now)
        if shutdown.phase is Phase.REDIS and self._redis.pid is None:
            shutdown.step(Step.REDIS_GONE)

    def _kill_everything(self) -> None:
        """A bug in the master must not leave browsers behind: end all of it without ceremony, then report."""
        log.critical("master_failed")
        now = self._loop.now()
        self._shutdown.phase = Phase.WORKERS
        self._workers.kill_all()
        self._proxy.kill(now)
        self._redis.kill(now)
        parts = (self._workers, self._proxy, self._redis)
        while True:
            for part in parts:
                part.tick(self._loop.now())
            if not (self._workers.records or self._proxy.pids() or self._redis.pid):
                return
            self._loop.wait(min(part.deadline() for part in parts))

    # What comes in

    def _on_signals(self) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                reap_orphans(self._own_pids())
            elif signum in (signal.SIGTERM, signal.SIGINT):
                log.info("signal_received", signal=signum.name)
                self.stop()
            elif signum == signal.SIGHUP and self._has_terminal and not has_terminal():
                log.info("terminal_gone")
                self.stop()
            else:
                log.info("signal_received", signal=signum.name)
                self._asked_by_signal(signum)

    def _asked_by_signal(self, signum: signal.Signals) -> None:
        try:
            if signum == signal.SIGHUP:
                self._reload()
            elif signum == signal.SIGUSR1:
                self.detach()
            elif signum == signal.SIGUSR2:
                self._upgrade()
        except ValueError as error:
            log.error("signal_refused", signal=signum.name, reason=str(error))

    def _on_lifeline(self) -> None:
        assert self._config.lifeline_fd is not None
        if not os.read(self._config.lifeline_fd, 4096):
            self._loop.remove(self._config.lifeline_fd)
            log.info("lifeline_ended")
            self.stop()

    def _tell_proxy(self, what: str, record: WorkerRecord) -> None:
        about = {"workerId": record.worker_id, "browserType": record.browser_type, "reason": record.reason}
        self._proxy.send(what, about)

    def _on_proxy_event(self, name: str, data: Frame) -> None:
        if name == "drain_asked":
            self._on_drain_asked(data)
        elif name == "end_session":
            self._workers.end_session(str(data["workerId"]), str(data["sessionId"]), str(data["reason"]))
        else:
            log.warning("event_unknown", process="proxy", name=name)

    def _on_drain_asked(self, data: Frame) -> None:
        for record in select(self._workers.records.values(), data):
            self._drain_as_asked(record, str(data.get("reason", "asked by the proxy")), now=False)

    def _drain_as_asked(self, record: WorkerRecord, reason: str, *, now: bool) -> None:
        """An operator wants it; who asks a second time does not want to wait."""
        now, record.asked = now or record.asked, True
        self._workers.drain(record, reason, now=now)

    def _adopt(self, former: Former) -> None:
        """Go on with what a former master has left; the rest of it was ended before we came here."""
        if former.redis is not None:
            self._redis.adopt(former.redis)
        self._proxy.adopt(former)
        for state in former.workers:
            self._workers.adopt(state)
        if self._config.handover is not None:
            for name, workers in self._config.handover.pools.items():
                self._pools[name].scale(workers)  # type: ignore[index]
            self._changes.renew()
        else:
            self._changes.recycle_outdated()
            if former.proxy is not None and former.proxy.settings != Ledger(self._config).settings_of("proxy"):
                self._proxy.replace("configuration")
        for worker_id, browser_type in former.dead:
            self._proxy.send("worker_lost", {"workerId": worker_id, "browserType": browser_type, "reason": _BEFORE})

    def _on_init(self, sock: socket.socket, frame: Frame, packet: bytes, pid: int, fds: list[int]) -> bool:
        """Only the process that we or a former master forked may have the link back: the kernel tells who it is."""
        if frame.get("name") == "proxy":
            return self._proxy.attach(pid, sock, frame, packet, fds)
        record = self._workers.records.get(str(frame.get("name")))
        return record is not None and pid == record.child.pid and self._workers.attach(record, sock, frame, packet, fds)

    def _drain_request(self, data: Frame) -> Frame:
        records = select(self._workers.records.values(), data)
        if not records and not data.get("all"):
            raise ValueError(f"no worker matches {data.get('worker') or data.get('pool') or 'an empty drain request'}")
        for record in records:
            self._drain_as_asked(record, str(data.get("reason", "operator")), now=bool(data.get("now")))
        return {"draining": [record.worker_id for record in records]}

    def _scale_request(self, data: Frame) -> Frame:
        self._refuse_while_stopping()
        figures: dict[BrowserType, int] = {}
        for name, workers in data.items():
            pool = self._pools.get(name)  # type: ignore[call-overload]
            if pool is None:
                raise ValueError(f"there is no pool {name!r:.40}; pools are {', '.join(self._pools)}")
            if type(workers) is not int or not 0 <= workers <= MAX_WORKERS:
                raise ValueError(f"{name}: {workers!r:.40} is not a number of workers from 0 to {MAX_WORKERS}")
            if workers > pool.workers == 0:
                self._prepare(pool.browser_type)
            figures[pool.browser_type] = workers
        for browser_type, workers in figures.items():
            self._pools[browser_type].scale(workers)
        return {"wanted": {name: pool.workers for name, pool in self._pools.items()}}

    def _reload(self) -> Frame:
        self._refuse_while_stopping()
        systemd.reloading()
        try:
            return self._changes.reload()
        finally:
            systemd.ready("serving")

    def _upgrade(self) -> Deferred:
        self._refuse_while_stopping()
        return self._changes.upgrade()

    def _refuse_while_stopping(self) -> None:
        if self._shutdown.is_stopping:
            raise ValueError("the grid is stopping")

    def _execute(self) -> None:
        """Become the new code. What the children say until it listens waits in the control socket's queue."""
        config = self._config
        records = self._workers.records.values()
        handover = Handover(
            listeners=tuple(listener.fileno() for listener in self._proxy.listeners),
            lock=config.runtime.lock_fd,
            control=self._control.fd,
            ipc={record.worker_id: record.ipc.fileno() for record in records if record.ipc and not record.ended},
            lifeline=config.lifeline_fd,
            pools={name: pool.workers for name, pool in self._pools.items() if pool.workers != _wanted(config, name)},
            port=config.settings.port,
            started_at=self._started_at,
        )
        systemd.reloading()
        try:
            execute(list(config.exec_argv), handover)
        finally:
            systemd.ready("serving")

    def _pool(self, browser_type: BrowserType, workers: int) -> Pool:
        settings = self._config.settings
        rate = expected_rate(workers, settings.max_concurrent_sessions, settings.max_lifetime_sessions)
        return Pool(browser_type, workers, rate, self._loop.now())

    def _prepare(self, browser_type: BrowserType) -> None:
        try:
            self._config.prepare_pool(browser_type)
        except GridError as error:
            raise ValueError(str(error)) from None

    def _own_pids(self) -> set[int]:
        services = {pid for pid in (self._redis.pid,) if pid is not None} | self._proxy.pids() | self._changes.pids()
        return services | {record.child.pid for record in self._workers.records.values() if not record.ended}


def _inherited(handover: Handover | None) -> socket.socket | None:
    return socket.socket(fileno=handover.control) if handover else None


def _wanted(config: MasterConfig, browser_type: BrowserType) -> int:
    workers: int = getattr(config.settings, f"{browser_type}_workers")
    return workers
