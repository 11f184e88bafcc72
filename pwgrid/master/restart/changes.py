"""Changes of a running grid: new code by executing itself, new settings by a reload. Forks only the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from pwgrid.common.errors import GridError
from pwgrid.common.types import BrowserType
from pwgrid.control.frames import Frame
from pwgrid.control.server import Deferred
from pwgrid.master.config import MasterConfig
from pwgrid.master.loop import Loop
from pwgrid.master.policy.plan import Limits
from pwgrid.master.policy.reload import Change, compare
from pwgrid.master.proxy.proxies import Proxies
from pwgrid.master.restart.child_file_writer import Ledger
from pwgrid.master.restart.reexec import Check
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.workers import Workers
from pwgrid.settings.model import CONCERNS

log = structlog.get_logger()

UPGRADE = "upgrade"
CONFIGURATION = "configuration"


class Changes:
    """What an operator may change while sessions live. `execute()` becomes the new code, or raises OSError."""

    def __init__(
        self,
        loop: Loop,
        config: MasterConfig,
        pools: dict[BrowserType, Pool],
        workers: Workers,
        proxies: Proxies,
        execute: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._config = config
        self._pools = pools
        self._workers = workers
        self._proxies = proxies
        self._execute = execute
        self._ledger = Ledger(config)
        self._check: Check | None = None
        self._answer = Deferred()

    def pids(self) -> set[int]:
        """The check's pid while it runs."""
        return {self._check.pid} if self._check else set()

    def tick(self, now: float) -> None:
        """End a check that takes too long."""
        if self._check is not None:
            self._check.tick(now)

    def deadline(self) -> float:
        """When `tick` has something to do, or infinity."""
        return self._check.deadline() if self._check else float("inf")

    def cancel(self) -> None:
        """The grid stops: nothing is changed any more."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
            self._answer.refuse("the grid is stopping")

    # New code

    def upgrade(self) -> Deferred:
        """Try the new code; once it has loaded, become it. Raises ValueError when it cannot be done now."""
        if self._check is not None or self._proxies.is_being_replaced:
            raise ValueError("an upgrade is under way already")
        if not self._config.check_argv:
            raise ValueError("this master does not know how it was started")
        self._read_again()  # the new code will read the configuration, too: what it cannot take is refused here
        answer = self._answer = Deferred()
        try:
            self._check = Check(self._loop, self._config.check_argv, self._config.runtime.directory, self._checked)
        except OSError as error:
            raise ValueError(f"cannot start the check of the new code: {error.strerror or error}") from None
        log.info("upgrade_checking")
        return answer

    def _checked(self, problem: str | None) -> None:
        self._check = None
        if problem is None:
            log.info("upgrade_executing")
            workers = sum(1 for record in self._workers.records.values() if record.is_live)
            self._answer.reply({"workers": workers, "from": self._config.version})
            try:
                self._execute()
            except OSError as error:
                log.error("upgrade_failed", reason=f"cannot execute: {error.strerror or error}")
        else:
            log.error("upgrade_refused", reason=problem)
            self._answer.refuse(f"the new code does not load, so the old one stays: {problem}")

    def renew(self) -> None:
        """After an upgrade: the proxy is replaced, then the workers, one after the other, replacement first."""
        old = [record for record in self._workers.records.values() if record.is_live]

        def recycle() -> None:
            for record in old:
                record.recycle = record.recycle or UPGRADE

        self._proxies.replace(UPGRADE, then=recycle)

    # New settings

    def reload(self) -> Frame:
        """Read the configuration again and do what it takes. Raises ValueError with all that is wrong with it."""
        change, accept = self._read_again()
        accept()
        for browser_type, workers in change.scale.items():
            self._pools[browser_type].scale(workers)
        recycled = self.recycle_outdated() if change.recycle else []
        if change.replace_proxy:
            self._proxies.replace(CONFIGURATION)
        log.info("reloaded", changed=change.changed, recycled=recycled, proxy=change.replace_proxy)
        return {
            "changed": list(change.changed),
            "scaled": dict(change.scale),
            "recycled": recycled,
            "proxy": change.replace_proxy,
        }

    def recycle_outdated(self) -> list[str]:
        """Have the workers recycled that run with other settings or other code than is wanted now; their ids."""
        found = []
        for record in self._workers.records.values():
            wanted = self._ledger.settings_of("worker", record.browser_type)
            if record.recycle == CONFIGURATION and record.settings == wanted:
                record.recycle = None  # changed back before its turn came
            elif record.is_live and record.settings != wanted:
                record.recycle = record.recycle or CONFIGURATION
                found.append(record.worker_id)
            elif record.is_live and record.version != self._config.version:
                record.recycle = record.recycle or UPGRADE
                found.append(record.worker_id)
        return found

    def _read_again(self) -> tuple[Change, Callable[[], None]]:
        config = self._config
        if config.reload is None:
            raise ValueError("this master does not know where its configuration came from")
        try:
            settings, accept_browsers = config.reload()
        except GridError as error:
            log.error("configuration_refused", reason=str(error))
            raise ValueError(str(error)) from None
        change = compare(CONCERNS, config.settings.plain(), settings.plain())
        if change.refused:
            sentence = (
                f"cannot change while the grid runs: {', '.join(change.refused)}; stop the grid and start it again"
            )
            log.error("configuration_refused", reason=sentence)
            raise ValueError(sentence)

        def accept() -> None:
            config.settings = settings
            accept_browsers()

        return change, accept


def limits_of(settings: Any, cpus: int | None, least: int) -> Limits:
    """What bounds the starts of all pools together."""
    return Limits(max_starting=max(least, cpus or least), max_surge=settings.max_surge)
