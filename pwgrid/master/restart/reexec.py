"""Lets the master execute itself anew, and keep its pid, children and sockets."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict, dataclass, fields
from typing import Final, NoReturn

import orjson

from pwgrid.master.signal_queue import HANDLED, SignalQueue

VARIABLE: Final = "PWGRID_KEPT_OPEN"


@dataclass(frozen=True, slots=True)
class KeptOpen:
    """What the master keeps while it executes itself anew. `listeners`, `lock`, `control`, `lifeline` and `ipc` (by
    worker id, until adopted) are descriptors; `pools` are the wanted workers of scaled pools. `is_nohup`: SIGHUP was
    ignored when the grid was started, which nobody can see any more once it is handled.

    Another version reads it: it may know fewer fields, or more, which have defaults therefore."""

    listeners: tuple[int, ...]
    lock: int
    control: int
    ipc: dict[str, int]
    lifeline: int | None
    pools: dict[str, int]
    port: int
    started_at: float
    is_nohup: bool = False

    def fds(self) -> list[int]:
        lifeline = [] if self.lifeline is None else [self.lifeline]
        return [*self.listeners, self.lock, self.control, *self.ipc.values(), *lifeline]


def execute(argv: list[str], kept: KeptOpen, signals: SignalQueue) -> NoReturn:
    """Become the new code, with the descriptors in `kept` open, and the signals that nobody has acted on yet pending.
    Raises OSError, with nothing changed."""
    memory = os.memfd_create("pwgrid-kept-open", 0)
    fds = [memory, *kept.fds()]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # the new code unblocks them once it has handlers
    try:
        os.write(memory, orjson.dumps(asdict(kept)))
        for signum in signals.read():
            os.kill(os.getpid(), signum)  # the queue ends with this code; what is blocked outlives it
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
    """What this process kept over its re-execution; None if it was started anew. Works only once."""
    written = os.environ.pop(VARIABLE, None)
    if written is None:
        return None
    with os.fdopen(int(written), "rb") as memory:
        memory.seek(0)
        content = orjson.loads(memory.read())
    known = {each.name: content[each.name] for each in fields(KeptOpen) if each.name in content}
    kept = KeptOpen(**{**known, "listeners": tuple(content["listeners"])})
    for fd in kept.fds():
        os.set_inheritable(fd, False)
    return kept
