"""Ends the command of `pwgrid run` when that was killed: `python -m pwgrid.cli.command_guard FD`. Does nothing else.

FD is the end of a pipe. Its first line is the command's pid; a second line says that nothing is to be done. When the
pipe ends without that, `run` is gone, and the command and all its descendants are ended.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Final

import psutil

TERM_S: Final = 5.0
"""How long they have to end themselves."""


def guard(fd: int) -> None:
    """Returns when there is nothing to guard any more."""
    with os.fdopen(fd) as told:
        first = told.readline()
        if not first.strip().isdigit():
            return
        try:
            command = psutil.Process(int(first))
        except psutil.NoSuchProcess:
            return
        if not told.readline():
            end_tree(command)


def end_tree(root: psutil.Process) -> None:
    """SIGTERM to the process and its descendants, SIGKILL to those that do not heed it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [root, *root.children(recursive=True)]
        for each in tree:
            _send(each.terminate)
        for each in psutil.wait_procs(tree, TERM_S)[1]:
            _send(each.kill)


def _send(signal: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        signal()


if __name__ == "__main__":
    guard(int(sys.argv[1]))
