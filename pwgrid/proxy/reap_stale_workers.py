"""Removes workers whose heartbeat has stopped from Redis, now and then. Ends no worker."""

import asyncio
from typing import NoReturn

import structlog

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.registry.registry import Reaped, Registry

log = structlog.get_logger()


async def keep_reaping(registry: Registry, interval_s: float) -> NoReturn:
    """Of all proxies one reaps in each interval. What Redis does not take now, it takes in the next one."""
    while True:
        await asyncio.sleep(interval_s)
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
