"""Answers proxies that want the description of this worker's DevTools protocol: a file that the whole grid shares."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import BrowserMissing
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.installed.browsers import find_for_pool
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.runtime.directory import protocol_file
from pwgrid.worker.browser.launch import LaunchSpec
from pwgrid.worker.browser.protocol_description import describe

log = structlog.get_logger()

DESCRIBE: Final = "describe protocol"


class ProtocolDescriber:
    """Has the pool's browser describe its protocol, once for each version."""

    def __init__(self, boot: WorkerArguments) -> None:
        self._boot = boot
        self._lock = asyncio.Lock()

    async def written(self, version: str) -> dict[str, Any]:
        """Answers when the file of this version of the browser is there: `refused` is None then, else it says why there
        is none. Raises ValueError for what is no version."""
        boot, path = self._boot, protocol_file(self._boot.runtime, version)
        async with self._lock:
            if path.exists():
                return {"refused": None}
            try:
                spec = LaunchSpec(boot.settings, boot.pool, find_for_pool(boot.pool, boot.settings), boot.directory)
                description = await asyncio.to_thread(describe, spec)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_whole(path, description)
            except (BrowserLaunchError, BrowserMissing, OSError) as error:
                log.warning("protocol_not_described", error=str(error))
                return {"refused": str(error)[:500]}
        return {"refused": None}
