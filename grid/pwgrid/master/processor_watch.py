"""Sees to it that a browser that takes more than its share of the processors does not slow the others, where the kernel
does not (docs/isolation.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psutil
import structlog

from pwgrid.common.cpu_pressure import short_of_cpu_s
from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import Isolation
from pwgrid.master.config import MasterConfig
from pwgrid.master.policy.processor_shares import BrowserUse, ProcessorShares
from pwgrid.master.processor_readings import (
    cpu_s,
    is_shared_by_sessions,
    may_restore_nice,
    nice_of,
    set_nice,
    usual_nice,
    waited_s,
)
from pwgrid.master.workers.worker import Worker
from pwgrid.master.workers.workers import Workers

log = structlog.get_logger()

LOOK_S: Final = 1.0
SHORT: Final = 0.1
"""Something waits for a processor during this part of the time: before that it is not worth a look at browsers."""
OTHERWISE_S: Final = 10.0
"""How often to look whether the kernel still shares processors by browsers: another service's settings can end that."""


@dataclass(frozen=True, slots=True)
class _Browser:
    worker: Worker
    main: psutil.Process
    processes: frozenset[psutil.Process]
    nice: int


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    used_s: dict[psutil.Process, tuple[float, float]]
    """How long each process has used processors, and has waited for one with its main thread."""


class ProcessorWatch:
    """Looks at the browsers of all workers while something waits for processors, and changes the nice values of their
    threads. It keeps none: the kernel has them, also for the next master."""

    def __init__(self, loop: Loop, config: MasterConfig, workers: Workers) -> None:
        self._loop = loop
        self._config = config
        self._workers = workers
        self._shares = ProcessorShares(usual_nice(), may_restore_nice())
        self._timer = loop.timer(self._look)
        self._timer.arm(loop.now() + LOOK_S)
        self._last: _Reading | None = None
        """None while nothing waits, and no browser has a lower priority."""
        self._short_s = short_of_cpu_s()
        self._looked_at = loop.now()
        self._is_any_lower = True
        """Whether a browser has a lower priority, or may have it from another master."""

    def _look(self) -> None:
        now = self._loop.now()
        is_needed = self._config.settings.processor_shares == "auto" and not is_shared_by_sessions()
        try:
            if is_needed:
                self._look_at_browsers(now, is_short=self._is_short(now))
            elif self._is_any_lower:
                self._restore_all()
        except OSError as error:  # no descriptor is free
            log.warning("processors_not_looked_at", reason=error.strerror or str(error))
        self._timer.arm(now + (LOOK_S if is_needed else OTHERWISE_S))

    def _is_short(self, now: float) -> bool:
        """Whether something has waited for a processor since the last look; true where the kernel does not tell."""
        was_s, since = self._short_s, now - self._looked_at
        self._short_s, self._looked_at = short_of_cpu_s(), now
        return was_s is None or self._short_s is None or self._short_s - was_s >= SHORT * since

    def _look_at_browsers(self, now: float, *, is_short: bool) -> None:
        if not is_short and not self._is_any_lower:
            self._last = None
            return
        browsers = self._browsers()
        last = self._last
        self._last = _Reading(
            now, {each: (cpu_s(each), waited_s(each)) for browser in browsers.values() for each in browser.processes}
        )
        if last is not None:
            uses = {pid: self._use(browser, pid, last, self._last) for pid, browser in browsers.items()}
            self._change(browsers, self._shares.observe(uses, is_short=is_short))

    def _restore_all(self) -> None:
        """Gives all browsers their own priority back, as far as that is allowed: somebody else divides the processors
        now, or nobody is to do so."""
        self._last, browsers = None, self._browsers()
        self._change(browsers, dict.fromkeys(browsers, self._shares.usual) if self._shares.may_restore else {})
        self._is_any_lower = False

    def _browsers(self) -> dict[int, _Browser]:
        """All browsers by their pids: what a browser server has started as a session of the kernel's."""
        table = self._workers.learn_trees()
        found = {}
        for worker in self._workers.by_id.values():
            for main in table.children.get(worker.launched.get("nodePid", 0), ()) if worker.life.has_process else ():
                nice = nice_of(main)
                if nice is not None:
                    found[main.pid] = _Browser(worker, main, frozenset(table.below([main])), nice)
        return found

    def _use(self, browser: _Browser, pid: int, last: _Reading, this: _Reading) -> BrowserUse:
        """What it did between two readings. One that is new has done all of it since then."""
        since = this.at - last.at
        used, waited = 0.0, 0.0
        for each in browser.processes:
            (cpu, waits), (had_cpu, had_waited) = this.used_s[each], last.used_s.get(each, (0.0, 0.0))
            used, waited = used + cpu - had_cpu, max(waited, waits - had_waited)
        worker = browser.worker
        is_shared = worker.pool.settings.isolation is Isolation.CONTEXT and worker.launched.get("browserPid") == pid
        return BrowserUse(max(0.0, used) / since, waited / since, browser.nice, is_shared)

    def _change(self, browsers: Mapping[int, _Browser], changed: Mapping[int, int]) -> None:
        usual, lowered = self._shares.usual, defaultdict[str, set[psutil.Process]](set)
        for pid, browser in browsers.items():
            nice = self._set(browser, changed.get(pid, browser.nice))
            if nice > usual:
                lowered[browser.worker.worker_id].add(browser.main)
            if (browser.nice == usual) != (nice == usual):
                name = "browser_priority_lowered" if nice > usual else "browser_priority_restored"
                log.info(name, worker=browser.worker.worker_id, pid=pid, nice=nice)
        self._is_any_lower = bool(lowered)
        for worker_id, worker in self._workers.by_id.items():
            worker.lowered_browsers = frozenset(lowered[worker_id])

    def _set(self, browser: _Browser, nice: int) -> int:
        """Gives a browser this nice value, and returns the one that it has then."""
        if nice == browser.nice == self._shares.usual:
            return nice
        try:
            set_nice(browser.processes, nice, browser.nice)  # again, for threads that came meanwhile
        except PermissionError:
            self._shares.may_restore = False
            return browser.nice
        return nice
