"""The master executes itself anew: the new code is tried first, then pid, children and sockets are kept over exec."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

import orjson

from pwgrid.common.loop import Loop
from pwgrid.master.child import Exit
from pwgrid.master.fork import fork_command
from pwgrid.master.signals import HANDLED

CHECK_S: Final = 30.0
VARIABLE: Final = "PWGRID_KEPT_OPEN"
_OUTPUT: Final = "check.log"
_REASON_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class KeptOpen:
    """What this very process keeps open while it executes itself anew. Numbers are descriptors."""

    listeners: tuple[int, ...]
    lock: int
    control: int
    ipc: dict[str, int]
    lifeline: int | None
    pools: dict[str, int]
    port: int
    started_at: float

    def fds(self) -> list[int]:
        """All of them."""
        lifeline = [] if self.lifeline is None else [self.lifeline]
        return [*self.listeners, self.lock, self.control, *self.ipc.values(), *lifeline]


class Check:
    """Runs a command that loads the new code. `on_end(problem)` is called once: None means that it is good."""

    def __init__(self, loop: Loop, argv: Iterable[str], directory: Path, on_end: Callable[[str | None], None]) -> None:
        self._on_end = on_end
        self._output = directory / _OUTPUT
        self._output.unlink(missing_ok=True)
        self._child = fork_command(loop, list(argv), Path.cwd(), self._output)
        deadline = loop.now() + CHECK_S
        self._child.end_by(deadline, deadline)
        self._child.watch(self._ended)

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._child.pid

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        self._on_end = lambda _problem: None
        self._child.send(signal.SIGKILL)

    def _ended(self, ended: Exit) -> None:
        problem = None
        if ended.was_killed:
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


def execute(argv: list[str], kept: KeptOpen) -> NoReturn:
    """Become the new code, with the descriptors in `kept` open. Raises OSError, with nothing changed."""
    memory = os.memfd_create("pwgrid-kept-open", 0)
    os.write(memory, orjson.dumps(asdict(kept)))
    fds = [memory, *kept.fds()]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the new code unblocks them once it has handlers
    try:
        for fd in fds:
            os.set_inheritable(fd, True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(argv[0], argv, {**os.environ, VARIABLE: str(memory)})
    finally:  # only after a failure
        for fd in fds:
            os.set_inheritable(fd, False)
        os.close(memory)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kept_open() -> KeptOpen | None:
    """What the code before us has kept open; None for a master that was started. To be called once."""
    written = os.environ.pop(VARIABLE, None)
    if written is None:
        return None
    with os.fdopen(int(written), "rb") as memory:
        memory.seek(0)
        content = orjson.loads(memory.read())
    kept = KeptOpen(**{**content, "listeners": tuple(content["listeners"])})
    for fd in kept.fds():
        os.set_inheritable(fd, False)
    return kept
