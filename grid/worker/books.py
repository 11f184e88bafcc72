"""What Redis knows of this worker, kept true to its slots. Writes what it is told; decides nothing about the worker."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from grid.boot import WorkerBoot
from grid.errors import RegistryUnavailable
from grid.registry.registry import HeartbeatReply, Lifetimes, Registry, WorkerRecord
from grid.worker.browser_server import SessionClosed
from grid.worker.sessions import Journal, Slots

log = structlog.get_logger()

SETTLE_S: Final = 8.0
"""How long a leaving worker waits for a Redis that is away. The master's patience is longer."""


class Books:
    """The worker's side of the registry. `record` gives the worker's hash as it is now."""

    def __init__(self, boot: WorkerBoot, slots: Slots, record: Callable[[], WorkerRecord]) -> None:
        self._boot = boot
        self._slots = slots
        self._record = record
        self._journal = Journal()
        self._opened: Registry | None = None

    async def open(self) -> None:
        """Connects. Raises RegistryUnavailable after REDIS_RETRY_ATTEMPTS × REDIS_RETRY_DELAY."""
        settings = self._boot.settings
        self._opened = await Registry.connect(
            self._boot.redis_url,
            prefix=settings.redis_key_prefix,
            timeout_s=settings.redis_timeout,
            attempts=settings.redis_retry_attempts,
            delay_s=settings.redis_retry_delay,
            lifetimes=Lifetimes.of(settings),
        )

    async def register(self, sessions: Collection[str] = ()) -> None:
        """Writes the worker's record, with true counters when there are live sessions already."""
        await self._registry.register(
            self._record(), active=len(sessions), lifetime=self._slots.lifetime, sessions=sessions
        )

    def draining(self) -> None:
        """No selection shall choose this worker any more."""
        registry, boot = self._registry, self._boot
        self._journal.write(lambda: registry.mark_draining(boot.browser_type, boot.worker_id))

    def started(self, session_id: str) -> None:
        """The browser server has the session's socket."""
        registry = self._registry
        self._journal.write(lambda: registry.start(session_id))

    def ended(self, closed: SessionClosed, on_record: Callable[[], None]) -> None:
        """The session is over: completed when its client ended it, else failed for the reason. `on_record` is called
        once Redis has it; a worker that dies before that leaves it to its successor."""
        registry = self._registry
        status = "completed" if closed.by == "client" else "failed"
        self._journal.write(
            lambda: registry.release(
                closed.session_id, status, closed.reason, bytes_in=closed.bytes_in, bytes_out=closed.bytes_out
            ),
            on_record,
        )
        log.info("session_ended", session=closed.session_id, status=status, reason=closed.reason)

    async def beat(self) -> HeartbeatReply | None:
        """One heartbeat, behind all that was written before it; registers again where Redis has forgotten the worker.

        None while Redis cannot take what was kept for it. Raises RegistryUnavailable.
        """
        await self._journal.settle()
        if not await self._journal.replay():
            return None
        record = self._record()
        reply = await self._registry.heartbeat(
            record.browser_type,
            record.worker_id,
            status=record.status,
            sessions=list(self._slots.live),
            lifetime=self._slots.lifetime,
            rss_mib=record.rss_mib,
        )
        if not reply.known:
            live = list(self._slots.live)
            log.warning("registered_again", active=len(live), lifetime=self._slots.lifetime)
            await self.register(live)
        if reply.repaired:
            log.error("counter_repaired", by=reply.repaired)
        return reply

    async def leave(self) -> None:
        """Writes what is not written yet, and takes leave. A Redis that is away is waited for, but not for long: what
        is left then the proxy and the reaper put right, as for a worker that died."""
        if self._opened is None:
            return
        registry, boot = self._opened, self._boot
        await self._journal.settle()
        try:
            async with asyncio.timeout(SETTLE_S):
                while not await self._journal.replay():
                    await registry.client.wait_connected()
                await registry.unregister(boot.browser_type, boot.worker_id, "worker stopped")
        except (TimeoutError, RegistryUnavailable) as error:
            log.warning("left_without_leave", error=str(error), unwritten=repr(self._journal))

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _registry(self) -> Registry:
        assert self._opened is not None, "open() comes first"
        return self._opened
