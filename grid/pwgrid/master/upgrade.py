"""Takes new code into a running grid: a child tries it, the master executes itself anew with its pid, children and
sockets, then the proxy and the workers are replaced, one after the other."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final, NoReturn

import orjson
import structlog

from pwgrid import __version__
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.server import Deferred
from pwgrid.master.child import Child, Exit, fork_command, said
from pwgrid.master.config import MasterConfig
from pwgrid.master.leftovers import KeptOpen
from pwgrid.master.proxies import Proxies
from pwgrid.master.reload import UPGRADE, Reload
from pwgrid.master.signal_queue import HANDLED, SignalQueue
from pwgrid.master.workers.workers import Workers

log = structlog.get_logger()

VARIABLE: Final = "PWGRID_KEPT_OPEN"
CHECK_S: Final = 30.0
CHECK_ONLY: Final = "--check-only"
"""With it the command only loads its code and configuration."""
_REASON_CHARACTERS: Final = 2000


class VersionChange:
    """Does one version change at a time. `execute()` becomes the new code, or raises OSError. `when_possible` calls
    what it gets when that may be done."""

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        workers: Workers,
        proxies: Proxies,
        execute: Callable[[], None],
        when_possible: Callable[[Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._config = config
        self._workers = workers
        self._proxies = proxies
        self._execute = execute
        self._when_possible = when_possible
        self._output = config.runtime.directory / "check.log"
        self._check: Child | None = None
        self._answer = Deferred()

    def pids(self) -> set[int]:
        """The pid of the child that tries the new code; empty if there is none."""
        return {self._check.pid} if self._check else set()

    def start(self, reload: Reload, *, force: bool) -> Frame | Deferred:
        """Try the new code; if it loads, become it. Raises ValueError when that cannot be done now.

        Without `force` it does nothing when code, browsers and settings are those that run.
        """
        if self._check is not None:
            raise ValueError("an upgrade is under way already")
        if self._proxies.is_being_replaced:  # by an upgrade or a reload
            raise ValueError("the proxy is still being replaced; try again when the new one listens")
        change, *_ = reload.read()  # the new code reads the configuration, too, and could not refuse it any more
        if not force and not change.changed and self._config.parts.are_installed(self._config.settings):
            log.info("upgrade_not_needed")
            return {"unchanged": True}
        self._output.unlink(missing_ok=True)
        try:
            # Path.cwd() would fail where the directory that the grid was started in has been removed.
            check = fork_command(self._loop, [*self._config.argv, CHECK_ONLY], Path(), self._output)
        except OSError as error:
            raise ValueError(f"cannot start the check of the new code: {error.strerror or error}") from None
        deadline = self._loop.now() + CHECK_S
        check.end_by(deadline, deadline)
        check.watch(lambda ended: self._checked(check, ended))
        self._check, self._answer = check, Deferred()
        log.info("upgrade_checking")
        return self._answer

    def cancel(self, reason: str) -> None:
        """Give up a change under way; `reason` says to its operator why."""
        if self._check is not None:
            self._check.send(signal.SIGKILL)
            self._check = None
            self._answer.refuse(reason)

    def replace_children(self) -> None:
        """Called in the new code: replace the proxy, then recycle all workers of the old code."""
        old = [worker for worker in self._workers.by_id.values() if worker.life.is_capacity]

        def recycle() -> None:
            for worker in old:
                worker.mark(worker.recycle or UPGRADE)

        self._proxies.replace(UPGRADE, then=recycle)

    def _checked(self, check: Child, ended: Exit) -> None:
        problem = self._problem(ended)
        with suppress(OSError):  # the next one removes it
            self._output.unlink(missing_ok=True)
        if self._check is not check:
            return
        if problem is not None:
            self._check = None
            log.error("version_change_refused", reason=problem)
            self._answer.refuse(f"the new code does not load, so the old one stays: {problem}")
            return
        self._when_possible(lambda: self._become_new(check))

    def _become_new(self, check: Child) -> None:
        if self._check is not check:  # given up meanwhile
            return
        if self._proxies.one_comes:  # a reload, or a frozen proxy, has begun that since: it would be for nothing
            self._proxies.once_none_comes(lambda: self._when_possible(lambda: self._become_new(check)))
            return
        self._check = None
        log.info("upgrade_executing")
        workers = sum(worker.life.is_capacity for worker in self._workers.by_id.values())
        self._answer.reply({"workers": workers, "from": __version__})
        try:
            self._execute()
        except OSError as error:
            log.error("upgrade_failed", reason=f"cannot execute: {error.strerror or error}")

    def _problem(self, ended: Exit) -> str | None:
        if ended.was_killed:
            return f"it was not done after {CHECK_S:g} s"
        if ended.is_clean:
            return None
        return said(self._output)[-_REASON_CHARACTERS:] or f"it ended with {ended}"


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
