"""Finds and kills the processes of a browser server, also those that are no longer below it.

Playwright starts browsers in process groups of their own, and a process whose parent dies gets another parent. So these
processes belong to a browser server:

- those that were seen below it, or below its worker, before;
- those with its private directory as TMPDIR: Node and the browser inherit it, only the browser's children change it;
- those that are below any of these now.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from pwgrid.runtime.process_identity import KILL_S, is_alive, kill, wait_ended

RECHECKED_S: Final = 60.0
"""For so long a pid is taken for the same process, and a new process with that pid may be overlooked. But even where
pids end at 32768, a pid comes up again within this time only at 500 new processes a second."""


@dataclass(slots=True)
class Table:
    """The processes of the host at one time, by pid and by the pid of their parent."""

    processes: dict[int, psutil.Process] = field(default_factory=dict)
    children: dict[int, list[psutil.Process]] = field(default_factory=dict)
    _tmpdirs: dict[psutil.Process, str] = field(default_factory=dict)

    def below(self, roots: Iterable[psutil.Process]) -> set[psutil.Process]:
        """`roots` and all their descendants, without those whose pid now belongs to another process."""
        found: set[psutil.Process] = set()
        pending = list(roots)
        while pending:
            process = pending.pop()
            if process not in found and (process.is_running() or not psutil.pid_exists(process.pid)):
                found.add(process)
                pending.extend(self.children.get(process.pid, ()))
        return found

    def with_tmpdir_in(self, directories: Iterable[Path], among: Iterable[psutil.Process]) -> Iterator[psutil.Process]:
        """Our processes with a TMPDIR at or below one of `directories`. Each costs 60 µs when first looked at."""
        prefixes = tuple(f"{directory}/" for directory in directories)
        for process in among:
            if process not in self._tmpdirs:
                self._tmpdirs[process] = _tmpdir(process)
            if self._tmpdirs[process].startswith(prefixes):
                yield process


@dataclass(slots=True)
class _Remembered:
    parents: dict[psutil.Process, psutil.Process | None] = field(default_factory=dict)
    recheck_at: float = 0.0


_remembered = _Remembered()


def process_table() -> Table:
    """All processes of the host.

    psutil takes 100 µs to find a process and its parent: a fifth of a second on a host with 2,000. So the parent is
    asked for only when a process is new, or its parent has ended; and process_iter() keeps what it has found.
    """
    now = time.monotonic()
    if now >= _remembered.recheck_at:
        _remembered.recheck_at = now + RECHECKED_S
        for process in psutil.process_iter():
            process.is_running()  # if another process has the pid now, the next process_iter() drops this one,
        deque(psutil.process_iter(), 0)  # and the one after that has the new process
    listed = {process.pid: process for process in psutil.process_iter()}
    parents: dict[psutil.Process, psutil.Process | None] = {}
    children: dict[int, list[psutil.Process]] = defaultdict(list)
    for process in listed.values():
        parent = _remembered.parents.get(process)
        if parent is None or listed.get(parent.pid) is not parent:
            try:
                parent = listed.get(process.ppid())
            except psutil.Error:
                continue
        parents[process] = parent
        if parent is not None:
            children[parent.pid].append(process)
    _remembered.parents = parents
    return Table({process.pid: process for process in parents}, children)


@dataclass(slots=True)
class Tree:
    """The processes of one browser server. `known` are those that were seen last.

    All below `worker_pid` belongs to it, but not the worker itself; 0 when there is no worker, or another process may
    have its pid. Where this process is the subreaper, orphans become its children; with `anywhere` they may have
    another parent.
    """

    worker_pid: int
    directory: Path
    known: set[psutil.Process] = field(default_factory=set)
    anywhere: bool = False

    def note(self, table: Table) -> None:
        """Update `known`, with orphans only from among our own children."""
        self._see(table, table.children.get(os.getpid(), ()))

    def note_below(self, root: psutil.Process) -> None:
        """Add to `known` what is below `root` now. Unlike `note` it takes no table, which keeps a KiB of each process
        of the host: a worker looks once, when its browser is ready."""
        with suppress(psutil.NoSuchProcess):
            self.known.update(root.children(recursive=True))

    def has(self, pid: int, table: Table) -> bool:
        """Whether process `pid` belongs to it and lives."""
        self._see_all(table)
        return any(process.pid == pid and is_alive(process) for process in self.known)

    def kill(self, table: Table) -> int:
        """SIGKILL all of them; returns how many. To be repeated until that is 0: they may have forked."""
        self._see_all(table)
        killed = sum(map(kill, self.known))
        if self.known and not killed:  # all in the table have ended by themselves, and may have forked before
            self._see_all(process_table())
            killed = sum(map(kill, self.known))
        return killed

    def _see_all(self, table: Table) -> None:
        self._see(table, table.processes.values() if self.anywhere else table.children.get(os.getpid(), ()))

    def _see(self, table: Table, strays: Iterable[psutil.Process]) -> None:
        roots = [process for process in self.known if table.processes.get(process.pid) == process]
        roots += table.children.get(self.worker_pid, ())
        roots += table.with_tmpdir_in([self.directory], [process for process in strays if process not in self.known])
        self.known = table.below(roots)


def kill_below(directories: Collection[Path]) -> int:
    """SIGKILL all processes with a TMPDIR in one of `directories`, and all below them; returns how many."""
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + KILL_S
    while directories and time.monotonic() < deadline:
        table = process_table()
        others = (process for process in table.processes.values() if process.pid != os.getpid())
        found = set(table.with_tmpdir_in(directories, others))
        if not found:  # zombies have no environment any more
            break
        killed |= {process for process in table.below(found) if kill(process)}
        for process in killed:
            wait_ended(process, deadline)
    return len(killed)


def reap_orphans(children: Collection[int]) -> int:
    """Reap ended orphans that became our children; returns how many. `children` are pids that we forked, and spare."""
    reaped = 0
    for pid in _own_children() - set(children):
        with suppress(ChildProcessError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] != 0
    return reaped


def _own_children() -> set[int]:
    """psutil's children() looks at all processes of the host, 60 ms for 2,000: too much for each SIGCHLD."""
    me = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_bytes().split()}
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return {child.pid for child in psutil.Process().children()}


def _tmpdir(process: psutil.Process) -> str:
    """The process's TMPDIR with a slash at its end; empty if it has none, is another user's, or may not be read."""
    try:
        tmpdir = process.environ().get("TMPDIR", "")
        # Root can read everybody's environment, but another user's process is not ours because it names our directory.
        return f"{tmpdir}/" if tmpdir and process.uids().real == os.getuid() else ""
    except psutil.Error:
        return ""
