"""Keeps what Redis knows of this worker true to its slots."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from pwgrid import __version__
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.redis_url import shown
from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.registry.records import KEPT_UNTIL, HeartbeatReply, WorkerRecord
from pwgrid.registry.registry import Registry
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.registry.session_writer import SessionRecordWriter
from pwgrid.registry.spool import write_spool_file
from pwgrid.registry.try_redis import try_redis
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.worker.holders import End, Holder, Lease, LiveSession, SessionClosed
from pwgrid.worker.slots import Slots

log = structlog.get_logger()

SETTLE_S: Final = 1.0
"""How long a worker that stops waits for a Redis that is away, before it leaves its updates to a proxy."""

RECORD_DELAY_S: Final = 0.1
"""How long work is put off at most that only keeps records: each process that wakes up takes time from clients.

- The answer to the proxy and the session's record wait for the next end of a session, which wakes this process anyway,
  so that the session's client gets its first answer sooner.
- Log lines wait for Redis' answer, so that the next client of a slot is served sooner."""

RECORD_AT_ONCE: Final = 32
"""How many sessions wait for that at most: meanwhile the proxy keeps a descriptor and some KiB for each."""

REFUSED_S: Final = 1.0
"""How long after a heartbeat that Redis has refused the next one is sent, at most."""

_RETRY_INTERVAL_S: Final = 0.1


class RegistrySync:
    """The worker's side of the registry. Calls `on_untold` when a session or lease has ended and Redis cannot be told.

    The owner sets `playwright_version` and `rss_mib`, which the worker's record has, once they are known.
    """

    def __init__(
        self,
        boot: WorkerArguments,
        registry: Registry,
        slots: Slots,
        on_untold: Callable[[], None] = lambda: None,
    ) -> None:
        self._boot = boot
        self._registry = registry
        self._slots = slots
        self._started_at = time.time()
        self._secret = os.urandom(12).hex()
        self.playwright_version = ""
        self.rss_mib: int | None = None
        self._writer = SessionRecordWriter(registry.write, self._on_kept)
        self._on_untold = on_untold
        self._is_due = asyncio.Event()
        self._is_refused = False
        """Whether the last heartbeat was missed."""
        self._is_known = False
        self._told_kept: set[str] = set()
        """Sessions that Redis may have as kept."""
        self._drain_at: float | None = None
        self._unlogged: list[tuple[str, dict[str, str]]] = []
        """Log lines that are not written yet: events with their fields."""
        self._log_timer: asyncio.TimerHandle | None = None
        registry.client.on_connect(self._is_due.set)

    async def open(self) -> None:
        """Waits for the connection if this grid has never reached its Redis. Raises RegistryUnavailable after
        REDIS_RETRY_ATTEMPTS × REDIS_RETRY_DELAY, or at once where waiting cannot help: the Redis refuses this grid, or
        is none. Otherwise does not wait: Redis may come back at any time."""
        boot, settings = self._boot, self._boot.settings
        if boot.registry_seen:
            return
        if settings.redis_url:  # not for the grid's own, which is good
            tried = await try_redis(boot.redis_url, timeout_s=settings.redis_timeout, prefix=settings.redis_key_prefix)
            if tried.fault is not None and tried.fault.is_lasting:
                raise RegistryUnavailable(f"no Redis at {shown(boot.redis_url)}: {tried.fault}", tried.fault)
        await self._registry.connected(settings.redis_retry_attempts, settings.redis_retry_delay)

    def take_over(self, sessions: Iterable[str]) -> None:
        """Called with the sessions of this worker's predecessor, which may have told Redis that they are kept."""
        self._told_kept |= {*sessions}

    async def register(self) -> None:
        """Writes the worker's record and counters. Raises RegistryUnavailable if this grid has never reached its Redis;
        otherwise a later heartbeat registers the worker."""
        self._is_known = True
        self._registry.subscribe_commands(self._boot.browser_type, self._boot.worker_id, self._is_due.set)
        try:
            await self._register()
        except RegistryUnavailable as error:
            if not self._boot.registry_seen:
                raise
            log.warning("registration_put_off", error=str(error))

    async def replacement(self) -> str | None:
        """Returns the id of the worker that serves in place of this one, which is used up; None if it is unknown."""
        with contextlib.suppress(RegistryUnavailable):
            return await self._registry.replacement(self._boot.browser_type, self._boot.worker_id)
        return None

    def drain_begins(self) -> None:
        """Puts the current time into the records of sessions that end from now on, as the drain's begin."""
        self._drain_at = self._registry.now()

    async def mark_draining(self) -> None:
        """Excludes this worker from all selections. If Redis is away, a later heartbeat does so."""
        try:
            await self._registry.mark_draining(self._boot.browser_type, self._boot.worker_id)
        except RegistryUnavailable as error:
            log.info("draining_not_marked", error=str(error))

    def mark_served(self, holder: Holder) -> None:
        """Sets the start to now: the browser server has the session's socket, or the lease is kept."""
        holder.started_at, holder.is_served = self._registry.now(), True

    def started(self, session: LiveSession) -> None:
        """Records and logs that the session runs."""
        fields = {
            "session": session.id,
            **_came_with(session),
            "client": session.client,
            **self.named(session.client_fields),
        }
        self._note(_update(session), "session_started", fields)

    def ended(self, closed: SessionClosed, session: LiveSession | None, on_record: Callable[[], None]) -> None:
        """Records and logs that the session is over, and calls `on_record` once Redis has that. If this worker dies
        before, its successor hears of the end again."""
        how, now = closed.end, self._registry.now()
        end = SessionEnd(how.status, how.reason, now, closed.bytes_in, closed.bytes_out, self._drain_at)
        session = session or LiveSession(closed.session_id, lease_id=closed.lease_id)
        fields = {"session": session.id, **_came_with(session), "status": how.status.value, "reason": str(how.reason)}
        self._note(_update(session, end), "session_ended", fields, on_record)

    def lease_started(self, lease: Lease) -> None:
        """Records that the lease was kept."""
        self._writer.note(_update(lease))
        log.info("lease_started", lease=lease.id, client=lease.client, **self.named(lease.client_fields))

    def lease_ended(self, lease: Lease, end: End) -> None:
        """Records that the lease is over."""
        self._writer.note(_update(lease, SessionEnd(end.status, end.reason, self._registry.now())))
        log.info("lease_ended", lease=lease.id, status=end.status.value, reason=str(end.reason))

    def named(self, told: Mapping[str, str]) -> dict[str, str]:
        """Returns the session's name as a field of a log line, or nothing if LOG_RUN_NAMES is off."""
        return {"name": told["name"]} if told.get("name") and self._boot.settings.log_run_names else {}

    def beat_soon(self) -> None:
        """Makes the next heartbeat due now: what it writes has changed."""
        self._is_due.set()

    async def due(self, interval_s: float) -> None:
        """Returns when a heartbeat is due: after `interval_s`, or at once when Redis comes back or has a command, or
        `beat_soon` was called; sooner where Redis has refused the last one."""
        is_refused = self._is_refused and self._registry.client.connected
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(interval_s, REFUSED_S) if is_refused else interval_s):
                await self._is_due.wait()
        self._is_due.clear()

    async def beat(self) -> HeartbeatReply:
        """Writes what was kept, then sends one heartbeat; registers again if Redis has lost the worker. Raises
        RegistryUnavailable, and makes the next one due soon: no event tells when a Redis that answers takes writes."""
        self._is_refused = True
        if not await self._writer.flush_so_far():
            assert self._writer.fault is not None
            raise self._writer.fault
        lifetime = None if self._boot.adopt_node_pid else self._slots.lifetime
        reply = await self._registry.heartbeat(self._record(), sessions=self._live(), lifetime=lifetime)
        if not reply.known:
            log.warning("registered_again", active=self._slots.taken, lifetime=self._slots.lifetime)
            await self._register()
        if reply.repaired:
            log.error("counter_repaired", by=reply.repaired)
        leases = [lease for lease in self._slots.held.values() if lease.is_served]
        kept = self._kept()
        self._told_kept |= kept.keys()  # also if this fails halfway
        await asyncio.gather(
            *(self._registry.describe(lease.kind, lease.id, lease.fields()) for lease in leases),
            *(self._registry.describe(HeldAs.SESSION, each, {KEPT_UNTIL: text}) for each, text in kept.items()),
        )
        self._told_kept = {each for each, text in kept.items() if text}
        self._is_refused = False
        return reply

    async def leave(self) -> None:
        """Writes what is kept, and removes the worker from Redis. If Redis is away, leaves both to a proxy."""
        if not self._is_known:
            return
        registry, boot = self._registry, self._boot
        try:
            async with asyncio.timeout(SETTLE_S):
                while not await self._writer.flush():
                    await registry.client.wait_connected()
                    # Connected, but Redis refuses for now: no event tells when it will serve.
                    await asyncio.sleep(_RETRY_INTERVAL_S)
                await registry.reap_worker(boot.browser_type, boot.worker_id, Reason(EndReason.WORKER_STOPPED))
        except (TimeoutError, RegistryUnavailable) as error:
            unwritten = self._writer.unwritten()
            log.warning("stopped_without_redis", reason=str(error) or "Redis is away", unwritten=len(unwritten))
            try:
                write_spool_file(boot.runtime, boot.browser_type, boot.worker_id, unwritten)
            except OSError as problem:
                log.error("session_updates_lost", sessions=len(unwritten), error=str(problem))

    async def close(self) -> None:
        """Writes the last log lines and ends the connection. Idempotent."""
        self._write_log()
        await self._registry.close()

    def _note(
        self, update: SessionUpdate, event: str, fields: dict[str, str], on_record: Callable[[], None] = lambda: None
    ) -> None:
        def recorded() -> None:
            on_record()
            self._write_log()  # now, since Redis' answer has woken this process anyway

        self._writer.note(update, recorded)
        self._unlogged.append((event, fields))
        if self._log_timer is None:
            self._log_timer = asyncio.get_running_loop().call_later(RECORD_DELAY_S, self._write_log)

    def _on_kept(self, update: SessionUpdate) -> None:
        if update.end is not None:
            self._on_untold()

    def _write_log(self) -> None:
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_timer = None
        unlogged, self._unlogged = self._unlogged, []
        for event, fields in unlogged:
            log.info(event, **fields)

    def _record(self) -> WorkerRecord:
        """Returns the worker's record as of now."""
        boot = self._boot
        return WorkerRecord(
            browser_type=boot.browser_type,
            worker_id=boot.worker_id,
            ws_endpoint=f"{boot.settings.base_url()}/playwright/{boot.browser_type}/{boot.worker_id}.{self._secret}",
            status=self._slots.status.value,
            started_at=self._started_at,
            slots=self._slots.slots,
            pool=boot.pool.name,
            labels=boot.pool.labels,
            playwright_version=self.playwright_version,
            grid=__version__,
            handoff=str(boot.directory / "handoff.sock"),
            pid=os.getpid(),
            rss_mib=self.rss_mib,
            launches=self._slots.launches,
            host=boot.settings.host_name(),
        )

    async def _register(self) -> None:
        was_due = self._is_due.is_set()
        self._is_due.clear()  # Redis gets all that a heartbeat writes; what comes from here on is for the next one
        try:
            await self._registry.register(self._record(), lifetime=self._slots.lifetime, sessions=self._live())
        except BaseException:
            if was_due:
                self._is_due.set()
            raise

    def _kept(self) -> dict[str, str]:
        """Until when each session is kept, as its record has it: "" for those that have clients again."""
        kept = {each.id: f"{each.kept.until:.3f}" for each in self._slots.kept() if each.kept is not None}
        return dict.fromkeys(self._told_kept & self._slots.live.keys(), "") | kept

    def _live(self) -> list[SessionUpdate]:
        # Leases first: the records of sessions that come with them copy fields from the leases' records.
        holders = (*self._slots.held.values(), *self._slots.live.values())
        return [_update(each) for each in holders if each.is_served]


def _came_with(session: LiveSession) -> dict[str, str]:
    """Returns the lease that a session came with as a field of a log line, or nothing."""
    return {"lease": session.lease_id} if session.lease_id else {}


def _update(holder: Holder, end: SessionEnd | None = None) -> SessionUpdate:
    lease_id = holder.lease_id if isinstance(holder, LiveSession) else ""
    return SessionUpdate(holder.id, holder.started_at, holder.client, end, holder.client_fields, holder.kind, lease_id)
