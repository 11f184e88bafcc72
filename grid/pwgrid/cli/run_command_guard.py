"""Ends the command of `pwgrid run` if `run` was killed: `python -m pwgrid.cli.run_command_guard FD MARK`.

FD is the read end of a pipe from `run`. When it closes without any data, `run` was killed; data means that there is
nothing to do. MARK is in the environment of the command, and so in that of all processes that it has started.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Final

import psutil

MARK_VARIABLE: Final = "PWGRID_RUN"
TERM_S: Final = 5.0
"""How long the processes have between SIGTERM and SIGKILL."""

KILL_S: Final = 30.0
"""How long SIGKILL is repeated; only a process that the kernel cannot interrupt lives longer."""


def guard(fd: int, mark: str) -> None:
    """Waits until the pipe closes, and ends the marked processes if nothing came through it."""
    with os.fdopen(fd) as told:
        if not told.read():
            end_marked(mark)


def end_marked(mark: str) -> None:
    """Sends SIGTERM to all marked processes, then SIGKILL until there are none: each may still start others."""
    found = _marked(mark)
    for each in found:
        _send(each.terminate)
    psutil.wait_procs(found, TERM_S)
    deadline = time.monotonic() + KILL_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        for each in found:
            _send(each.kill)
        psutil.wait_procs(found, max(0.0, deadline - time.monotonic()))


def _marked(mark: str) -> list[psutil.Process]:
    """Marked processes, and all their descendants, which may have another environment."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get(MARK_VARIABLE) == mark:
                found |= {process, *process.children(recursive=True)}
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _send(signal: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):
        signal()


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
