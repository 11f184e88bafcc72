"""Removes workers whose heartbeat has stopped from Redis, now and then. Ends no worker."""

import asyncio
import time
from typing import Final, NoReturn

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.registry.records import Reaped
from pwgrid.registry.registry import Registry

log = structlog.get_logger()

JUMP_S: Final = 1.0
"""No clock is slewed by as much in an interval: it was set, or the host was suspended."""


async def keep_reaping(registry: Registry, interval_s: float) -> NoReturn:
    """Of all proxies one reaps in each interval. What Redis does not take now, it takes in the next one.

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
            report(reaped, "worker lost")


def report(reaped: Reaped, reason: str) -> None:
    """Logs each reaped worker with its sessions."""
    for worker, sessions in reaped.items():
        log.info("worker_reaped", worker=worker, sessions=list(sessions), reason=reason)
