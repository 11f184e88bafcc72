"""What Redis knows of this worker, kept true to its slots. Writes what it is told; decides nothing about the worker."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import EndReason, how_ended
from pwgrid.registry import kept_while_redis_is_away
from pwgrid.registry.registry import HeartbeatReply, Registry, WorkerRecord
from pwgrid.registry.session_updates import SessionEnd, SessionUpdate
from pwgrid.registry.session_writer import SessionWriter
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.worker.browser.server import SessionClosed
from pwgrid.worker.leases import End, Lease
from pwgrid.worker.slots import LiveSession, Slots

log = structlog.get_logger()

SETTLE_S: Final = 1.0
"""How long a leaving worker waits for a Redis that is away; the proxy has more patience."""

RECORD_DELAY_S: Final = 0.01
"""What only keeps records waits for so long, since every process that is awake takes time from a client: the answer to
the proxy and the session's record from one that gets its first answer, the log's line of an end from the next one that
waits for the slot."""

_AGAIN_S: Final = 0.1


class RegistrySync:
    """The worker's side of the registry. `record` gives the worker's hash as it is now, `leases` those that it has."""

    def __init__(
        self,
        boot: WorkerArguments,
        registry: Registry,
        slots: Slots,
        record: Callable[[], WorkerRecord],
        leases: Callable[[], Collection[Lease]] = tuple,
    ) -> None:
        self._boot = boot
        self._registry = registry
        self._slots = slots
        self._record = record
        self._leases = leases
        self._writer = SessionWriter(registry.write)
        self._is_due = asyncio.Event()
        self._is_known = False
        self._drain_at: float | None = None
        self._unlogged: list[dict[str, str]] = []
        """Sessions that have ended, and whose line is not written yet."""
        self._log_timer: asyncio.TimerHandle | None = None
        registry.client.on_connect(self._is_due.set)

    async def open(self) -> None:
        """Connects. Raises RegistryUnavailable after REDIS_RETRY_ATTEMPTS × REDIS_RETRY_DELAY where this grid has never
        seen its Redis; else it is enough that Redis comes back some time."""
        settings = self._boot.settings
        if not self._boot.registry_seen:
            await self._registry.connected(settings.redis_retry_attempts, settings.redis_retry_delay)

    async def register(self) -> None:
        """Writes the worker's record and counters. Raises RegistryUnavailable where this grid has never seen its Redis;
        else a heartbeat makes up for it."""
        self._is_known = True
        await self._registry.subscribe_commands(self._boot.browser_type, self._boot.worker_id, self._is_due.set)
        try:
            await self._register()
        except RegistryUnavailable as error:
            if not self._boot.registry_seen:
                raise
            log.warning("registration_put_off", error=str(error))

    async def replacement(self) -> str | None:
        """The worker that serves in place of this one now that it is used up; None if that is not known."""
        with contextlib.suppress(RegistryUnavailable):
            return await self._registry.replacement(self._boot.browser_type, self._boot.worker_id)
        return None

    def drain_begins(self) -> None:
        """The records of sessions that end from now on say when the drain began."""
        self._drain_at = self._registry.now()

    async def draining(self) -> None:
        """Has no selection choose this worker any more. Where Redis is away, a later heartbeat does the same."""
        try:
            await self._registry.mark_draining(self._boot.browser_type, self._boot.worker_id)
        except RegistryUnavailable as error:
            log.info("draining_not_marked", error=str(error))

    def began(self, session: LiveSession) -> None:
        """The browser server has the session's socket, since now."""
        session.started_at, session.is_served = self._registry.now(), True

    def started(self, session: LiveSession) -> None:
        """Puts on record that it runs."""
        self._writer.note(_update(session))

    def ended(self, closed: SessionClosed, session: LiveSession | None, on_record: Callable[[], None]) -> None:
        """The session is over. `on_record` is called once Redis has it; a worker that dies before that leaves it to its
        successor."""
        status = how_ended(closed.by, closed.reason).value
        end = SessionEnd(status, closed.reason, self._registry.now(), closed.bytes_in, closed.bytes_out, self._drain_at)
        self._writer.note(_update(session or LiveSession(closed.session_id), end), on_record)
        self._unlogged.append({"session": closed.session_id, "status": status, "reason": closed.reason})
        if self._log_timer is None:
            self._log_timer = asyncio.get_running_loop().call_later(RECORD_DELAY_S, self._log_ends)

    def lease_started(self, lease: Lease) -> None:
        """Puts on record that somebody has it."""
        self._writer.note(_update(lease.held))
        log.info("lease_started", lease=lease.lease_id, client=lease.held.client, **self.named(lease.told))

    def lease_ended(self, lease: Lease, end: End) -> None:
        """Puts on record that it is over."""
        status = how_ended(end.by, end.reason).value
        self._writer.note(_update(lease.held, SessionEnd(status, end.reason, self._registry.now())))
        log.info("lease_ended", lease=lease.lease_id, status=status, reason=end.reason)

    def named(self, told: Mapping[str, str]) -> dict[str, str]:
        """What a line of the log says of a run's name: nothing where the settings keep names out of it."""
        return {"name": told["name"]} if told.get("name") and self._boot.settings.log_run_names else {}

    def beat_soon(self) -> None:
        """Has the next heartbeat sent soon: what it tells has changed."""
        self._is_due.set()

    async def due(self, interval_s: float) -> None:
        """Returns when a heartbeat is due: after the interval, and at once when Redis has come back or tells of a
        command."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await self._is_due.wait()
        self._is_due.clear()

    async def beat(self) -> HeartbeatReply | None:
        """One heartbeat, behind all that was written before it; registers again where Redis has forgotten the worker.

        None while Redis cannot take what was kept for it. Raises RegistryUnavailable.
        """
        if not await self._writer.flush():
            return None
        record = self._record()
        reply = await self._registry.heartbeat(
            record.browser_type,
            record.worker_id,
            status=record.status,
            sessions=self._live(),
            lifetime=None if self._boot.adopt_node_pid else self._slots.lifetime,
            rss_mib=record.rss_mib,
            record=record,
        )
        if not reply.known:
            log.warning("registered_again", active=self._slots.taken, lifetime=self._slots.lifetime)
            await self._register()
        if reply.repaired:
            log.error("counter_repaired", by=reply.repaired)
        kept = [lease for lease in self._leases() if lease.held.is_served]
        await asyncio.gather(*(self._registry.describe_lease(lease.lease_id, lease.fields()) for lease in kept))
        return reply

    async def leave(self) -> None:
        """Writes what is not written yet, and unregisters. Where Redis is away, both are left to the proxy."""
        if not self._is_known:
            return
        registry, boot = self._registry, self._boot
        try:
            async with asyncio.timeout(SETTLE_S):
                while not await self._writer.flush():
                    await registry.client.wait_connected()
                    await asyncio.sleep(_AGAIN_S)  # it is there, and does not serve yet: nothing tells when it will
                await registry.unregister(boot.browser_type, boot.worker_id, EndReason.WORKER_STOPPED)
        except (TimeoutError, RegistryUnavailable) as error:
            unwritten = self._writer.unwritten()
            log.warning("left_without_redis", reason=str(error) or "Redis is away", unwritten=len(unwritten))
            try:
                kept_while_redis_is_away.write(boot.runtime, boot.browser_type, boot.worker_id, unwritten)
            except OSError as problem:
                log.error("unwritten_lost", sessions=len(unwritten), error=str(problem))

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._log_ends()
        await self._registry.close()

    def _log_ends(self) -> None:
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_timer = None
        unlogged, self._unlogged = self._unlogged, []
        for each in unlogged:
            log.info("session_ended", **each)

    async def _register(self) -> None:
        await self._registry.register(self._record(), lifetime=self._slots.lifetime, sessions=self._live())
        self._is_due.clear()  # it knows all there is to know

    def _live(self) -> list[SessionUpdate]:
        # Leases first: the sessions that come with them get on record what the leases' records say.
        holders = (*self._slots.held.values(), *self._slots.live.values())
        return [_update(each) for each in holders if each.is_served]


def _update(session: LiveSession, end: SessionEnd | None = None) -> SessionUpdate:
    return SessionUpdate(session.session_id, session.started_at, session.client, end, session.told)
