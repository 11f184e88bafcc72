"""The worker process: owns one browser server through its whole life."""

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import structlog
import uvloop

from pwgrid import __version__
from pwgrid.common import log as logging
from pwgrid.common.errors import BrowserServerGone, RegistryUnavailable
from pwgrid.common.launch_failure import BrowserLaunchError, why
from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.common.tasks import BackgroundTasks, first_of
from pwgrid.common.types import spoken_by
from pwgrid.common.worker_lifecycle import DrainTime, WorkerEvent, advance
from pwgrid.control.child_side import ChildSide
from pwgrid.installed.browsers import FoundBrowser
from pwgrid.registry.registry import Registry
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.directory import CODE_CACHE, KEPT_FILES
from pwgrid.runtime.last_child_ends_grid import end_grid_if_last
from pwgrid.worker.admission import Admission
from pwgrid.worker.browser.confined_paths import Identity, replaced
from pwgrid.worker.browser.health import Asked, BrowserHealth, HealthTimes
from pwgrid.worker.browser.launch import LaunchSpec
from pwgrid.worker.browser.server import BrowserServer
from pwgrid.worker.close_texts import drain_text
from pwgrid.worker.drain import Drain, DrainRequest
from pwgrid.worker.handoff_server import HandoffServer
from pwgrid.worker.holders import End, SessionClosed
from pwgrid.worker.registry_sync import RegistrySync
from pwgrid.worker.sessions import CLOSE_GRACE_S
from pwgrid.worker.slots import Slots, should_report

log = structlog.get_logger()

STOP_S: Final = 10.0
SHOWN_AFTER_S: Final = 1.0
"""A suspicion that is over sooner is shown to nobody; no client is admitted meanwhile all the same."""
ADOPT_S: Final = 5.0
EXIT_FAILED: Final = 1
MAY_CONCERN_ALL: Final = frozenset({"browser", "other"})
"""Kinds of errors in a browser server that are not of one session (error_counts.cjs)."""


class Worker:
    """One worker. `run` goes through the phases start, serve, drain, stop. A successor launches no browser: it may have
    None."""

    def __init__(self, boot: WorkerArguments, browser: FoundBrowser | None) -> None:
        self.boot = boot
        self.browser = browser
        self.settings = boot.settings
        self._serve = asyncio.Event()
        handoff = HandoffServer(boot.directory / "handoff.sock")
        self.slots = Slots(
            self.settings.max_concurrent_sessions, self.settings.max_lifetime_sessions, handoff.tell_freed
        )
        registry = Registry(boot.redis_url, boot.settings)
        self.registry_sync = RegistrySync(boot, registry, self.slots, handoff.tell_freed)
        self.admission = Admission(
            *(boot, self.slots, self.registry_sync, handoff),
            on_offered=self._serve.set,  # a spare that is offered a session has to serve
            on_served=self._watch_lifetime,
        )
        self.admission.sessions.on_kept = self._kept_changed
        # At once: the master gives the end of a worker with profiles more time.
        self.admission.sessions.profiles.on_taken = lambda: self.control.push_state(self._view())
        self._missed_for = ""
        """Why the last heartbeat was missed; empty if it was not. The log has each reason once."""
        self._shown_suspicion: str | None = None
        self._show_suspicion: asyncio.TimerHandle | None = None
        self._lifetime_told = 0
        """What `_watch_lifetime` has told the master last."""
        self._host_is_short = False
        """Whether the host is short of memory."""
        self._drain = DrainRequest()
        self._was_signalled = False
        """Whether there was a SIGTERM."""
        self._stop_s = STOP_S
        self._background_tasks = BackgroundTasks(self._background_task_failed)
        self.control = ChildSide(
            sock=boot.control,
            control_path=boot.runtime / "control.sock",
            hello=self._hello,
            on_command=self._on_command,
            on_state=self._on_state,
            ping_data=self._view,
            lost_threshold_s=boot.settings.worker_lost_threshold,
            on_lost=lambda: self.ask_drain(Reason(WorkerEnd.NO_MASTER)),
            fds=lambda: [fd for fd in (boot.ipc.fileno(),) if fd >= 0],
        )

    async def run(self) -> int:
        """Runs the worker until its end. Returns its exit code."""
        self._background_tasks.start(self.control.run(), "control link")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        try:
            await self._start()
        except (BrowserLaunchError, RegistryUnavailable) as error:
            if isinstance(error, BrowserLaunchError):
                executable = self.browser and self.browser.executable
                log.debug("browser_did_not_start", executable=executable, said=error.evidence)
            self._step(WorkerEvent.FAILS)
            self.control.event("failed", {"reason": _why_it_failed(error).as_data()})
            await self._stop()
            return EXIT_FAILED
        drain = await self._drain.asked()
        await self._drain_sessions(drain)
        await self._stop()
        return 0 if drain.planned else EXIT_FAILED

    # Phases

    async def _start(self) -> None:
        """Returns early if the worker is to end: no client could get it any more."""
        if self.boot.ipc_child is None:
            await self._take_over()
            return
        await first_of(self._launch(self.boot.ipc_child), self._drain.asked())
        if not self._drain.is_asked:
            await self._enter()

    async def _launch(self, ipc_child: socket.socket) -> None:
        boot, settings = self.boot, self.settings
        await self.registry_sync.open()
        assert self.browser is not None
        spec = LaunchSpec(
            settings,
            boot.pool,
            self.browser,
            boot.directory,
            live_view=boot.directory / "live.sock" if settings.live_view else None,
            kept_files=boot.runtime / KEPT_FILES / boot.directory.name if settings.session_files_ttl else None,
            code_cache=boot.runtime / CODE_CACHE,
        )
        files = spec.confinement.of_host() if spec.confinement else {}
        self.admission.sessions.server = server = await BrowserServer.start(
            spec,
            boot.ipc,
            ipc_child,
            on_closed=self.admission.sessions.ended,
            on_gone=self._on_gone,
        )
        self._has_browser_server(server)
        self.admission.open()
        if files:
            self._background_tasks.start(self._tell_when_outdated(files), "host files watch")

    async def _enter(self) -> None:
        """Registers and serves. A spare serves only when the master or a selection says so, or a session is offered."""
        is_spare = self.boot.spare and not self._serve.is_set()
        self._step(WorkerEvent.WAITS if is_spare else WorkerEvent.SERVES)
        await self.registry_sync.register()
        self._background_tasks.start(self._beat(), "heartbeat")
        if is_spare:
            self.control.event("spare", {})
            log.info("worker_spare")
            await first_of(self._serve.wait(), self._drain.asked())
            if self._drain.is_asked:
                return
            self._step(WorkerEvent.SERVES)
            if not self.slots.taken:  # else the selection has made it available in Redis
                await self._beat_once()
        self.control.event("available", {})

    async def _take_over(self) -> None:
        """Takes over the browser server of a worker that died, until its sessions end. Admits no new ones."""
        boot = self.boot
        assert boot.adopt_node_pid is not None
        await self.registry_sync.open()
        try:
            server, live = await BrowserServer.adopt(
                boot.ipc,
                boot.adopt_node_pid,
                boot.directory,
                on_closed=self.admission.sessions.ended,
                on_gone=self._on_gone,
                timeout_s=ADOPT_S,
            )
        except BrowserServerGone as error:
            raise BrowserLaunchError(str(error), "taking over the browser server") from None
        self.admission.adopt(server, live)
        self._has_browser_server(server)
        left_s = max(0.0, boot.sessions_until - time.monotonic())
        self.ask_drain(Reason(WorkerEnd.TAKEN_OVER), boot.drain_time, left_s)
        self._step(WorkerEvent.DRAINS)
        await self.registry_sync.register()
        self.admission.open()  # only clients with leases are admitted
        log.warning("browser_server_taken_over", node=server.pid, sessions=len(live), leases=len(self.slots.held))
        self._background_tasks.start(self._beat(), "heartbeat")

    def _has_browser_server(self, server: BrowserServer) -> None:
        """Tells the master of the browser server, and watches it from now on."""
        health = BrowserHealth(server, HealthTimes.of(self.settings), self._suspicion_changed)
        server.on_sign = health.sign
        server.on_errors = partial(self._note_errors, health)
        server.on_kept = self.admission.sessions.has_clients
        server.on_ending = self.admission.sessions.profile_ends
        self.admission.sessions.on_handoff_failed = partial(health.sign, "a client was not handed over")
        self._background_tasks.start(self._watch_browser_server(server), "browser server watch")
        self._background_tasks.start(self._end_when_server_hangs(health, server), "browser server liveness")
        self._background_tasks.start(self._recycle_when_sick(health, server), "canary")
        self._background_tasks.start(self._end_when_browser_hangs(health), "browser liveness")
        server.hold_warm(self._host_is_short)
        ready = server.ready
        self.registry_sync.playwright_version = ready.playwright_version
        self.control.event(
            "launched",
            {
                "nodePid": server.pid,
                "browserPid": ready.browser_pid,
                "browserVersion": ready.browser_version,
                "playwrightVersion": ready.playwright_version,
                "protocols": spoken_by(self.boot.browser_type),
            },
        )

    async def _drain_sessions(self, drain: Drain) -> None:
        self._step(WorkerEvent.DRAINS)
        self.registry_sync.drain_begins()
        if self.admission.sessions.server is not None:
            self.admission.sessions.server.keep_none_warm()
        log.info("worker_draining", reason=str(drain.reason), sessions=len(self.slots.live), timeout_s=drain.timeout_s)
        replacement = await self.registry_sync.replacement() if drain.reason.kind is WorkerEnd.LIFETIME else None
        told = {"reason": drain.reason.as_data(), "replacement": replacement, "timeoutS": drain.timeout_s}
        self.control.event("draining", told | {"active": self.slots.taken})
        self.control.stopping()
        self._background_tasks.start(self.registry_sync.mark_draining(), "draining mark")
        cut = await self._drain.sessions_end(self.slots)
        if cut is None:
            return
        limit = self._drain.limit
        log.warning("sessions_cut", sessions=len(self.slots.live), why=str(cut), reason=str(limit.reason))
        bound = f"{limit.within.setting}={limit.within.seconds(self.settings):g} s"
        text = drain_text(limit.reason.kind, cut, bound)
        why = Reason(cut, str(limit.reason) if cut is EndReason.DRAIN_TIMEOUT else "")
        await self.admission.cut(why, text)

    async def _stop(self) -> None:
        self.control.stopping()
        self.admission.close()
        self._background_tasks.cancel_all_but("control link", "heartbeat")
        if self.admission.sessions.server is not None:
            await self.admission.sessions.profiles_saved()
            await self.admission.sessions.server.stop(self._stop_s)  # which reports its last sessions
            await self.admission.sessions.profiles_saved()
        self.admission.sessions.end_displays()
        self._background_tasks.cancel_all_but("control link")
        await self.registry_sync.leave()
        await self.registry_sync.close()
        shutil.rmtree(self.boot.directory, ignore_errors=True)
        self._step(WorkerEvent.STOPS)
        self.control.event("stopped", {**self._drain.outcome(), "drainS": self._drain.took_s})
        await self.control.close("stopped")
        if self.control.is_lost:
            end_grid_if_last(self.boot.runtime)

    # Requests and events

    def ask_drain(
        self, reason: Reason[WorkerEnd], within: DrainTime = DrainTime.END, left_s: float | None = None
    ) -> None:
        """Starts a planned drain, or leaves the sessions of a drain that is under way less time. `left_s` is what is
        left of the time, if the drain began elsewhere."""
        was_asked = self._drain.is_asked
        drain = Drain(reason, within.seconds(self.settings) if left_s is None else left_s, within=within)
        is_first_or_shorter = self._drain.ask(drain)
        if is_first_or_shorter:
            self._end_kept()
        if is_first_or_shorter and was_asked:
            log.info("drain_hurried", reason=str(reason), sessions=len(self.slots.live), timeout_s=drain.timeout_s)

    def _kept_changed(self) -> None:
        self._end_kept()
        self.control.push_state(self._view())

    def _end_kept(self) -> None:
        """Ends kept sessions where a drain does not wait for them."""
        if self._drain.is_asked and not self._drain.limit.waits_for_kept:
            self.admission.sessions.end_kept(Reason(EndReason.KEPT_IN_DRAIN, str(self._drain.limit.reason)))

    def _fail(self, reason: Reason[WorkerEnd], timeout_s: float, cut: EndReason) -> None:
        """Starts a drain after which the worker exits with EXIT_FAILED."""
        self._drain.ask(Drain(reason, timeout_s, planned=False, cut=cut))

    def _background_task_failed(self, name: str, error: BaseException) -> None:
        self._fail(
            Reason(WorkerEnd.OTHER, f"{name} failed: {error!r}"), self.settings.drain_timeout, EndReason.DRAIN_TIMEOUT
        )

    def _on_sigterm(self) -> None:
        """Asks for a drain; hurries one that goes on. Without a master the first signal hurries nothing: the drain may
        be for the master's loss alone."""
        was_draining = self._drain.is_asked
        has_no_master = self.control.give_up()
        if was_draining and (self._was_signalled or not has_no_master):
            self._drain.hurry()
        self._was_signalled = True
        if has_no_master:  # nobody else stops the grid
            self.admission.leases.grid_stops()
        self.ask_drain(Reason(WorkerEnd.TERMINATED))

    def _on_command(self, name: str, data: dict[str, Any]) -> None:
        if name == "drain":
            reason = Reason.read(data.get("reason"), Reason(WorkerEnd.NOT_SAID))
            within = DrainTime(data["within"])
            self.ask_drain(reason, within, data["timeoutS"])
            if within is DrainTime.NOW:
                self._drain.hurry()
        elif name == "serve":
            self._serve.set()
        elif name == "open_log":
            logging.open_again(self.settings.log_file)
        elif name == "end_kept":
            self.admission.sessions.end_kept(Reason(EndReason.KEPT_FOR_MEMORY), data["sessionId"])
        elif name == "end_browser":
            self.admission.sessions.end_browser(int(data["pid"]))
        elif name == "end_session":
            self.admission.sessions.end(str(data["sessionId"]), Reason(EndReason.ENDED_BY_OPERATOR))
        else:
            log.error("command_unknown", name=name)

    def _on_state(self, state: dict[str, Any]) -> None:
        self.registry_sync.rss_mib = state.get("rssMib", self.registry_sync.rss_mib)
        self.admission.tokens.operators = state.get("operatorsToken")
        self.admission.end_of_tokens(state.get("endedTokens", ()))
        if (is_short := bool(state.get("hostIsShort"))) != self._host_is_short:
            self._host_is_short = is_short
            if (server := self.admission.sessions.server) is not None:
                server.hold_warm(is_short)
        if state.get("gridStops"):
            self.admission.leases.grid_stops()

    def _watch_lifetime(self) -> None:
        lifetime, limit = self.slots.lifetime, self.settings.max_lifetime_sessions
        if should_report(lifetime, self._lifetime_told, limit):
            self._lifetime_told = lifetime
            self.control.push_state(self._view())  # so that the master has a replacement ready in time
        if self.slots.is_used_up:
            self._end_used_up()

    def _end_used_up(self) -> None:
        """The last session of its life has been admitted. The selection that took it knows that first, and has let a
        replacement serve in the same step; what Redis did not select, only this worker counts."""
        self.ask_drain(Reason(WorkerEnd.LIFETIME), DrainTime.RECYCLE)

    def _on_gone(self, reason: Reason[WorkerEnd]) -> None:
        log.error("browser_gone", reason=str(reason), sessions=len(self.slots.live))
        server = self.admission.sessions.server
        self._fail(reason, CLOSE_GRACE_S, server.sessions_ended_for if server else EndReason.BROWSER_CRASHED)

    async def _watch_browser_server(self, server: BrowserServer) -> None:
        """Ends the sessions of a browser server that has ended; `_on_gone` was called before."""
        await asyncio.shield(server.exited)  # others wait for it, too, when this task is cancelled
        self.admission.all_ended("browser", EndReason.BROWSER_SERVER_LOST)

    async def _end_when_server_hangs(self, health: BrowserHealth, server: BrowserServer) -> None:
        """Fails the worker when its browser server hangs. All its sessions hang with it, so none is waited for; the one
        whose message it is about has a reason of its own."""
        await health.until_hung(Asked.SERVER)
        cause = server.session_in_work()
        log.error("browser_server_hung", sessions=len(self.slots.live), session=cause)
        if cause is not None and cause in self.slots.live:
            self.admission.sessions.ended(SessionClosed(cause, 0, 0, End("grid", Reason(EndReason.TOO_MUCH_WORK))))
        self.admission.all_ended("grid", EndReason.HUNG)
        self._stop_s = 0.0
        self._fail(Reason(WorkerEnd.BROWSER_SERVER_HUNG), 0.0, EndReason.HUNG)
        await server.stop(0)  # now: the clients that are on their way to it wait for that

    async def _tell_when_outdated(self, files: Mapping[str, Identity]) -> None:
        """Has the master replace this worker when another file is where one of these was: the kernel knows files by
        their inodes, so the browser may not read that one, /etc/resolv.conf for example."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_interval)
            if path := replaced(files):
                log.info("host_file_replaced", path=path)
                self.control.event("outdated", {"reason": Reason(WorkerEnd.HOST_FILE, path).as_data()})
                return

    async def _end_when_browser_hangs(self, health: BrowserHealth) -> None:
        """Fails the worker when its browser hangs. Its browser server lives, and tells the clients why they end."""
        await health.until_hung(Asked.BROWSER)
        log.error("browser_hung", sessions=len(self.slots.live))
        self._stop_s = 0.0
        self._fail(Reason(WorkerEnd.BROWSER_HUNG), 0.0, EndReason.BROWSER_HUNG)

    async def _recycle_when_sick(self, health: BrowserHealth, server: BrowserServer) -> None:
        """Recycles the worker when its browser opens no pages any more. Sessions that wait for one end, those that have
        theirs go on."""
        evidence = await health.until_sick(
            lambda result: self.control.event("canary", {"s": result.duration_ms / 1000, "ok": result.ok})
        )
        if evidence is not None:
            version = server.ready.playwright_version
            log.error("browser_sick", error=evidence, playwright=version, sessions=len(self.slots.live))
            server.cut_hanging(EndReason.BROWSER_SICK, health.times.try_s)
            self.ask_drain(Reason(WorkerEnd.CANARY, why(evidence)), DrainTime.RECYCLE)

    def _suspicion_changed(self, suspicion: str | None) -> None:
        """Keeps new clients away at once, and shows why if it lasts."""
        self.slots.suspect(suspicion)
        if suspicion is None:
            self._show(None)
        elif self._show_suspicion is None:
            self._show_suspicion = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show, suspicion)

    def _show(self, suspicion: str | None) -> None:
        if self._show_suspicion is not None:
            self._show_suspicion.cancel()
            self._show_suspicion = None
        if suspicion != self._shown_suspicion:
            self._shown_suspicion = suspicion
            self.control.push_state(self._view())

    def _note_errors(self, health: BrowserHealth, counts: Mapping[str, int], text: str, session_id: str | None) -> None:
        """Logs errors in the browser server that nobody waits for, and tells the master how many. Takes those that may
        concern all sessions as a sign that the browser is sick."""
        log.error("browser_server_errors", counts=dict(counts), last=text, session=session_id)
        self.control.event("errors", {"counts": dict(counts)})
        if MAY_CONCERN_ALL & counts.keys():
            health.sign("errors in the browser server")

    async def _beat(self) -> None:
        while True:
            await self.registry_sync.due(self.settings.heartbeat_interval)
            await self._beat_once()

    async def _beat_once(self) -> None:
        try:
            reply = await self.registry_sync.beat()
        except RegistryUnavailable as error:
            if str(error) != self._missed_for:
                log.warning("heartbeat_missed", error=str(error))
            self._missed_for = str(error)
            return
        self._missed_for = ""
        if reply.command == "shutdown":
            self.slots.expect(reply.awaited)
            if reply.is_used_up:
                self._end_used_up()
            elif not self._drain.is_asked:  # the command stays in Redis, and later heartbeats repeat it
                self.ask_drain(Reason(WorkerEnd.OPERATOR, "asked over Redis"))
        elif reply.command == "serve":
            self._serve.set()

    # Descriptions of this worker

    def _step(self, event: WorkerEvent) -> None:
        self.slots.status = advance(self.slots.status, event)

    def _view(self) -> dict[str, Any]:
        slots = self.slots
        view: dict[str, Any] = {"status": slots.status.value, "active": slots.taken, "lifetime": slots.lifetime}
        if self._shown_suspicion is not None:
            view["suspect"] = self._shown_suspicion
        if slots.own_browsers:
            view["ownBrowsers"] = slots.own_browsers
        if slots.launches:
            view["launches"] = slots.launches
        if self.admission.has_profiles:
            view["hasProfiles"] = True
        if kept := slots.kept():
            assert kept[0].kept is not None
            view |= {"kept": len(kept), "oldestKept": {"session": kept[0].id, "since": kept[0].kept.since}}
        return {**view, "runs": runs} if (runs := slots.runs()) else view

    def _hello(self) -> dict[str, Any]:
        return {
            "name": self.boot.worker_id,
            "role": "worker",
            "browserType": self.boot.browser_type,
            "version": __version__,
            "pid": os.getpid(),
            "slots": self.slots.slots,
        }


def _why_it_failed(error: BrowserLaunchError | RegistryUnavailable) -> Reason[WorkerEnd]:
    if isinstance(error, RegistryUnavailable):
        return Reason(WorkerEnd.NO_REDIS, str(error))
    return Reason(WorkerEnd.LAUNCH_FAILED, str(error), error.signal)


def run_worker(boot: WorkerArguments, browser: FoundBrowser | None) -> int:
    """Runs the worker role in the forked child. Returns the exit code."""
    logging.bind("worker", worker=boot.worker_id, browser_type=boot.browser_type, pool=boot.pool.name)

    async def live() -> int:
        return await Worker(boot, browser).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live())
