"""Tells the composer how the start goes: progress, problems, and once that the grid is ready; starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.workers import Workers

log = structlog.get_logger()


class StartReport:
    """Compares what there is with what was told before."""

    def __init__(
        self, config: MasterConfig, pools: Iterable[Pool], workers: Workers, status: Callable[[], dict[str, Any]]
    ) -> None:
        self._config = config
        self._pools = list(pools)
        self._workers = workers
        self._status = status
        self._told = ""
        self._problems: dict[str, str] = {}
        self._is_ready = False

    def tell(self, *, listens: bool, ready: bool) -> None:
        """Call what has news. Once every pool is complete, or known not to start, that is `on_ready`.

        `listens` and `ready` are the proxy's word. Who asks it right after ours shall hear the same from it.
        """
        for pool in self._pools:
            self._tell_problem(pool)
        if self._is_ready:
            return
        self._tell_progress()
        is_settled = listens and all(pool.is_complete or pool.cannot_start or pool.held for pool in self._pools)
        is_whole = all(pool.is_complete and not pool.held for pool in self._pools)
        proxy_will_be_ready = is_whole and any(pool.workers for pool in self._pools)
        if is_settled and (ready or not proxy_will_be_ready):
            self._is_ready = True
            self._call(self._config.on_ready, self._status())

    def _tell_problem(self, pool: Pool) -> None:
        if not pool.cannot_start:
            self._problems.pop(pool.browser_type, None)
        elif pool.backoff.reason and self._problems.get(pool.browser_type) != pool.backoff.reason:
            self._problems[pool.browser_type] = pool.backoff.reason
            self._call(self._config.on_problem, pool.browser_type, pool.backoff.reason)

    def _tell_progress(self) -> None:
        wanted = sum(pool.workers for pool in self._pools)
        live = [record for record in self._workers.records.values() if record.is_live]
        serving = sum(1 for record in live if record.status is WorkerStatus.AVAILABLE)
        text = f"launching {len(live)} of {wanted} workers ({serving} ready)"
        if live and text != self._told:
            self._told = text
            self._call(self._config.on_progress, text)

    @staticmethod
    def _call(hook: Callable[..., None], *arguments: object) -> None:
        """Whoever listened may have gone away; the grid does not."""
        try:
            hook(*arguments)
        except OSError as error:
            log.warning("start_not_told", reason=str(error))
