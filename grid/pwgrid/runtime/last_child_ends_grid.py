"""Ends a grid whose master is gone: the last of its children ends the embedded Redis and removes all files.

Redis, which nobody supervises then, has to live as long as any other child, so that a new master finds it unchanged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import structlog

from pwgrid.runtime.browser_process_tree import kill_below
from pwgrid.runtime.child_files import read_states, remove_state
from pwgrid.runtime.directory import REDIS_S, locked_without_master
from pwgrid.runtime.process_identity import end, opened

log = structlog.get_logger()


async def workers_end(runtime: Path) -> None:
    """Returns when all workers that have a file in `runtime` now have ended."""
    workers = [state.process for state in read_states(runtime) if state.kind == "worker"]
    await asyncio.gather(*(_end_of(worker) for worker in workers if worker is not None))


async def _end_of(process: psutil.Process) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    with opened(process) as pidfd:
        if pidfd is None:
            return
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)


def end_grid_if_last(runtime: Path) -> None:
    """A child that ends because it has no master calls this. While a master or another child lives, it ends nothing.

    Each child removes its own file before it takes the lock, so the last one to take it sees that no other lives.
    """
    me = os.getpid()
    for state in read_states(runtime):
        if state.pid == me:
            remove_state(runtime, state.kind, state.name)
    with locked_without_master(runtime) as directory:
        if directory is None:
            return
        living = [(state.kind, process) for state in read_states(runtime) if (process := state.process) is not None]
        if any(kind != "redis" for kind, _ in living):
            directory.keep()
            return
        for _, redis in living:
            end(redis, time.monotonic() + REDIS_S, signal.SIGTERM)
        killed = kill_below([runtime / "w"])
        log.info("grid_ended_without_master", directory=str(runtime), killed=killed)
