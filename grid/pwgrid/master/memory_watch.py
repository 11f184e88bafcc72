"""Measures the memory of the workers and the host in one pass, and says which workers take too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import psutil
import structlog

from pwgrid.common.types import Isolation
from pwgrid.common.worker_lifecycle import NOT_ENDED, WITH_BROWSER
from pwgrid.master.config import MasterConfig
from pwgrid.master.memory_readings import MIB, available_mib, cgroup_problem, memory_bytes, rss_bytes
from pwgrid.master.policy.end_for_memory import EndBrowser, Otherwise, ends_of_worker, oldest_kept
from pwgrid.master.policy.host_memory import HostGuard, room_for
from pwgrid.master.policy.worker_limits import MEMORY_LIMIT, expires_at, over_hard, recycle_reason, renewed_after
from pwgrid.master.workers.worker import Worker
from pwgrid.master.workers.workers import Workers
from pwgrid.runtime.browser_process_tree import Table
from pwgrid.settings.model import Settings

log = structlog.get_logger()

NO_ROOM: Final = (
    "the host has no memory for another worker: wait until others have ended, or have a smaller MIN_HOST_AVAILABLE_MIB"
)


class MemoryWatch:
    """Keeps `worker.memory` of every worker, and the host guard, up to date."""

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
                self._measure(now, is_sample=is_sample)
            elif not self._seen <= self._workers.by_id.keys():  # a worker that has gone may leave enough room
                self._look_at_host(worker for worker in self._workers.by_id.values() if worker.life.has_process)
            self._is_blind = self._is_blind and not is_sample
        except OSError as error:  # no descriptor is free: what was measured last counts until the next sample
            if not self._is_blind:
                log.error("memory_not_measured", reason=error.strerror or str(error))
            self._is_blind = True
        return min(self._sample_at(), self._age_at())

    def _measure(self, now: float, *, is_sample: bool) -> None:
        workers = [worker for worker in self._workers.by_id.values() if worker.life.has_process]
        table = Table()
        if is_sample:
            self._sampled_at = now
            table = self._workers.learn_trees()
            self._meter(workers, table)
            self._look_at_host(workers)
        for worker in workers:
            settings = self._settings_of(worker)
            is_over = over_hard(settings, worker.memory)
            worker.has_spent_kept &= is_over
            if is_over and is_sample and worker.life.status in NOT_ENDED:
                limit_mib = settings.max_worker_memory_hard_mib
                if self._is_spared(worker, table, now, f"more than {limit_mib} MiB"):
                    continue  # the next sample tells whether that was enough
                log.error("memory_limit", worker=worker.worker_id, **_figures(worker), limit_mib=limit_mib)
                worker.takes_too_much_memory(MEMORY_LIMIT)
            elif worker.life.is_capacity and worker.recycle is None:
                self._mark(worker, now)

    def _is_spared(self, worker: Worker, table: Table, now: float, reason: str) -> bool:
        """Have less of it end than all: its kept sessions, then a browser. Returns False if nothing is left to try."""
        if worker.end_all_kept(reason):
            return True
        if worker.link is None:
            return False
        sizes = self._sizes_of_browsers(worker.launched.get("nodePid", 0), table)
        ends = ends_of_worker(sizes, self._shared_browser(worker), worker.ended_browsers, now)
        if isinstance(ends, EndBrowser):
            worker.end_browser(ends.pid, now, reason)
        return ends is not Otherwise.END_WORKER

    def _shared_browser(self, worker: Worker) -> int | None:
        """The pid of the browser that sessions of this worker share, if it has one. What the worker has told of its
        sessions may be as old as a ping: so that says nothing of who has a browser alone."""
        isolation = self._settings_of(worker).isolation
        return None if isolation is Isolation.BROWSER else worker.launched.get("browserPid")

    def _sizes_of_browsers(self, node_pid: int, table: Table) -> dict[int, int]:
        """Returns the memory of each browser of a browser server, with all below it, by its pid."""
        metric = self._settings.memory_metric
        return {
            browser.pid: sum(
                rss_bytes(each) if metric == "rss" else memory_bytes(each, metric) for each in table.below([browser])
            )
            for browser in table.children.get(node_pid, ())
        }

    def _follow(self, settings: Settings) -> None:
        self._settings = settings
        if self.guard.floor_mib != settings.min_host_available_mib:  # else it stays closed until it may open
            self.guard = HostGuard(settings.min_host_available_mib)
        self._settings_of_pools = {name: settings.of_pool(pool) for name, pool in settings.pools_wanted().items()}

    def _settings_of(self, worker: Worker) -> Settings:
        """The settings of the worker's pool; the global ones where there is no such pool any more."""
        name = worker.pool.name
        if name not in self._settings_of_pools and worker.pool.settings.like:  # one that no configuration has
            self._settings_of_pools[name] = self._settings.of_pool(worker.pool.settings)
        return self._settings_of_pools.get(name, self._settings)

    def room(self) -> int:
        """How many more workers fit into memory, without those that started since the last sample."""
        started = sum(worker.forked_at > self._sampled_at for worker in self._workers.by_id.values())
        return max(0, self._room - started)

    def no_room(self) -> str | None:
        """Why not one more worker may start that the host can do without; None if it may."""
        if self.guard.reason is None and not self.room():
            return NO_ROOM
        return self.guard.reason

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
            expires_at(self._settings, worker.forked_at)
            for worker in self._workers.by_id.values()
            if worker.life.is_capacity and worker.recycle is None
        )
        return min(ages, default=math.inf)

    def _meter(self, workers: list[Worker], table: Table) -> None:
        metric = self._settings.memory_metric
        samples = renewed_after(self._settings.memory_check_interval)
        renewed = {worker.worker_id for worker in workers if worker.memory.is_due(samples)}
        # Only a part of the unread workers is read at each sample, so that their later readings are spread, too.
        unread = sorted((worker for worker in workers if worker.memory.memory_mib is None), key=_oldest_first)
        renewed |= {worker.worker_id for worker in unread[: math.ceil(len(workers) / samples)]}
        for worker in workers:
            processes = list(_processes(worker, table))
            rss_mib = sum(map(rss_bytes, processes)) // MIB
            settings = self._settings_of(worker)
            is_due = worker.worker_id in renewed or worker.memory.is_new_high(rss_mib)
            memory_mib = None
            if metric == "rss":
                memory_mib = rss_mib
            elif worker.memory.needs_reading(settings, rss_mib) or is_due:
                memory_mib = sum(memory_bytes(process, metric) for process in processes) // MIB
            worker.memory = worker.memory.sampled(settings, rss_mib, memory_mib)
            worker.tell(rssMib=rss_mib)
        self.peak_mib = max(self.peak_mib, sum(worker.memory.memory_mib or 0 for worker in workers))

    def _mark(self, worker: Worker, now: float) -> None:
        reason = recycle_reason(self._settings_of(worker), worker.forked_at, worker.memory, worker.launches, now)
        if reason is not None:
            worker.mark(reason)
            log.info("worker_to_be_recycled", worker=worker.worker_id, reason=str(reason), **_figures(worker))

    def _look_at_host(self, workers: Iterable[Worker]) -> None:
        self.host_available_mib = self._available()
        self._seen = frozenset(self._workers.by_id)
        sizes = [
            size
            for worker in workers
            if worker.life.status in WITH_BROWSER and (size := worker.memory.memory_mib or worker.memory.rss_mib)
        ]  # one that was not measured yet would be of no size
        self._room = room_for(self.host_available_mib, self.guard.floor_mib, sizes)
        was = self.guard.reason
        reason = self.guard.observe(self.host_available_mib)
        if reason is not None:
            self._end_oldest_kept()
        if reason is not None and was is None:
            log.error("host_guard_closed", available_mib=self.host_available_mib, floor_mib=self.guard.floor_mib)
        elif reason is None and was is not None:
            log.info("host_guard_opened", available_mib=self.host_available_mib, floor_mib=self.guard.floor_mib)

    def _end_oldest_kept(self) -> None:
        """Ends one session that nobody uses: the memory that it frees may be enough."""
        workers = self._workers.by_id
        since = {each: worker.oldest_kept.since for each, worker in workers.items() if worker.oldest_kept is not None}
        worker_id = oldest_kept(since)
        if worker_id is not None:
            workers[worker_id].end_oldest_kept("the host is short of memory")


def _processes(worker: Worker, table: Table) -> Iterator[psutil.Process]:
    if worker.child.pid in table.processes:
        yield table.processes[worker.child.pid]
    yield from worker.tree.known


def _oldest_first(worker: Worker) -> int:
    return -worker.memory.samples_since


def _figures(worker: Worker) -> dict[str, Any]:
    return {"rss_mib": worker.memory.rss_mib, "memory_mib": worker.memory.memory_mib, "active": worker.active}
