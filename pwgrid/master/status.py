"""Makes the master's reports: the status for operators, the roster for the proxy. Changes nothing."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil

from pwgrid.common import readiness
from pwgrid.common.redis_url import shown
from pwgrid.common.worker_lifecycle import NOT_ENDED
from pwgrid.master.config import MasterConfig
from pwgrid.master.embedded_redis_child import RedisChild
from pwgrid.master.memory_meter import MemoryMeter
from pwgrid.master.policy.validate_reports import SAID
from pwgrid.master.proxies import Proxies
from pwgrid.master.shutdown_order import Shutdown
from pwgrid.master.when_ready import StartReport
from pwgrid.master.workers.all_workers import Workers
from pwgrid.master.workers.pool import Pool

DISK_FLOOR_MIB: Final = 16
MOST_REASONS: Final = 100
MOST_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class Reporter:
    """Puts the figures of the other parts together. `started_at` in Unix seconds."""

    config: MasterConfig
    pools: dict[str, Pool]
    workers: Workers
    proxies: Proxies
    redis: RedisChild | None
    memory: MemoryMeter
    shutdown: Shutdown
    start: StartReport
    started_at: float

    def status(self) -> dict[str, Any]:
        """The reply to `pwgrid status`; it holds no secret."""
        config = self.config
        problem = _disk_problem(config.runtime.directory)
        pools = {name: pool.figures(self.workers.of(name)) for name, pool in self.pools.items()}
        is_started, is_stopping = self.start.is_started, self.shutdown.is_stopping
        not_ready = readiness.why_not_ready(
            pools, is_started=is_started, is_stopping=is_stopping, host_guard=self.memory.guard.reason
        )
        return {
            "ready": not_ready is None,
            "reason": not_ready,
            "endpoint": config.endpoint,
            "version": config.version,
            "master": {"pid": os.getpid(), "startedAt": self.started_at},
            "proxy": {"pid": self.proxies.current.pid, "beingReplaced": self.proxies.is_being_replaced},
            "redis": self._redis(),
            "host": self.memory.status_reply(),
            "pools": [pool.status_reply(self.workers.of(name)) for name, pool in self.pools.items()],
            "workers": [record.status_reply() for record in self.workers.records.values()],
            "runs": self._runs(),
            "drained": list(self.workers.drained),
            **self.proxies.waiting(),
            "problems": [problem] if problem else [],
            "stopping": is_stopping,
        }

    def roster(self) -> dict[str, Any]:
        """The state that the proxy gets: the pools and workers that it can choose from, readiness, metrics."""
        return {
            "stopping": self.shutdown.is_stopping,
            "started": self.start.is_started,
            "hostGuard": self.memory.guard.reason,
            "metrics": {
                "startedAt": self.started_at,
                "hostAvailableMib": self.memory.host_available_mib,
                "pools": {name: pool.metrics(self.workers.of(name)) for name, pool in self.pools.items()},
            },
            "pools": {name: pool.roster_entry(self.workers.of(name)) for name, pool in self.pools.items()},
            "workers": [
                {
                    "id": record.worker_id,
                    **({} if record.pool == record.browser_type else {"pool": record.pool}),  # a frame has its limit
                    "browserType": record.browser_type,
                    "status": record.life.status.value,
                    "playwrightVersion": record.launched.get("playwrightVersion"),
                }
                for record in self.workers.records.values()
                if record.life.status in NOT_ENDED
            ],
            "reasons": self._reasons(),
        }

    def _runs(self) -> list[dict[str, Any]]:
        """How many slots clients of each name, run and label key have, as far as clients gave any; the most first."""
        slots: Counter[tuple[str, ...]] = Counter()
        for record in self.workers.records.values():
            for run in record.runs:
                slots[tuple(run[what] for what in SAID)] += run["slots"]
        return [{**dict(zip(SAID, words, strict=True)), "slots": number} for words, number in slots.most_common()]

    def _reasons(self) -> dict[str, str]:
        """Why workers drain, or will, by worker id. Only the first MOST_REASONS, to stay within a frame's size."""
        records = self.workers.records.values()
        told = ((each.worker_id, each.life.reason or each.recycle) for each in records)
        return dict(
            islice(((worker_id, reason[:MOST_CHARACTERS]) for worker_id, reason in told if reason), MOST_REASONS)
        )

    def _redis(self) -> dict[str, Any]:
        config, redis = self.config, self.redis
        found = {
            "pid": redis.pid if redis else None,
            "url": shown(config.redis_url),
            "prefix": config.settings.redis_key_prefix,
        }
        return {**found, "error": redis.problem} if redis and redis.problem else found


def _disk_problem(directory: Path) -> str | None:
    """The sentence for operators when the file system of `directory` has no room; None when it has."""
    try:
        free_mib = psutil.disk_usage(str(directory)).free >> 20
    except OSError as error:
        return f"the runtime directory {directory} cannot be read: {error.strerror}"
    if free_mib >= DISK_FLOOR_MIB:
        return None
    return (
        f"only {free_mib} MiB are left for the runtime directory {directory}: live sessions go on, but browsers cannot "
        "write profiles and downloads, and new workers may not start; free some space"
    )
