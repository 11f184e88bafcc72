"""Reports by callbacks how the start goes, and once that the grid is ready, or why it is not. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.proxies import ProxyChild
from pwgrid.master.workers.all_workers import Workers
from pwgrid.master.workers.pool import Pool

log = structlog.get_logger()


class StartReport:
    """`is_started`: the start is over, this master's or an earlier one's."""

    def __init__(self, config: MasterConfig, pools: Mapping[str, Pool]) -> None:
        self.is_started = config.kept_open is not None or bool(config.leftovers.workers)
        self.is_ready = False
        """Whether `on_ready` was called, which tells the service manager."""
        self._config = config
        self._pools = pools
        self._told = ""
        self._is_settled = False
        self._is_not_ready = False

    def tell(self, workers: Workers, proxy: ProxyChild, status: Callable[[], dict[str, Any]]) -> None:
        """Call the callbacks that have news: those about readiness once every pool is complete, or known not to start.

        The proxy has to listen, and to be ready, so that a caller who then asks it gets the same answer.
        """
        if self.is_ready:
            return
        self._tell_progress(workers)
        pools = self._pools.values()
        if proxy.listening and all(pool.is_complete or pool.cannot_start or pool.host_guard for pool in pools):
            self.is_started = self._is_settled = True
        if not self._is_settled:
            return
        told = status()
        if proxy.ready and told["ready"]:
            self.is_ready = True
            self._call(self._config.on_ready, told)
        elif not told["ready"] and not self._is_not_ready:
            self._is_not_ready = True
            self._call(self._config.on_not_ready, told)

    def _tell_progress(self, workers: Workers) -> None:
        wanted = launching = available = 0
        for name, pool in self._pools.items():
            statuses = [record.life.status for record in workers.of(name) if record.life.is_capacity]
            wanted += pool.workers
            # A worker that is to be replaced is there until its replacement is: there are more than are wanted then.
            launching += min(pool.workers, len(statuses))
            available += min(pool.workers, statuses.count(WorkerStatus.AVAILABLE))
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
