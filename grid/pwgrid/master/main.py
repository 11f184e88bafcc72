"""The master: one synchronous loop that keeps the wanted processes running and ends them in order."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
from typing import Final

import structlog

from pwgrid.common import sd_notify
from pwgrid.common.errors import GridError
from pwgrid.common.grid_url import without_secrets
from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.parked_session import NAME as FORWARDER
from pwgrid.control.server import ControlServer, Reconnect
from pwgrid.master.child import become_subreaper
from pwgrid.master.child_file_writer import ChildFileWriter
from pwgrid.master.config import MasterConfig
from pwgrid.master.embedded_redis import RedisChild
from pwgrid.master.forwarder import ForwarderChild
from pwgrid.master.leftovers import KeptOpen, Leftovers
from pwgrid.master.memory_watch import MemoryWatch
from pwgrid.master.operator_requests import Requests
from pwgrid.master.policy.worker_plan import Limits
from pwgrid.master.policy.worker_state_machine import PROFILES_S, Purpose
from pwgrid.master.processor_watch import ProcessorWatch
from pwgrid.master.proxies import Proxies
from pwgrid.master.reload import Reload
from pwgrid.master.reports import Reports
from pwgrid.master.services import Services
from pwgrid.master.shutdown_order import Shutdown, ShutdownPhase, Step
from pwgrid.master.signal_queue import SignalQueue, has_terminal
from pwgrid.master.tls import NAME as TLS
from pwgrid.master.tls import TlsProcesses
from pwgrid.master.upgrade import VersionChange, execute
from pwgrid.master.workers.clean_up import SHORTAGE_S
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.browser_process_tree import reap_orphans

log = structlog.get_logger()

MOST_STARTING: Final = max(4, os.cpu_count() or 0)
"""How many workers may start at once: one for each core, but at least 4. They compete with sessions for the cores,
thread by thread: with two at a time they fall behind on two busy cores."""

AFTER_DRAIN_S: Final = 75.0
"""Beyond the drain, the service manager is told to give a stop so long: for browsers that hang, the proxy and Redis,
also where none of them can be killed."""

ALIVE_PARTS: Final = 3
"""So often the master says that it is alive, within the time after which the service manager would kill it."""

LOAD_S: Final = 60.0
"""So long the new code may take to load before the service manager takes it for frozen."""

_DETACHED: Final = (
    "the master was told to leave (SIGUSR1) before the new code was tried; the grid goes on for the next one"
)

_BEFORE_US: Final = Reason(EndReason.WORKER_LOST, "worker ended while the grid had no master")


class Master:
    def __init__(self, config: MasterConfig) -> None:
        kept = config.kept_open
        self._config = config
        self._loop = loop = Loop()
        self._shutdown = Shutdown()
        self._signals = SignalQueue()
        files = ChildFileWriter(loop, config)
        self._redis = RedisChild(loop, config.redis, files) if config.redis else None
        self._proxies = Proxies(loop, config, files)
        self._forwarder = ForwarderChild(loop, config, files)
        self._tls = TlsProcesses(loop, config, files, lambda: self._proxies.current.listeners)
        self._workers = Workers(loop, config, files, self._proxies)
        self._memory = MemoryWatch(config, self._workers)
        self._processors = ProcessorWatch(loop, config, self._workers)
        services = Services(self._proxies, self._forwarder, self._tls, self._redis)
        self._reports = Reports(config, self._workers, services, self._memory, self._shutdown)
        self._reload = Reload(loop, config, files, self._workers, services)
        self._version_change = VersionChange(
            loop, config, self._workers, self._proxies, self._execute, self._forwarder.once_it_has_all
        )
        self._requests = Requests(
            config, self._workers, self._shutdown, self._reload, self._version_change, self._reports, self.stop
        )
        listener = socket.socket(fileno=kept.control) if kept else None
        self._control = ControlServer(
            loop, config.runtime.control_path, self._requests.by_name(), self._take_back, listener
        )
        self._is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or bool(kept and kept.is_nohup)
        self._has_terminal = has_terminal()
        self._next_turn = loop.timer(lambda: None)  # `_turn` follows each timer
        self._watchdog_s = sd_notify.watchdog_s()
        self._alive = loop.timer(self._tell_alive)
        self._reaps_again = loop.timer(self._reap)

    def run(self) -> int:
        """Start the grid, and keep it running until it is told to end or to detach; returns 0. Raises OSError when it
        cannot start. The runtime directory is kept until all that lives on in it is adopted."""
        become_subreaper()
        self._signals.install()
        try:
            self._loop.add(self._signals.fd, self._on_signals)
            if self._config.lifeline_fd is not None:
                self._loop.add(self._config.lifeline_fd, self._on_lifeline)
            self._control.open()
            self._adopt(self._config.leftovers)
            self._config.runtime.remove_at_end()
            _share_memory_with_children()
            log.info("master_started", pid=os.getpid(), endpoint=without_secrets(self._config.settings.client_url()))
            self._serve()
        except BaseException as error:
            # Of other errors than these the traceback is printed by whoever catches them.
            log.critical("master_failed", exc_info=isinstance(error, OSError))
            self._kill_everything()
            raise
        finally:
            self._reload.answer_all()
            self._control.close()
            self._signals.close()
        self._workers.tell_left()
        log.info("master_stopped", pid=os.getpid())
        return 0

    def stop(self, *, now: bool = False) -> None:
        """Stop the grid, as SIGTERM does; a second call means now."""
        if not self._shutdown.ask(self._loop.now(), hurry=now):
            return
        drain_s = 0.0 if self._shutdown.is_hurried else self._config.settings.drain_timeout
        self._forwarder.stop(self._loop.now() + drain_s)
        self._version_change.cancel("the grid is stopping")
        profiles_s = 0.0 if self._config.settings.profiles == "off" else PROFILES_S
        sd_notify.stopping(self._config.settings.drain_timeout + AFTER_DRAIN_S + profiles_s)
        log.info("stopping", now=self._shutdown.is_hurried, workers=len(self._workers.by_id))
        if self._shutdown.phase is ShutdownPhase.WORKERS:
            self._proxies.push_state(self._reports.roster())
            self._workers.tell_state(gridStops=True)
            wanted = Purpose.END_NOW if self._shutdown.is_hurried else Purpose.END
            for worker in self._workers.by_id.values():
                worker.drain(Reason(WorkerEnd.SHUTDOWN), wanted)

    def _stop_unless_stopping(self) -> None:
        """For what ends by itself: nobody has asked a second time."""
        if not self._shutdown.is_stopping:
            self.stop()

    def detach(self) -> None:
        """Leave at once; the children serve on for the next master, and end if none comes within `detach_grace`."""
        if self._shutdown.is_stopping:
            log.warning("detach_refused", reason="the grid is stopping")
            return
        self._version_change.cancel(_DETACHED)
        self._forwarder.once_it_has_all(self._detach_now)

    def _detach_now(self) -> None:
        if self._shutdown.is_stopping:  # asked for since
            return
        settings = self._config.settings
        for send in (self._proxies.tell_all, self._workers.tell_all, self._forwarder.tell, self._tls.tell_all):
            send("detached", {"graceS": settings.detach_grace})
        try:
            self._config.runtime.leave(settings.detach_grace, settings.drain_timeout)
        except OSError as error:  # the children know; only `pwgrid status` cannot say since when
            log.error("detach_not_written", reason=error.strerror or str(error))
        self._shutdown.step(Step.DETACHED)
        log.info("detached", workers=len(self._workers.by_id), grace_s=settings.detach_grace)

    # The loop

    def _serve(self) -> None:
        if self._watchdog_s is not None:
            sd_notify.allow_silence(self._watchdog_s)  # again, after the new code has loaded
            self._tell_alive()
        if self._redis is not None:
            self._redis.start()
        while not self._shutdown.is_done:
            self._turn()
            if not self._shutdown.is_done:
                self._loop.wait()

    def _turn(self) -> None:
        """Do everything that follows from what the last events changed."""
        now = self._loop.now()
        turn_by = self._memory.tick(now)
        self._proxies.go_on_replacing()
        self._workers.observe(now, self._memory.guard.reason)
        if self._shutdown.is_stopping:
            turn_by = min(turn_by, self._go_on_stopping(now))
        elif self._may_start():
            self._proxies.current.start()
            self._forwarder.start_if_due()
            self._tls.start_if_due()
            guard, room = self._memory.guard.reason, self._memory.room()
            demand = self._proxies.demand()
            turn_by = min(turn_by, self._workers.follow_demand(now, demand, room, self._memory.no_room()))
            limits = Limits(MOST_STARTING, self._config.settings.max_surge, room, guard)
            turn_by = min(turn_by, self._workers.follow_plan(now, limits))
            self._reports.tell_start()
        self._next_turn.arm(turn_by)
        self._proxies.push_state(self._reports.roster())
        self._reload.answer_if_known()

    def _may_start(self) -> bool:
        """Whether workers and the proxy may start: the grid waits for Redis only at its very start."""
        return self._redis is None or self._redis.ready or self._workers.registry_seen

    def _go_on_stopping(self, now: float) -> float:
        """Go through the phases in order: what ends first still uses what ends later. Returns when there may be more to
        say at the latest (monotonic seconds)."""
        shutdown, turn_by = self._shutdown, math.inf
        if shutdown.phase is ShutdownPhase.WORKERS:
            turn_by = self._reports.tell_stop(now)
        if shutdown.phase is ShutdownPhase.WORKERS and not self._workers.by_id:
            shutdown.step(Step.WORKERS_GONE)
            self._proxies.stop()
        if shutdown.phase is ShutdownPhase.PROXY and not self._proxies.pids():
            shutdown.step(Step.PROXY_GONE)
            self._tls.leave()
        if shutdown.phase is ShutdownPhase.FORWARDER and self._forwarder.has_ended:
            shutdown.step(Step.FORWARDER_GONE)
            self._tls.stop()
        if shutdown.phase is ShutdownPhase.TLS and not self._tls.pids():
            shutdown.step(Step.TLS_GONE)
            if self._redis is not None:
                self._redis.stop()
        if shutdown.phase is ShutdownPhase.REDIS and (self._redis is None or self._redis.pid is None):
            shutdown.step(Step.REDIS_GONE)
        return turn_by

    def _kill_everything(self) -> None:
        """Kill all children at once: a master that fails must not leave browsers behind."""
        self._shutdown.ask(self._loop.now(), hurry=True)
        self._workers.kill_all()
        self._proxies.kill()
        self._forwarder.kill()
        self._tls.kill()
        if self._redis is not None:
            self._redis.kill()
        services = (self._forwarder, *([self._redis] if self._redis else []))
        while self._workers.by_id or self._proxies.pids() or self._tls.pids() or any(each.pid for each in services):
            self._loop.wait()

    # What comes in

    def _on_signals(self) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum in (signal.SIGTERM, signal.SIGINT):
                log.info("signal_received", signal=signum.name)
                self.stop()
            elif signum == signal.SIGHUP and self._has_terminal and not self._is_nohup and not has_terminal():
                log.info("terminal_gone")
                self._stop_unless_stopping()
            else:
                log.info("signal_received", signal=signum.name)
                self._asked_by_signal(signum)

    def _reap(self) -> None:
        try:
            reap_orphans(self._own_pids())
        except OSError as error:  # no descriptor is free; no other SIGCHLD may come
            log.warning("reaping_put_off", reason=error.strerror or str(error))
            self._reaps_again.arm(self._loop.now() + SHORTAGE_S)

    def _asked_by_signal(self, signum: signal.Signals) -> None:
        try:
            if signum == signal.SIGHUP:
                self._requests.reload()
            elif signum == signal.SIGUSR1:
                self.detach()
            elif signum == signal.SIGUSR2:
                self._requests.upgrade(force=True)
        except ValueError as error:
            log.error("signal_refused", signal=signum.name, reason=str(error))
        except Exception:  # what an operator asks for ends no session, even where it fails
            log.exception("request_failed", signal=signum.name)

    def _on_lifeline(self) -> None:
        assert self._config.lifeline_fd is not None
        if not os.read(self._config.lifeline_fd, 4096):
            self._loop.remove(self._config.lifeline_fd)
            log.info("lifeline_ended")
            self._stop_unless_stopping()

    def _take_back(self, reconnect: Reconnect) -> bool:
        """Only a process that this master or an earlier one forked gets a link: the kernel names its pid."""
        if reconnect.name == "proxy":
            return self._proxies.attach(reconnect)
        if reconnect.name == FORWARDER:
            return self._forwarder.attach(reconnect)
        if reconnect.name == TLS:
            return self._tls.attach(reconnect)
        return self._workers.attach(reconnect)

    # After another master, and before the next one

    def _adopt(self, leftovers: Leftovers) -> None:
        """Adopt what another master left. What cannot be used was ended already (leftovers.py)."""
        if leftovers.redis is not None and self._redis is not None:
            self._redis.adopt(leftovers.redis)
        self._proxies.adopt(leftovers)
        if leftovers.forwarder is not None:
            self._forwarder.adopt(leftovers.forwarder)
        self._tls.adopt(leftovers)
        self._workers.adopt(leftovers.workers)
        if self._config.kept_open is not None:
            self._scale_again(self._config.kept_open)
            self._version_change.replace_children()
            self._forwarder.replace()
            self._tls.replace()
        else:
            self._reload.replace_outdated(leftovers.proxy)
        for state in leftovers.dead:
            about = {"workerId": state.name, "browserType": state.browser_type, "reason": _BEFORE_US.as_data()}
            self._proxies.send("worker_lost", about)

    def _scale_again(self, kept: KeptOpen) -> None:
        """Scale the pools as they were before this process executed itself, unless their numbers in the configuration
        have changed since."""
        for name, workers in kept.pools.items():
            pool = self._workers.pools.get(name)
            if pool is None or kept.configured.get(name, pool.settings.workers) != pool.settings.workers:
                continue
            try:
                if workers > pool.workers == 0:
                    self._config.parts.prepare_pool(self._config.settings, pool.settings)
                pool.scale(workers)
            except (GridError, OSError) as error:  # its browser has just been removed, or no descriptor is free
                log.error("pool_not_scaled", pool=name, reason=str(error))

    def _execute(self) -> None:
        """Become the new code. Children reconnect to it: they wait in the control socket's queue until it accepts."""
        config = self._config
        self._reload.answer_all()
        scaled = {name: pool for name, pool in self._workers.pools.items() if pool.workers != pool.settings.workers}
        workers = self._workers.by_id.values()
        kept = KeptOpen(
            listeners=tuple(listener.fileno() for listener in self._proxies.current.listeners),
            lock=config.runtime.lock_fd,
            control=self._control.fd,
            ipc={each.worker_id: each.ipc.fileno() for each in workers if each.ipc and each.life.has_process},
            lifeline=config.lifeline_fd,
            pools={name: pool.workers for name, pool in scaled.items()},
            configured={name: pool.settings.workers for name, pool in scaled.items()},
            port=config.settings.port,
            started_at=self._reports.started_at,
            is_nohup=self._is_nohup,
        )
        if self._watchdog_s is not None:
            sd_notify.allow_silence(LOAD_S)
        try:
            with sd_notify.reload(is_ready=self._reports.is_ready):
                execute(list(config.argv), kept, self._signals)
        finally:  # only after a failure
            if self._watchdog_s is not None:
                sd_notify.allow_silence(self._watchdog_s)

    # Small things

    def _tell_alive(self) -> None:
        """A timer of the master's only loop calls this, so a master that hangs does not say that it is alive."""
        assert self._watchdog_s is not None
        sd_notify.alive()
        self._alive.arm(self._loop.now() + self._watchdog_s / ALIVE_PARTS)

    def _own_pids(self) -> set[int]:
        services = {each.pid for each in (self._redis, self._forwarder) if each and each.pid}
        workers = {worker.child.pid for worker in self._workers.by_id.values() if worker.life.has_process}
        return services | self._proxies.pids() | self._tls.pids() | self._version_change.pids() | workers


def _share_memory_with_children() -> None:
    """A child copies each page that it writes to. So its collector leaves our objects alone (docs of gc.freeze: no
    collection comes before it), and Python's cache of type attributes, where it would replace our names, is empty."""
    gc.freeze()
    gc.enable()
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # the former from 3.13 on
    clear()
