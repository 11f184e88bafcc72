"""The proxy process: HTTP API, handshake, queue, selection, handoff."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Any, Final, cast

import structlog
import uvicorn
import uvloop
from uvicorn.server import ServerState

from pwgrid import __version__
from pwgrid.common import log as logging
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import Reason
from pwgrid.common.tasks import BackgroundTasks, first_of
from pwgrid.common.tcp_options import tune
from pwgrid.common.types import BrowserType
from pwgrid.control.child_side import ChildSide
from pwgrid.proxy import client_traces
from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.ask_master import AskMaster
from pwgrid.proxy.client_traces import ClientTraces
from pwgrid.proxy.connect.connect import ConnectingClient
from pwgrid.proxy.connect.encrypted_client import EncryptedClientChooser, EncryptedClients
from pwgrid.proxy.connect.find_session import SessionFinder
from pwgrid.proxy.connect.first_bytes import ProtocolChooser
from pwgrid.proxy.connect.forwarding import Forwarding
from pwgrid.proxy.connect.from_other_hosts import FromOtherHosts
from pwgrid.proxy.connect.gateway import Gateway
from pwgrid.proxy.connect.handoff_link import Handoffs
from pwgrid.proxy.connect.idle_connections import IdleConnections
from pwgrid.proxy.dashboard.feed import Feed
from pwgrid.proxy.hosts.host_heartbeat import HostKeeper
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.policy.arrival import UNIX, Arrivals
from pwgrid.proxy.policy.refusal import replaced, stopping
from pwgrid.proxy.protocol_description import ProtocolDescription
from pwgrid.proxy.readiness_check import Readiness
from pwgrid.proxy.reap_workers import STOPPED, DeadWorkers, keep_reaping
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.selector import Selector
from pwgrid.proxy.select.worker_health import HANDOFF_TIMEOUT_S
from pwgrid.proxy.services import Services
from pwgrid.proxy.session_files import MIB, SessionFiles
from pwgrid.registry.registry import Registry
from pwgrid.runtime.child_arguments import ProxyArguments
from pwgrid.runtime.descriptor_limit import room_for_clients
from pwgrid.runtime.directory import TLS_SOCKET
from pwgrid.runtime.grid_instance import instance_of
from pwgrid.runtime.last_child_ends_grid import end_grid_if_last, workers_end
from pwgrid.settings.model import is_loopback
from pwgrid.tokens.file import TokenFile
from pwgrid.tokens.tokens import NO_TOKENS, operators_token_id

log = structlog.get_logger()

BACKLOG: Final = 4096
RETIRE_POLL_INTERVAL_S: Final = 0.05
GRACE_S: Final = 5.0
"""How long answers may still be written when the proxy is told to stop."""

TELL_WAITING_S: Final = 1.0
"""How often at most the master hears of the lines: it only shows them, and each time costs it a turn of its loop."""

MOST_PARTIES: Final = 50
"""How many waiting parties the master hears of at most: a frame of the control link is bounded."""

MAX_PAGE_BYTES: Final = 16 * 1024
"""The largest message that the dashboard may send."""

MOST_DISBELIEVED: Final = 20
"""How many hosts are logged at most because what they say as a reverse proxy does not count."""

GO_LAST: Final = "go last"
LAST_WORKER_S: Final = 30.0
"""How long a worker may take to exit after its drain."""


class GridServer(uvicorn.Server):
    """uvicorn's server, without its signal handlers and its ten ticks a second; it also serves `encrypted` clients,
    where the grid speaks TLS."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop
        self.accepts = asyncio.Event()
        """Set once it accepts clients, or would."""
        self.encrypted: EncryptedClients | None = None

    async def main_loop(self) -> None:
        """Waits for the stop. uvicorn's own loop renews a Date header and counts requests, which nothing here uses."""
        if self.encrypted is not None:
            self.encrypted.open()
        self.accepts.set()
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called when the stop has come."""
        if self.encrypted is not None:
            self.encrypted.close()
        await super().shutdown(sockets)

    def accept_nobody(self) -> None:
        """Another proxy accepts on the same sockets."""
        if self.encrypted is not None:
            self.encrypted.close()
        for each in getattr(self, "servers", ()):
            each.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Proxy:
    """One proxy, from the fork to its end."""

    def __init__(self, boot: ProxyArguments, traces: ClientTraces | None = None) -> None:
        self.boot = boot
        self._room = room_for_clients(boot.settings)
        # Each waiting client keeps a descriptor; half of them are left for all other connections.
        self.settings = boot.settings.model_copy(update={"max_queue": min(boot.settings.max_queue, self._room // 2)})
        own_token_id = operators_token_id(boot.settings.token.get_secret_value())
        self.roster = Roster()
        self.registry = Registry(boot.redis_url, boot.settings)
        self.dead_workers = DeadWorkers(self.registry, boot.runtime, lambda: self.queue.wake())
        self.selector = Selector(self.settings, self.registry, self.roster, self.dead_workers.lost)
        self.queue = self.selector.queue
        self.queue.on_change = self._on_waiting
        self._tell_waiting: asyncio.TimerHandle | None = None
        self._told_demand: Collection[str] = ()
        """The pools that start on demand for which clients waited when the master was told last."""
        self.handoffs = Handoffs(boot.runtime, self.selector.health, traces)
        self._is_retiring = False
        self.hosts = HostKeeper(
            self.settings,
            self.registry,
            self.roster,
            self._waiting,
            self._hosts_changed,
            instance_of(boot.runtime) if self.settings.host_name() else "",
        )
        self.access = access_of(boot, lambda: self._is_retiring and self.roster.operators_token != own_token_id)
        self.readiness = Readiness(self.settings, self.roster, self.registry)
        sessions = SessionFinder(self.registry, self.roster, self.handoffs)
        self.gateway = Gateway(
            self.settings, self.roster, self.selector, self.handoffs, self.access, self.readiness, sessions
        )
        self.gateway.traces = traces
        if self.hosts.name:
            records, health = self.registry.hosts, self.selector.health
            self.gateway.forwarding = Forwarding(boot.runtime, self.hosts, records, health, self.settings.tls_ca)
            self.gateway.from_other_hosts = FromOtherHosts(records, self.handoffs)
        most_bytes = self.settings.session_files_max_mib * MIB
        self.files = SessionFiles(boot.runtime, self.settings.session_files_ttl, most_bytes)
        self.master = AskMaster(boot.runtime / "control.sock")
        self.feed = Feed(self.settings, self.registry, self.queue, self.gateway.figures, self.master, self.hosts)
        self.gateway.refusal_log.on_line = self.feed.events.refused
        self.gateway.on_slot_taken = self.feed.client_came
        self._stop = asyncio.Event()
        self._told = asyncio.Event()
        self._goes_last = False
        """Whether it was told by a signal to end, and waits for the last worker."""
        self._server: GridServer | None = None
        self._background_tasks = BackgroundTasks(self._background_task_failed)
        self.control = ChildSide(
            sock=boot.control,
            control_path=boot.runtime / "control.sock",
            hello=self._hello,
            on_command=self._on_command,
            on_state=self._on_state,
            ping_data=self._view,
            lost_threshold_s=boot.settings.worker_lost_threshold,
            on_lost=self._on_lost,
            on_found=self._on_found,
            fds=lambda: [listener.fileno() for listener in boot.listeners if listener.fileno() >= 0],
        )

    async def run(self) -> int:
        """Serves until the master says stop, or a SIGTERM or the loss of the master ends it. Returns the exit code."""
        settings = self.settings
        listeners = [*self.boot.listeners]
        if settings.tls_cert:  # clients at the others come to the TLS process
            listeners = [listener for listener in listeners if listener.family == socket.AF_UNIX]
        idle, note_refusal = IdleConnections(self._room), self.gateway.figures.note_refusal
        server = self._server = GridServer(
            uvicorn.Config(
                create_app(self._services(), self.access),
                http=cast("type[asyncio.Protocol]", partial(ProtocolChooser, idle, note_refusal)),
                ws=cast("type[asyncio.Protocol]", partial(ConnectingClient, self.gateway)),
                lifespan="off",
                log_config=None,
                log_level="error",  # its warnings of requests that are not HTTP: RefusalLog has these
                access_log=False,
                proxy_headers=False,  # it would see API requests alone: pwgrid/proxy/policy/arrival.py sees all
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=int(GRACE_S),
                # These bound the dashboard's WebSockets alone: sessions go to browser servers.
                ws_max_size=MAX_PAGE_BYTES,
                ws_per_message_deflate=False,
            ),
            self._stop,
        )
        for listener in listeners:
            tune(listener, settings.session_ping_timeout)
        inner = str(self.boot.runtime / TLS_SOCKET)
        for listener in [each for each in listeners if each.getsockname() == inner]:
            listeners.remove(listener)
            made: dict[str, Any] = {"config": server.config, "server_state": server.server_state, "app_state": {}}
            chooser = partial(EncryptedClientChooser, idle, note_refusal, **made)
            server.encrypted = EncryptedClients(listener, chooser, server.server_state.tasks)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        self._background_tasks.start(self.control.run(), "control link")
        self._background_tasks.start(self._keep_registry(), "registry")
        self._background_tasks.start(self.dead_workers.keep_trying(), "dead workers")
        self._background_tasks.start(self.feed.keep_history(), "dashboard history")
        self._background_tasks.start(self.files.keep_removing(), "files of sessions")
        if self.hosts.name:
            self._background_tasks.start(self.hosts.keep(), "hosts")
        # Before the master's first state the proxy knows no pool, and would refuse clients from the backlog.
        await first_of(self._told.wait(), self._stop.wait())
        serving = asyncio.create_task(server.serve(sockets=listeners))
        self.control.event("listening", {})
        await first_of(asyncio.wait([serving]), self._stop.wait())
        self.control.stopping()
        self.queue.close(replaced() if self._is_retiring else stopping())
        self.feed.close()
        await serving
        self.handoffs.close()
        if self.gateway.forwarding is not None:
            self.gateway.forwarding.close()
        self.gateway.refusal_log.flush()
        if not self._is_retiring:  # else another proxy writes it
            await self.dead_workers.last_try()
        self._background_tasks.cancel_all_but("control link")
        if self.hosts.name and self.roster.stopping and not self._is_retiring:
            await self.hosts.leave()
        await self.registry.close()
        await self.control.close("stopped")
        if self.control.is_lost:
            end_grid_if_last(self.boot.runtime)
        return 0

    def _services(self) -> Services:
        return Services(
            settings=self.settings,
            runtime=self.boot.runtime,
            registry=self.registry,
            roster=self.roster,
            gateway=self.gateway,
            queue=self.queue,
            feed=self.feed,
            readiness=self.readiness,
            master=self.master,
            files=self.files,
            protocol=ProtocolDescription(self.boot.runtime, self.roster, self.handoffs),
            hosts=self.hosts,
        )

    # Registry

    async def _keep_registry(self) -> None:
        self.registry.subscribe_slots(self._on_slots)
        # Nobody tells of a slot now: who waits is asked once by the selection without Redis, and heard of from then on.
        self.registry.client.on_lost(self.queue.wake)
        self.registry.client.on_connect(self._redis_answers_again)
        await keep_reaping(self.registry, self.settings.reaper_run_interval)

    def _redis_answers_again(self) -> None:
        self._background_tasks.start(self.selector.give_back_unanswered(), "unanswered selections")

    def _on_slots(self, pool: str | None) -> None:
        self.queue.wake(pool)
        if pool is None:  # Redis is back: workers that ended meanwhile may still be in it
            self._background_tasks.start(self.dead_workers.clear(), "clear dead workers")

    # Master

    def _on_state(self, state: dict[str, Any]) -> None:
        before = self._view()
        self.roster.replace(state)
        self._background_tasks.cancel_named(GO_LAST)  # there is a master again
        self._told.set()
        self.hosts.told(state)
        self.feed.roster_changed()
        self.gateway.roster_changed()
        if self.gateway.traces is not None:  # also of sessions that another proxy handed off
            self.handoffs.open(self.roster.workers)
        self._pause_or_go_on()
        self.selector.roster_changed()
        self._open_or_close()
        view = self._view()
        if any(view[what] != before[what] for what in ("ready", "configuration")):
            self.control.push_state(view)

    def _pause_or_go_on(self) -> None:
        """Has clients wait while the host is short of memory, unless other hosts can have them."""
        self.queue.pause(self.roster.host_guard is not None and not self.roster.others)

    def _hosts_changed(self) -> None:
        """Called when other hosts have come or gone, or have other pools or workers than before."""
        self.gateway.roster_changed()
        self.feed.hosts_changed()
        self._pause_or_go_on()
        self.queue.wake()

    def _waiting(self) -> dict[str, int]:
        """How many clients wait by pool, for other hosts to show."""
        return {name: self.queue.waiting(name) for name in self.queue.pools()}

    def _open_or_close(self) -> None:
        """Closes the queue while the grid takes no clients. It may take them again later: another master may take over,
        or a frozen one may go on."""
        if (refusal := self.gateway.closed()) is not None:
            self.queue.close(refusal)
        elif not self._stop.is_set():
            self.queue.reopen()

    def _on_sigterm(self) -> None:
        """Without a master it goes last, as the workers may still have sessions; a second signal means now."""
        if not self.control.give_up() or self._goes_last:
            self._stop.set()
        self._goes_last = True

    def _on_lost(self) -> None:
        """Called when the master is lost. If it is dead, the workers drain, and the proxy refuses clients until the
        last worker has ended. If it is frozen, the proxy stays: the master has the listening sockets open, too, on
        which clients would wait for ever."""
        if self.control.is_connected:
            after_s = self.control.lost_threshold_s
            self.roster.lost = f"the master has said nothing for {after_s:g} s, as if it were frozen"
        else:
            self.roster.stopping = True
            self._background_tasks.start(self._go_last(), GO_LAST)
        self._open_or_close()

    def _on_found(self) -> None:
        self._goes_last = False
        self.roster.lost = None
        self._open_or_close()

    async def _go_last(self) -> None:
        log.info("refusing_without_master", until="the last worker has ended")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout + LAST_WORKER_S):
                await workers_end(self.boot.runtime)
        self._stop.set()

    def _on_command(self, name: str, data: dict[str, Any]) -> None:
        if name in ("worker_lost", "worker_gone"):
            reason = Reason.read(data["reason"], STOPPED)
            self.dead_workers.lost[data["workerId"]] = (data["browserType"], reason)
            self.handoffs.drop(data["workerId"], "the worker is gone")
            self._background_tasks.start(self.dead_workers.clear(), "clear dead workers")
            if name == "worker_lost":
                self.feed.events.worker_lost(data["workerId"], str(reason))
        elif name == "worker_taken_over":
            self.feed.events.worker_taken_over(data["workerId"])
            self.selector.health.process_died(data["workerId"])
            self.handoffs.drop(data["workerId"], "the worker is gone")
            # Its sessions live on, and no proxy selects it.
            marks = self._write_of_worker(self.registry.mark_draining, data, "worker_not_marked_draining")
            self._background_tasks.start(marks, "mark draining")
        elif name == "leave_drain":  # in Redis, too, since the worker's link to the master is down
            drains = self._write_of_worker(self.registry.send_drain, data, "drain_not_written_to_redis")
            self._background_tasks.start(drains, "leave drain")
        elif name == "retire":
            self._background_tasks.start(self._retire(), "retire")
        elif name == "open_log":
            logging.open_again(self.settings.log_file)
        elif name == "stop":
            self._stop.set()
        else:
            log.error("command_unknown", name=name)

    async def _retire(self) -> None:
        """Serves the clients that are accepted, and then stops: another proxy listens on the same sockets."""
        server = self._server
        assert server is not None
        self._is_retiring = True
        self.hosts.be_silent()
        # Another master may retire it before it listens. What is about to be opened could not be closed.
        await first_of(server.accepts.wait(), self._stop.wait())
        server.accept_nobody()
        for each in self.boot.listeners:  # also those on which only a TLS process accepts
            each.close()
        self.feed.close()  # its pages and live views connect again, to the other proxy
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.longest_wait_s() + 2 * HANDOFF_TIMEOUT_S + GRACE_S):
                await connections_end(server.server_state)
        self._stop.set()

    async def _write_of_worker(
        self, write: Callable[[BrowserType, str], Awaitable[object]], data: dict[str, Any], not_written: str
    ) -> None:
        """Calls `write` for the worker of a command. Logs `not_written` if Redis is away."""
        try:
            await write(data["browserType"], data["workerId"])
        except RegistryUnavailable as error:
            log.warning(not_written, worker=data["workerId"], error=str(error))

    def _background_task_failed(self, name: str, _error: BaseException) -> None:
        if name in ("control link", "registry"):  # without the others the proxy serves on
            self._stop.set()

    def _on_waiting(self) -> None:
        self.feed.client_came()
        if self._demand().keys() != self._told_demand:  # a pool is to start, or may end
            self._push_waiting()
        elif self._tell_waiting is None:
            loop = asyncio.get_running_loop()
            self._tell_waiting = loop.call_later(TELL_WAITING_S, self._push_waiting)

    def _push_waiting(self) -> None:
        if self._tell_waiting is not None:
            self._tell_waiting.cancel()
            self._tell_waiting = None
        self._told_demand = self._demand().keys()
        self.control.push_state(self._view())

    def _demand(self) -> dict[str, int]:
        """How many clients wait for pools that start on demand, by pool."""
        pools = self.roster.pools
        return {
            name: self.queue.waiting(name)
            for name in self.queue.pools()
            if name in pools and pools[name].starts_for_clients
        }

    def _view(self) -> dict[str, Any]:
        return {
            "waiting": self.queue.waiting(),
            "demand": self._demand(),
            "waitingByRun": [each._asdict() for each in self.queue.waiting_by_run()[:MOST_PARTIES]],
            "ready": self.roster.not_ready_alone() is None,
            "configuration": self.roster.configuration,
        }

    def _hello(self) -> dict[str, Any]:
        return {"name": "proxy", "role": "proxy", "version": __version__, "pid": os.getpid(), "at": time.time()}


async def connections_end(state: ServerState) -> None:
    """Returns once uvicorn has no connection and no task left. Its listeners are closed."""
    while True:
        # Waits first, since uvicorn learns of an accepted connection only in the loop's next turn. No event tells that
        # the last connection has ended.
        await asyncio.sleep(RETIRE_POLL_INTERVAL_S)
        if not (state.connections or state.tasks):
            return


class Disbelieved:
    """Logs hosts whose X-Forwarded-* or Forwarded headers do not count, each once."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()

    def note(self, host: str) -> None:
        if host not in self._hosts and len(self._hosts) < MOST_DISBELIEVED:
            self._hosts.add(host)
            log.warning("forwarded_headers_ignored", host=host or UNIX, about="TRUSTED_PROXIES does not name it")


def access_of(boot: ProxyArguments, is_token_replaced: Callable[[], bool] = lambda: False) -> Access:
    """Makes the rules for who may use the grid from the settings and the listening sockets."""
    settings = boot.settings
    # systemd may have opened others than the settings name. A Unix socket's address is a str.
    addresses = [each for each in (listener.getsockname() for listener in boot.listeners) if isinstance(each, tuple)]
    hosts = [each[0] for each in addresses]
    advertised = settings.advertised()
    own_hosts = (settings.host, settings.advertised_host, advertised.host if advertised else "")
    return Access(
        token=settings.token.get_secret_value(),
        allowed_origins=frozenset(settings.allowed_origins),
        allowed_hosts=frozenset(settings.allowed_hosts),
        own_hosts=frozenset(filter(None, own_hosts)),
        own_origins=frozenset({advertised.origin} if advertised else ()),
        loopback_listeners=frozenset((each[0], each[1]) for each in addresses if is_loopback(each[0])),
        arrivals=Arrivals(
            settings.local_url(), advertised, settings.advertised_host, settings.trusted_proxies, Disbelieved().note
        ),
        tokens=TokenFile(boot.tokens_file).tokens if boot.tokens_file else lambda: NO_TOKENS,
        is_closed=not settings.allow_public and not all(map(is_loopback, hosts)),
        is_token_replaced=is_token_replaced,
        now=time.monotonic,
    )


def run_proxy(boot: ProxyArguments) -> int:
    """Runs the proxy role in the forked child. Returns the exit code."""
    logging.bind("proxy")
    traces = client_traces.start(boot.settings.port, with_names=boot.settings.log_run_names)

    async def live() -> int:
        return await Proxy(boot, traces).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(live())
    if traces is not None:
        traces.close()
    return code
