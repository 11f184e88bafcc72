"""`pwgrid stop`: asks the master to stop, or the children of a master that is gone, and waits for their end."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pwgrid.cli.ask_grid import ask, without_master_text
from pwgrid.cli.grid_queries import processes_left
from pwgrid.cli.progress import Display
from pwgrid.common.errors import GridError
from pwgrid.common.wording import counted
from pwgrid.runtime.find_grids import GridWithoutMaster, RunningGrid
from pwgrid.runtime.process_identity import send, wait_ended

SECOND_SIGNAL_AFTER_S: Final = 0.5
"""A grid takes two signals at once for one."""

_MAY_START_AGAIN: Final = (
    "systemd runs this grid and may start it again: `systemctl stop` with the unit's name ends it for good"
)


@dataclass(frozen=True, slots=True)
class Stopping:
    """A grid that is stopping. `pids`: processes to wait for; `describe` gives the progress as one line; `notes`: lines
    for the user."""

    pids: Sequence[int]
    describe: Callable[[], str]
    notes: Sequence[str] = ()

    def wait(self, shown: Display) -> None:
        """Shows the progress until these processes have ended."""
        for left in processes_left(self.pids):
            if not left:
                break
            shown.show("stop", self.describe())
        shown.end("stop")


def stop(grid: RunningGrid, *, now: bool) -> Stopping:
    """Asks the master. Raises GridError."""
    answer = ask(grid, "stop", {"now": now})
    # For supervisord the exit code 0 is no reason to start the grid again.
    notes = [_MAY_START_AGAIN] if answer["manager"] == "systemd" else []
    return Stopping([grid.pid], lambda: _how_far(grid), notes)


def stop_without_master(grid: GridWithoutMaster, *, now: bool) -> Stopping:
    """Stops the children of a master that is gone, which else wait for a new one: the workers drain, the proxy ends
    last."""
    found = (child.process for child in grid.children if child.kind != "redis")  # each looks now: it may have ended
    asked = [process for process in found if process is not None]
    for process in asked:
        send(process, signal.SIGTERM)
    if now:
        until = time.monotonic() + SECOND_SIGNAL_AFTER_S  # one for all: they may be many
        for process in asked:
            wait_ended(process, until)
        for process in asked:
            send(process, signal.SIGTERM)
    return Stopping(
        [child.pid for child in grid.children], lambda: without_master_text(grid), [without_master_text(grid)]
    )


def _how_far(grid: RunningGrid) -> str:
    try:
        workers: list[dict[str, Any]] = ask(grid, "status")["workers"]
    except GridError:
        return "stopping: all sessions have ended"  # the master does not listen any more
    live = sum(worker["active"] or 0 for worker in workers)
    left_s = max((worker["drainLeftS"] or 0.0 for worker in workers if worker["active"]), default=0.0)
    sessions = counted(live, "live session")
    return f"stopping: {sessions}, {left_s:.0f} s left" if live else "stopping: all sessions have ended"
