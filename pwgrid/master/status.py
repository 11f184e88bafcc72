"""What the master tells about itself: the status for operators, the roster for the proxy; changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from pwgrid.common.redis_url import shown
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.config import MasterConfig
from pwgrid.master.disk import disk_problem
from pwgrid.master.memory.meter import MemoryMeter
from pwgrid.master.proxy.proxies import Proxies
from pwgrid.master.redis import RedisChild
from pwgrid.master.workers.pool import Pool
from pwgrid.master.workers.workers import Workers


class Reporter:
    """Reads the other parts and puts their figures together."""

    def __init__(
        self,
        config: MasterConfig,
        pools: Iterable[Pool],
        workers: Workers,
        memory: MemoryMeter,
        started_at: float,
    ) -> None:
        self._config = config
        self._pools = list(pools)
        self._workers = workers
        self._memory = memory
        self._started_at = started_at

    def status(self, proxy: Proxies, redis: RedisChild, stopping: bool) -> dict[str, Any]:
        """The reply to `status`; it holds no secret."""
        config = self._config
        return {
            "endpoint": config.endpoint,
            "version": config.version,
            "master": {"pid": os.getpid(), "startedAt": self._started_at},
            "proxy": {"pid": proxy.pid, "beingReplaced": proxy.is_being_replaced},
            "redis": {
                "pid": redis.pid,
                "url": shown(config.redis_url),
                "prefix": config.settings.redis_key_prefix,
                **({"error": redis.problem} if redis.problem else {}),
            },
            "host": self._memory.status_reply(),
            "pools": [
                {
                    **pool.status_reply(self._workers.of(pool.browser_type)),
                    "drainTimeouts": self._workers.drains.timeouts[pool.browser_type],
                }
                for pool in self._pools
            ],
            "workers": [record.status_reply() for record in self._workers.records.values()],
            "drained": list(self._workers.drains.recent),
            "problems": [problem for problem in (disk_problem(config.runtime.directory),) if problem],
            "stopping": stopping,
        }

    def roster(self, stopping: bool) -> dict[str, Any]:
        """What the proxy chooses from."""
        return {
            "stopping": stopping,
            "hostGuard": self._memory.guard.reason,
            "pools": {pool.browser_type: self._pool(pool) for pool in self._pools},
            "workers": [
                {
                    "id": record.worker_id,
                    "browserType": record.browser_type,
                    "status": record.status.value,
                    "playwrightVersion": record.launched.get("playwrightVersion"),
                }
                for record in self._workers.records.values()
                if record.is_live or record.status is WorkerStatus.DRAINING
            ],
        }

    def _pool(self, pool: Pool) -> dict[str, Any]:
        records = self._workers.of(pool.browser_type)
        available = sum(1 for record in records if record.status is WorkerStatus.AVAILABLE)
        return {
            "wanted": pool.workers,
            "available": available,
            "reason": pool.reason,
            "drainTimeouts": self._workers.drains.timeouts[pool.browser_type],
        }
