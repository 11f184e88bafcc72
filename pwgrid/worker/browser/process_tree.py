"""Finds and ends what belongs to one browser server, also what has left its tree. Reaps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil


class ProcessTree:
    """The processes of one browser server, remembered so that they can still be ended when their parents are gone.

    Browsers run in process groups of their own, are re-parented when Node dies, and some helpers detach themselves.
    So a process belongs here if it was ever seen below `pid`, or if its TMPDIR is the browser server's private one.
    """

    def __init__(self, pid: int, tmpdir: Path) -> None:
        self.pid = pid
        self._marker = b"\0TMPDIR=" + os.fsencode(tmpdir) + b"\0"
        self._known: dict[int, int] = {}  # pid -> pidfd, which names this process even when the pid is used again
        self._remember(pid)

    def __repr__(self) -> str:
        return f"<ProcessTree of {self.pid}: {sorted(self._known)}>"

    def refresh(self) -> None:
        """Remembers what is below the known processes now."""
        for root in list(self._known):
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(root).children(recursive=True):
                    self._remember(child.pid)

    def kill(self) -> bool:
        """SIGKILL to every process of the tree that still lives. True if some of them were not known before."""
        before = len(self._known)
        self.refresh()
        self._remember_marked()
        for pidfd in self._known.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return len(self._known) > before

    async def kill_and_wait(self) -> None:
        """Kills until none is left: a process may have forked another just before its end. Zombies count as ended."""
        self.kill()
        while True:
            for pidfd in list(self._known.values()):
                await readable(pidfd)
            if not self.kill():
                return

    def close(self) -> None:
        """Forgets everything."""
        for pidfd in self._known.values():
            os.close(pidfd)
        self._known.clear()

    def _remember(self, pid: int) -> None:
        if pid in self._known:
            return
        with contextlib.suppress(ProcessLookupError):
            self._known[pid] = os.pidfd_open(pid)

    def _remember_marked(self) -> None:
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            # Not ours, or ended while we looked.
            with contextlib.suppress(OSError):
                if self._marker in b"\0" + Path(entry.path, "environ").read_bytes():
                    self._remember(int(entry.name))


async def readable(fd: int) -> None:
    """Returns when `fd` is readable; for a pidfd: when the process has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, future)
    try:
        await future
    finally:
        loop.remove_reader(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
