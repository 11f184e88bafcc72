"""Tells the composer how the start goes, and once that the grid is ready; starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.record import WorkerRecord

log = structlog.get_logger()


class StartReport:
    """Compares what there is with what was told before."""

    def __init__(self, config: MasterConfig, pools: Iterable[Pool], status: Callable[[], dict[str, Any]]) -> None:
        self._config = config
        self._pools = list(pools)
        self._status = status
        self._told = ""
        self._is_ready = False

    def tell(self, records: Iterable[WorkerRecord], *, listens: bool, ready: bool) -> None:
        """Call what has news. Once every pool is complete, or known not to start, that is `on_ready`.

        `listens` and `ready` are the proxy's word: who asks the proxy right after ours gets the same answer from it.
        """
        if self._is_ready:
            return
        self._tell_progress(records)
        is_settled = listens and all(pool.is_complete or pool.cannot_start or pool.host_guard for pool in self._pools)
        is_whole = all(pool.is_complete and not pool.host_guard for pool in self._pools)
        proxy_will_be_ready = is_whole and any(pool.workers for pool in self._pools)
        if is_settled and (ready or not proxy_will_be_ready):
            self._is_ready = True
            self._call(self._config.on_ready, self._status())

    def _tell_progress(self, records: Iterable[WorkerRecord]) -> None:
        wanted = sum(pool.workers for pool in self._pools)
        capacity = [record.life.status for record in records if record.life.is_capacity]
        text = f"launching {len(capacity)} of {wanted} workers ({capacity.count(WorkerStatus.AVAILABLE)} ready)"
        if capacity and text != self._told:
            self._told = text
            self._call(self._config.on_progress, text)

    @staticmethod
    def _call(hook: Callable[..., None], *arguments: object) -> None:
        """Whoever listened may have gone away; the grid does not."""
        try:
            hook(*arguments)
        except OSError as error:
            log.warning("start_not_told", reason=str(error))
