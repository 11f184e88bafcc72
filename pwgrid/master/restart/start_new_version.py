"""Takes new code into a running grid: a child tries it, the master executes itself, then the proxy and the workers are
replaced, one after the other."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame
from pwgrid.control.server import Deferred
from pwgrid.master.child import Child, Exit
from pwgrid.master.config import MasterConfig
from pwgrid.master.fork import fork_command
from pwgrid.master.proxy.proxies import Proxies
from pwgrid.master.restart.reload import UPGRADE, Reload
from pwgrid.master.workers.all_workers import Workers

log = structlog.get_logger()

CHECK_S: Final = 30.0
_REASON_CHARACTERS: Final = 2000


class VersionChange:
    """Does one version change at a time. `execute()` becomes the new code, or raises OSError."""

    def __init__(
        self, loop: Loop, config: MasterConfig, workers: Workers, proxies: Proxies, execute: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._config = config
        self._workers = workers
        self._proxies = proxies
        self._execute = execute
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
        if not force and not change.changed and self._config.is_up_to_date(self._config.settings):
            log.info("upgrade_not_needed")
            return {"unchanged": True}
        self._output.unlink(missing_ok=True)
        try:
            # Path.cwd() would fail where the directory that the grid was started in has been removed.
            check = fork_command(self._loop, self._config.check_argv, Path(), self._output)
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
        old = [record for record in self._workers.records.values() if record.life.is_capacity]

        def recycle() -> None:
            for record in old:
                self._workers.mark(record, record.recycle or UPGRADE)

        self._proxies.replace(UPGRADE, then=recycle)

    def _checked(self, check: Child, ended: Exit) -> None:
        problem = self._problem(ended)
        with suppress(OSError):  # the next one removes it
            self._output.unlink(missing_ok=True)
        if self._check is not check:
            return
        self._check = None
        if problem is not None:
            log.error("version_change_refused", reason=problem)
            self._answer.refuse(f"the new code does not load, so the old one stays: {problem}")
            return
        log.info("upgrade_executing")
        workers = sum(record.life.is_capacity for record in self._workers.records.values())
        self._answer.reply({"workers": workers, "from": self._config.version})
        try:
            self._execute()
        except OSError as error:
            log.error("upgrade_failed", reason=f"cannot execute: {error.strerror or error}")

    def _problem(self, ended: Exit) -> str | None:
        if ended.was_killed:
            return f"it was not done after {CHECK_S:g} s"
        if ended.is_clean:
            return None
        try:
            said = self._output.read_text(errors="replace").strip()[-_REASON_CHARACTERS:]
        except OSError:
            said = ""
        return said or f"it ended with {ended}"
