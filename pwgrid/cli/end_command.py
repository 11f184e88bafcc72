"""Ends the command of `pwgrid run` when that was killed: `python -m pwgrid.cli.end_command FD MARK`.

FD is the end of a pipe: whatever comes through it says that nothing is to be done. When it ends without that, `run` is
gone. MARK is in the environment of the command, and so in that of all processes that it has started.
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
"""How long they have to end themselves."""

KILL_S: Final = 30.0
"""Longer only for what the kernel cannot interrupt."""


def guard(fd: int, mark: str) -> None:
    """Returns when there is nothing to guard any more."""
    with os.fdopen(fd) as told:
        if not told.read():
            end_marked(mark)


def end_marked(mark: str) -> None:
    """SIGTERM to all marked processes, then SIGKILL until there are none: those that are left may start others."""
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
    """With their descendants, which may have been given another environment."""
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
