"""The end of a grid without a master: the last child to go ends the embedded Redis and clears up. Serves nothing.

Nobody is Redis' parent any more, and it must outlive the master's death, so that a new one finds it as it was.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from pwgrid.common.log import get_logger
from pwgrid.runtime.child_files import read_states
from pwgrid.runtime.directory import abandoned
from pwgrid.runtime.leftover_processes import end, kill_below

log = get_logger()

REDIS_S: Final = 5.0


def last_out(runtime: Path) -> None:
    """Called by a child that ends because it has no master: does nothing while there is one, or another child.

    Each strikes itself out before it takes the lock, so whoever has the lock last sees that nobody is left.
    """
    me = os.getpid()
    for state in read_states(runtime):
        if state.pid == me:
            state.remove(runtime)
    with abandoned(runtime) as directory:
        if directory is None:
            return
        states = list(read_states(runtime))
        if any(state.is_alive() for state in states if state.kind != "redis"):
            directory.keep()
            return
        for redis in (state for state in states if state.kind == "redis"):
            end(redis.pid, redis.start_time, time.monotonic() + REDIS_S, signal.SIGTERM)
        killed = kill_below([runtime / "w"])
        log.info("grid_ended_without_master", directory=str(runtime), killed=killed)
