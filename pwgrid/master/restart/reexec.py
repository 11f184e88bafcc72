"""The master executes itself anew: the new code is tried first, then pid, children and sockets are kept over exec."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final, NoReturn

import structlog

from pwgrid.master.child import Child
from pwgrid.master.fork import fork_command
from pwgrid.master.loop import Loop
from pwgrid.master.restart.leftovers import Handover
from pwgrid.master.signals import HANDLED

log = structlog.get_logger()

CHECK_S: Final = 30.0
VARIABLE: Final = "PWGRID_HANDOVER"
_OUTPUT: Final = "check.log"
_REASON_CHARACTERS: Final = 2000


class Check:
    """Runs a command that loads the new code. `on_end(problem)` is called once: None means that it is good."""

    def __init__(self, loop: Loop, argv: Iterable[str], directory: Path, on_end: Callable[[str | None], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._output = directory / _OUTPUT
        self._output.unlink(missing_ok=True)
        self._child: Child = fork_command("check", list(argv), Path.cwd(), self._output)
        self._deadline = loop.now() + CHECK_S
        self._child.end_by(self._deadline, self._deadline)
        loop.add(self._child.pidfd, self._ended)

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._child.pid

    def tick(self, now: float) -> None:
        """End it when it takes too long."""
        self._child.tick(now)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return self._child.deadline()

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        self._on_end = lambda _problem: None
        self._child.send(signal.SIGKILL)

    def _ended(self) -> None:
        ended = self._child.reap()
        if ended is None:
            return
        self._loop.remove(self._child.pidfd)
        self._child.close()
        problem = None
        if self._child.was_killed:
            problem = f"it was not done after {CHECK_S:g} s"
        elif not ended.is_clean:
            problem = self._said() or f"it ended with {ended}"
        self._output.unlink(missing_ok=True)
        self._on_end(problem)

    def _said(self) -> str:
        try:
            return self._output.read_text(errors="replace").strip()[-_REASON_CHARACTERS:]
        except OSError:
            return ""


def execute(argv: list[str], handover: Handover) -> NoReturn:
    """Become the new code, with the descriptors of `handover` kept. Raises OSError, with nothing changed."""
    memory = os.memfd_create("pwgrid-handover", 0)
    os.write(memory, json.dumps(asdict(handover)).encode())
    kept = [memory, *handover.listeners, handover.lock, handover.control, *handover.ipc.values()]
    kept += [handover.lifeline] if handover.lifeline is not None else []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the new code unblocks them once it has handlers
    try:
        for fd in kept:
            os.set_inheritable(fd, True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(argv[0], argv, {**os.environ, VARIABLE: str(memory)})
    finally:  # only after a failure
        for fd in kept:
            os.set_inheritable(fd, False)
        os.close(memory)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def received() -> Handover | None:
    """What the code before us has handed over; None for a master that was started. To be called once."""
    written = os.environ.pop(VARIABLE, None)
    if written is None:
        return None
    with os.fdopen(int(written), "rb") as memory:
        memory.seek(0)
        content = json.loads(memory.read())
    handover = Handover(**{**content, "listeners": tuple(content["listeners"])})
    for fd in (*handover.listeners, handover.lock, handover.control, *handover.ipc.values()):
        os.set_inheritable(fd, False)
    return handover
