"""Which processes belong to a worker, and the end of those that outlive it; forks and waits for nothing of its own.

Playwright starts browsers in process groups of their own, and orphans come to the master (the subreaper): so a tree is
what was seen below the worker before, what is below that, and orphans whose environment names the worker's directory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CHUNK: Final = 8192


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `start` (clock ticks since boot) tells a reused pid apart."""

    pid: int
    parent: int
    start: int
    is_zombie: bool
    rss_pages: int = 0


Table = dict[int, Process]


def read_small(path: str) -> bytes:
    """The start of a small file of the kernel's: a quarter of what Path.read_bytes costs. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _CHUNK)
    finally:
        os.close(fd)


def process_table() -> Table:
    """All processes of the host."""
    table: Table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(int(name))) is not None:
            table[process.pid] = process
    return table


def own_children() -> set[int]:
    """The pids whose parent is this process, orphans that came to it among them."""
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_bytes().split()}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return {process.pid for process in process_table().values() if process.parent == me}


def reap_orphans(children: Iterable[int]) -> int:
    """Reap the ended processes that came to us; `children` are those that we forked, which have owners. How many."""
    reaped = 0
    for pid in own_children().difference(children):
        with suppress(ChildProcessError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] != 0
    return reaped


@dataclass(slots=True)
class Tree:
    """The processes below one worker. `known` maps pids to their start times; the worker itself is not among them.

    `worker_pid` is 0 once the worker is reaped: its pid may be somebody else's then.
    """

    worker_pid: int
    directory: Path
    known: dict[int, int] = field(default_factory=dict)
    anywhere: bool = False
    """Orphans of an adopted worker come to whoever was its master's subreaper, not to us."""

    def note(self, table: Table) -> None:
        """Learn what is below the worker now, and forget what has ended."""
        roots = {self.worker_pid, *self._alive(table), *self._orphans(table)}
        self.known = {pid: table[pid].start for pid in _below(roots, table) if pid != self.worker_pid}

    def kill(self, table: Table) -> int:
        """SIGKILL what is left of an ended worker's tree; how many processes that were (0: it is gone)."""
        self.note(table)
        running = [process for pid in self.known if not (process := table[pid]).is_zombie]
        for process in running:
            _kill(process)
        return len(running)

    def _alive(self, table: Table) -> Iterator[int]:
        return (pid for pid, start in self.known.items() if pid in table and table[pid].start == start)

    def _orphans(self, table: Table) -> Iterator[int]:
        me, mark = os.getpid(), os.fsencode(self.directory) + b"/"
        for process in table.values():
            is_near = process.parent == me or (self.anywhere and self.worker_pid == 0)
            if is_near and not process.is_zombie and process.pid not in self.known:
                with suppress(OSError):
                    if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                        yield process.pid


def _below(roots: set[int], table: Table) -> set[int]:
    """`roots`, as far as they exist, with all their descendants."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = [pid for pid in roots if pid in table]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    return found


def _read(pid: int) -> Process | None:
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0] in (b"Z", b"X"), int(fields[21]))


def _kill(process: Process) -> None:
    """Through a pidfd whose process is checked to be the one that was meant: pids are used again."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = _read(process.pid)
            if now is not None and now.start == process.start:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
