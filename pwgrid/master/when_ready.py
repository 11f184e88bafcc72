"""Reports by callbacks how the start goes, and once that the grid is ready, or why it is not. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.workers.one_worker import ManagedWorker
from pwgrid.master.workers.pool import Pool

log = structlog.get_logger()


class StartReport:
    """`is_started`: the start is over, this master's or an earlier one's."""

    def __init__(self, config: MasterConfig, pools: Mapping[str, Pool], status: Callable[[], dict[str, Any]]) -> None:
        self.is_started = config.kept_open is not None or bool(config.leftovers.workers)
        self.is_ready = False
        """Whether `on_ready` was called."""
        self._config = config
        self._pools = pools
        self._status = status
        self._told = ""
        self._is_settled = False
        self._is_not_ready = False

    def tell(self, records: Iterable[ManagedWorker], *, listens: bool, ready: bool) -> None:
        """Call the callbacks that have news: those about readiness once every pool is complete, or known not to start.

        `listens` and `ready` come from the proxy, so that a caller who then asks the proxy gets the same answer.
        """
        if self.is_ready:
            return
        self._tell_progress(records)
        if listens and all(pool.is_complete or pool.cannot_start or pool.host_guard for pool in self._pools.values()):
            self.is_started = self._is_settled = True
        if not self._is_settled:
            return
        status = self._status()
        if ready and status["ready"]:
            self.is_ready = True
            self._call(self._config.on_ready, status)
        elif not status["ready"] and not self._is_not_ready:
            self._is_not_ready = True
            self._call(self._config.on_not_ready, status)

    def _tell_progress(self, records: Iterable[ManagedWorker]) -> None:
        statuses: dict[str, list[WorkerStatus]] = {name: [] for name in self._pools}
        for record in records:
            if record.life.is_capacity and record.pool in statuses:
                statuses[record.pool].append(record.life.status)
        wanted = launching = available = 0
        for name, pool in self._pools.items():
            wanted += pool.workers
            # A worker that is to be replaced is there until its replacement is: there are more than are wanted then.
            launching += min(pool.workers, len(statuses[name]))
            available += min(pool.workers, statuses[name].count(WorkerStatus.AVAILABLE))
        text = f"launching {launching} of {wanted} workers ({available} ready)"
        if launching and text != self._told:
            self._told = text
            self._call(self._config.on_progress, text)

    @staticmethod
    def _call(hook: Callable[..., None], *arguments: object) -> None:
        """Errors are only logged: the reader of this process's output may be gone, and the grid goes on."""
        try:
            hook(*arguments)
        except OSError as error:
            log.warning("start_report_failed", reason=str(error))
