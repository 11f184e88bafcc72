"""Measures the memory of the workers and the host in one pass, and says which workers take too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
import structlog

from pwgrid.common.worker_lifecycle import NOT_ENDED, WITH_BROWSER
from pwgrid.master.config import MasterConfig
from pwgrid.master.memory_readings import MIB, available_mib, cgroup_problem, memory_bytes, rss_bytes
from pwgrid.master.policy.memory_limits import (
    MEMORY_LIMIT,
    HostGuard,
    expires_at,
    over_hard,
    recycle_reason,
    renewed_after,
    room_for,
)
from pwgrid.master.workers.worker import ManagedWorker
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.browser_process_tree import Table
from pwgrid.settings.model import Settings

log = structlog.get_logger()


class MemoryMeter:
    """Keeps `record.memory` of every worker, and the host guard, up to date."""

    def __init__(self, config: MasterConfig, workers: Workers, available: Callable[[], int] = available_mib) -> None:
        self.host_available_mib = 0
        self.peak_mib = 0
        """The highest sum of all workers' memory in any sample, by the metric of the settings."""
        self.guard = HostGuard(config.settings.min_host_available_mib)
        self._config = config
        self._follow(config.settings)
        self._workers = workers
        self._available = available
        self._room = 0
        self._sampled_at = -math.inf
        self._seen: frozenset[str] = frozenset()
        self._is_blind = False
        """Whether the last look failed."""
        if (problem := cgroup_problem()) is not None:
            log.warning("cgroup_limits_unknown", reason=problem)

    def tick(self, now: float) -> float:
        """Sample when a sample is due; mark workers to recycle; kill workers over the hard limit.

        Returns when to call it again at the latest (monotonic seconds).
        """
        if self._config.settings is not self._settings:  # a reload
            self._follow(self._config.settings)
            self._sampled_at = -math.inf  # a new guard has to know at once what the old one knew
        is_sample = now >= self._sample_at()
        try:
            if now >= min(self._sample_at(), self._age_at()):
                self._look(now, is_sample=is_sample)
            elif not self._seen <= self._workers.records.keys():  # a worker that has gone may leave enough room
                self._look_at_host(record for record in self._workers.records.values() if record.life.has_process)
            self._is_blind = self._is_blind and not is_sample
        except OSError as error:  # no descriptor is free: what was measured last counts until the next sample
            if not self._is_blind:
                log.error("memory_not_measured", reason=error.strerror or str(error))
            self._is_blind = True
        return min(self._sample_at(), self._age_at())

    def _look(self, now: float, *, is_sample: bool) -> None:
        records = [record for record in self._workers.records.values() if record.life.has_process]
        if is_sample:
            self._sampled_at = now
            self._meter(records, self._workers.learn_trees())
            self._look_at_host(records)
        for record in records:
            settings = self._settings_of(record)
            if over_hard(settings, record.memory) and record.life.status in NOT_ENDED:
                limit_mib = settings.max_worker_memory_hard_mib
                log.error("memory_limit", worker=record.worker_id, **_figures(record), limit_mib=limit_mib)
                self._workers.kill(record, MEMORY_LIMIT)
            elif record.life.is_capacity and record.recycle is None:
                self._mark(record, now)

    def _follow(self, settings: Settings) -> None:
        self._settings = settings
        if self.guard.floor_mib != settings.min_host_available_mib:  # else it stays closed until it may open
            self.guard = HostGuard(settings.min_host_available_mib)
        self._settings_of_pools = {name: settings.of_pool(pool) for name, pool in settings.pools_wanted().items()}

    def _settings_of(self, record: ManagedWorker) -> Settings:
        """Those of its pool; the global ones where the configuration no longer has that pool."""
        return self._settings_of_pools.get(record.pool, self._settings)

    def room(self) -> int:
        """How many more workers fit into memory, less those that started since the last sample."""
        started = sum(record.forked_at > self._sampled_at for record in self._workers.records.values())
        return max(0, self._room - started)

    def status_reply(self) -> dict[str, Any]:
        return {
            "availableMib": self.host_available_mib,
            "minAvailableMib": self.guard.floor_mib,
            "guard": self.guard.reason,
            "peakMib": self.peak_mib,
            "memoryMetric": self._settings.memory_metric,
        }

    def _sample_at(self) -> float:
        return self._sampled_at + self._settings.memory_check_interval

    def _age_at(self) -> float:
        if not self._settings.max_worker_age:
            return math.inf
        ages = (
            expires_at(self._settings, record.forked_at)
            for record in self._workers.records.values()
            if record.life.is_capacity and record.recycle is None
        )
        return min(ages, default=math.inf)

    def _meter(self, records: list[ManagedWorker], table: Table) -> None:
        metric = self._settings.memory_metric
        samples = renewed_after(self._settings.memory_check_interval)
        renewed = {record.worker_id for record in records if record.memory.is_due(samples)}
        # Only a part of the unread workers is read at each sample, so that their later readings are spread, too.
        unread = sorted((record for record in records if record.memory.memory_mib is None), key=_oldest_first)
        renewed |= {record.worker_id for record in unread[: math.ceil(len(records) / samples)]}
        for record in records:
            processes = list(_processes(record, table))
            rss_mib = sum(map(rss_bytes, processes)) // MIB
            settings = self._settings_of(record)
            is_due = record.worker_id in renewed or record.memory.is_new_high(rss_mib)
            memory_mib = None
            if metric == "rss":
                memory_mib = rss_mib
            elif record.memory.needs_reading(settings, rss_mib) or is_due:
                memory_mib = sum(memory_bytes(process, metric) for process in processes) // MIB
            record.memory = record.memory.sampled(settings, rss_mib, memory_mib)
            record.tell(rssMib=rss_mib)
        self.peak_mib = max(self.peak_mib, sum(record.memory.memory_mib or 0 for record in records))

    def _mark(self, record: ManagedWorker, now: float) -> None:
        reason = recycle_reason(self._settings_of(record), record.forked_at, record.memory, now)
        if reason is not None:
            self._workers.mark(record, reason)
            log.info("worker_to_be_recycled", worker=record.worker_id, reason=reason, **_figures(record))

    def _look_at_host(self, records: Iterable[ManagedWorker]) -> None:
        self.host_available_mib = self._available()
        self._seen = frozenset(self._workers.records)
        sizes = [
            size
            for record in records
            if record.life.status in WITH_BROWSER and (size := record.memory.memory_mib or record.memory.rss_mib)
        ]  # one that was not measured yet would be of no size
        self._room = room_for(self.host_available_mib, self.guard.floor_mib, sizes)
        was = self.guard.reason
        reason = self.guard.observe(self.host_available_mib)
        if reason is not None and was is None:
            log.error("host_guard_closed", available_mib=self.host_available_mib, floor_mib=self.guard.floor_mib)
        elif reason is None and was is not None:
            log.info("host_guard_opened", available_mib=self.host_available_mib, floor_mib=self.guard.floor_mib)


def _processes(record: ManagedWorker, table: Table) -> Iterator[psutil.Process]:
    if record.child.pid in table.processes:
        yield table.processes[record.child.pid]
    yield from record.tree.known


def _oldest_first(record: ManagedWorker) -> int:
    return -record.memory.samples_since


def _figures(record: ManagedWorker) -> dict[str, Any]:
    return {"rss_mib": record.memory.rss_mib, "memory_mib": record.memory.memory_mib, "active": record.active}
