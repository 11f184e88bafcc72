"""Removes workers from Redis whose end is known, with what they could not write, or whose heartbeat has stopped."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import structlog

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.types import BrowserType
from pwgrid.registry.records import Reaped
from pwgrid.registry.registry import LOST, Registry
from pwgrid.registry.session_writer import SessionRecordWriter
from pwgrid.registry.spool import SpoolFile, read_spool_files

log = structlog.get_logger()

STOPPED: Final = Reason(EndReason.WORKER_STOPPED)

LAST_S: Final = 4.0
"""How long a stopping proxy waits for a Redis that is away, if there is still something to write."""

RETRY_INTERVAL_S: Final = 5.0
"""When to try again what Redis refused, unless it connects again before."""

_LAST_INTERVAL_S: Final = 0.05

JUMP_S: Final = 1.0
"""No clock is slewed by as much in an interval: it was set, or the host was suspended."""


async def keep_reaping(registry: Registry, interval_s: float) -> NoReturn:
    """Reaps once in each interval, in one of all proxies. What Redis refuses in one interval is tried in the next.

    Nobody is reaped after an interval in which the wall clock has jumped ahead: each worker looks stale until its next
    heartbeat.
    """
    while True:
        before_s = registry.now() - time.monotonic()
        await asyncio.sleep(interval_s)
        jump_s = registry.now() - time.monotonic() - before_s
        if jump_s > JUMP_S:
            log.warning("reap_missed", error=f"the wall clock has jumped by {jump_s:.0f} s")
            continue
        try:
            reaped = await registry.reap(lock_s=interval_s / 2)
        except RegistryUnavailable as error:
            log.warning("reap_missed", error=str(error))
        else:
            report(reaped, LOST)


class DeadWorkers:
    """Workers whose end the master has reported, and the spool files in `runtime`. Calls `on_cleared` when Redis knows
    none of them any more."""

    def __init__(self, registry: Registry, runtime: Path, on_cleared: Callable[[], None]) -> None:
        self._registry = registry
        self._runtime = runtime
        self._on_cleared = on_cleared
        self._one_at_a_time = asyncio.Lock()
        self._is_refused = asyncio.Event()
        self.lost: dict[str, tuple[BrowserType, Reason[EndReason]]] = {}
        """Workers that Redis may still know, by id: browser type, and the reason for which their sessions end."""

    async def clear(self) -> None:
        """Writes the spool files, then removes the workers. If Redis or the disk refuses something of one worker, the
        others go on, and a later call tries that one again; if Redis is away, a later call tries all."""
        async with self._one_at_a_time:
            self._is_refused.clear()
            try:
                for spooled in read_spool_files(self._runtime):
                    try:
                        await self._write(spooled)
                    except (RegistryError, OSError) as error:  # the latter: the file cannot be removed
                        self._put_off(spooled.worker_id, error)
                for worker_id, (browser_type, reason) in list(self.lost.items()):
                    await self._reap(worker_id, browser_type, reason)
            except RegistryUnavailable as error:
                log.warning("dead_workers_not_cleared", workers=len(self.lost), error=str(error))
                self._is_refused.set()
                return
        if not self._is_refused.is_set():
            self._on_cleared()

    async def _reap(self, worker_id: str, browser_type: BrowserType, reason: Reason[EndReason]) -> None:
        try:
            report(await self._registry.reap_worker(browser_type, worker_id, reason), reason)
        except RegistryError as error:
            self._put_off(worker_id, error)
            return
        self.lost.pop(worker_id, None)

    def _put_off(self, worker_id: str, error: Exception) -> None:
        """Called for what is wrong with this worker alone, such as a key of another type."""
        log.error("dead_worker_not_cleared", worker=worker_id, error=str(error))
        self._is_refused.set()

    async def keep_trying(self) -> None:
        """Tries again after RETRY_INTERVAL_S whenever Redis has refused: while it stays connected, no event tells that
        it works again."""
        while True:
            await self._is_refused.wait()
            await asyncio.sleep(RETRY_INTERVAL_S)
            await self.clear()

    async def last_try(self) -> None:
        """Waits LAST_S for Redis: when the grid ends, no other proxy comes that could write the spool files."""
        try:
            async with asyncio.timeout(LAST_S):
                while any(read_spool_files(self._runtime)):
                    await self._registry.client.wait_connected()
                    await self.clear()
                    await asyncio.sleep(_LAST_INTERVAL_S)  # Redis may refuse for now; no event tells when it serves
        except TimeoutError:
            unwritten = sum(len(spooled.updates) for spooled in read_spool_files(self._runtime))
            log.error("session_updates_lost", sessions=unwritten)

    async def _write(self, spooled: SpoolFile) -> None:
        worker = (spooled.browser_type, spooled.worker_id)
        writer = SessionRecordWriter(lambda update: self._registry.write(update, worker))
        for update in spooled.updates:
            writer.keep(update)
        if not await writer.flush():
            raise RegistryUnavailable(f"Redis did not take all of what a worker left: {writer.fault}")
        report(await self._registry.reap_worker(*worker, STOPPED), STOPPED)
        spooled.remove()
        log.info("session_updates_written", worker=spooled.worker_id, sessions=len(spooled.updates))


def report(reaped: Reaped, reason: Reason[EndReason]) -> None:
    """Logs each reaped worker with its sessions and leases."""
    for worker, failed in reaped.items():
        ids = {"sessions": list(failed.sessions)} | ({"leases": list(failed.leases)} if failed.leases else {})
        log.info("worker_reaped", worker=worker, **ids, reason=str(reason))
