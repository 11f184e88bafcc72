"""One pool: how many workers it should have, its backoff, and why it is short of workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import psutil
import structlog

from pwgrid.common.launch_failure import without_places
from pwgrid.common.readiness import PoolFigures
from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.backoff import Backoff
from pwgrid.master.policy.event_counts import EventCounts
from pwgrid.master.policy.on_demand import Demand, answer
from pwgrid.master.policy.spare_workers import (
    STARTS,
    UNKNOWN_START_S,
    SessionRate,
    expected_rate,
    sessions_to_come,
    spares,
)
from pwgrid.master.policy.worker_limits import Footprint
from pwgrid.master.policy.worker_plan import PoolTarget
from pwgrid.master.policy.worker_state_machine import WorkerLife
from pwgrid.settings.pools import PoolSettings

log = structlog.get_logger()

GIVEN_UP_AFTER_DEATHS: Final = 3


class WorkerOfPool(Protocol):
    """What a pool reads, and counts, of each of its workers (worker.py)."""

    @property
    def pool(self) -> Pool: ...
    @property
    def life(self) -> WorkerLife: ...
    @property
    def memory(self) -> Footprint: ...
    @property
    def forked_at(self) -> float: ...
    @property
    def warm_since(self) -> float: ...
    @property
    def slots(self) -> int: ...
    @property
    def suspicion(self) -> str | None: ...
    @property
    def own_browsers(self) -> int: ...
    @property
    def lowered_browsers(self) -> frozenset[psutil.Process]: ...
    @property
    def kept(self) -> int: ...

    active: int
    lifetime: int
    launches: int
    counted_at: float


class Pool:
    """`workers` is how many are wanted now: the number in `settings`, or what it was scaled to since. `all_workers` are
    those of all pools. One that starts on demand has none in the beginning.

    `is_removed`: the configuration no longer has this pool; it ends with its last worker.
    """

    def __init__(self, settings: PoolSettings, now: float, all_workers: Mapping[str, WorkerOfPool]) -> None:
        self.name: Final = settings.name
        self.settings = settings
        self.workers = workers = 0 if settings.on_demand else settings.workers
        self.is_removed = False
        self.backoff = Backoff()
        self.host_guard: str | None = None
        """Why no worker may be started in any pool now, or None."""
        self.is_complete = workers == 0
        self.rate = SessionRate(now, expected_rate(workers, settings.slots, settings.lifetime))
        self.starts_s: deque[float] = deque(maxlen=STARTS)
        """How long its last browsers took from the fork of their worker until they were warm."""
        self.tally = EventCounts()
        self.tally.offers(settings.playwright)
        self.drain_timeouts = 0
        """How many drains ran out of time and cut sessions."""
        self.refusal: str | None = None
        """Why clients that want it cannot have it now, if it starts on demand."""
        self._used_at = now
        self._waits_since: float | None = None
        self._all_workers = all_workers

    @property
    def members(self) -> list[WorkerOfPool]:
        return [worker for worker in self._all_workers.values() if worker.pool is self]

    @property
    def cannot_start(self) -> bool:
        """Whether so many of its workers failed that the grid's start no longer waits for it. It still tries."""
        return self.backoff.deaths >= GIVEN_UP_AFTER_DEATHS

    @property
    def reason(self) -> str | None:
        """Why it has fewer workers than wanted; None when it has all, or nothing went wrong. Of one that starts on
        demand: why it does not start now."""
        if self.settings.on_demand:
            return self.refusal
        if self.is_complete:
            return None
        if self.backoff.reason is None:
            return self.host_guard
        deaths = self.backoff.deaths
        return self.backoff.reason + (f" ({deaths} early deaths in a row)" if deaths > 1 else "")

    @property
    def start_s(self) -> float:
        """How long the next browser may take to get warm."""
        return max(self.starts_s, default=UNKNOWN_START_S)

    def wanted(self, now: float) -> PoolTarget:
        lifetime = self.settings.lifetime
        sessions = sessions_to_come(self.rate.per_s(now), self.start_s, lifetime, self.settings.slots)
        enough = spares(sessions, lifetime, [worker.lifetime for worker in self.members if worker.life.is_capacity])
        return PoolTarget(self.workers, self.backoff.not_before, enough, self.rate.is_quiet(now))

    def follow(self, settings: PoolSettings) -> None:
        """Take over these settings. The wanted number of workers stays, unless the pool had been removed, or started on
        demand until now."""
        was_on_demand = self.settings.on_demand
        self.settings = settings
        self.tally.offers(settings.playwright)
        if self.is_removed or (was_on_demand and not settings.on_demand):
            self.is_removed = False
            self.scale(0 if settings.on_demand else settings.workers)

    def remove(self) -> None:
        """Want no workers any more."""
        if not self.is_removed:
            log.info("pool_removed", pool=self.name)
            self.is_removed, self.workers = True, 0
            self.settings = replace(self.settings, workers=0)

    def scale(self, workers: int) -> None:
        if workers != self.workers:
            log.info("pool_scaled", pool=self.name, before=self.workers, after=workers)
            self.workers = workers

    def keep_adopted(self) -> None:
        """Want the workers that it has, if it starts on demand: another master has started them for clients."""
        if self.settings.on_demand and not self.is_removed:
            self.scale(sum(worker.life.is_capacity for worker in self.members))

    def follow_demand(self, now: float, waiting: int, idle_s: float, room: int, hindrance: str | None) -> float:
        """Want as many workers as its clients need now. `waiting` are those in its line; the host has memory for `room`
        more workers; `hindrance` says why none can start. Returns when there may be more to do (monotonic seconds)."""
        count = Counter(worker.life.status for worker in self.members)
        if any(worker.counted_at > now for worker in self.members):  # it has not said yet whether it has sessions
            self._used_at = now
        found = answer(
            Demand(
                wanted=self.workers,
                available=count[WorkerStatus.AVAILABLE],
                starting=count[WorkerStatus.STARTING] + count[WorkerStatus.SPARE],
                most=0 if self.is_removed else self.settings.workers,
                slots=self.settings.slots,
                waiting=waiting,
                active=sum(worker.active for worker in self.members),
                used_at=max(self._used_at, self.rate.last_at),
                waits_since=self._waits_since,
                failure=self.backoff.reason,
                not_before=self.backoff.not_before,
                room=room,
                hindrance=hindrance,
            ),
            now,
            idle_s,
        )
        self._used_at, self._waits_since, self.refusal = found.used_at, found.waits_since, found.refusal
        self.scale(found.workers)
        return found.look_at

    def failed(self, worker: WorkerOfPool, now: float) -> None:
        """Count a worker that ended unplanned."""
        served_s = max(0.0, now - worker.warm_since)
        self.died(
            worker.life.reason or Reason(WorkerEnd.OTHER, "ended without a reason"),
            now,
            worker.forked_at,
            served_s,
            worker.lifetime + worker.launches,
        )

    def died(
        self, reason: Reason[WorkerEnd], now: float, started_at: float, served_s: float = 0.0, sessions: int = 0
    ) -> None:
        """Count an early death, or a start that failed before there was a process."""
        self.tally.died(reason)
        self.backoff = self.backoff.died(now, str(reason), started_at, served_s, sessions)
        deaths, retry_s = self.backoff.deaths, self.backoff.retry_s(now)
        log.warning("pool_backs_off", pool=self.name, deaths=deaths, retry_s=retry_s, reason=str(reason))

    def observe(self, now: float) -> None:
        """Update `is_complete`, and reset the backoff after a healthy run since the last death."""
        available = [worker for worker in self.members if worker.life.status is WorkerStatus.AVAILABLE]
        # The grid is complete without one that starts on demand, also while that starts.
        self.is_complete = self.settings.on_demand or len(available) >= self.workers
        if self.is_complete and not self.backoff.deaths:
            self.backoff = self.backoff.healthy()
        if self.backoff.deaths and any(self._is_proof(worker, now) for worker in available):
            log.info("pool_healthy", pool=self.name)
            self.backoff = self.backoff.healthy()

    def launched_after(self, seconds: float) -> None:
        """One of its workers was warm so long after its fork."""
        self.starts_s.append(seconds)
        self.tally.launch.observe(seconds)

    def count_sessions(self, worker: WorkerOfPool, lifetime: int, launches: int, now: float) -> None:
        """Take in how many sessions one of its workers reports to have had so far: those of its lifetime, and launches
        for others, which use no worker up and so call for no spare."""
        if worker.counted_at <= now:  # sessions under another master are not new
            if lifetime > worker.lifetime:
                self.rate.count(lifetime - worker.lifetime, worker.counted_at, now)
            if launches > worker.launches:
                self._used_at = now
                self.tally.launches += launches - worker.launches
        worker.lifetime, worker.launches, worker.counted_at = lifetime, launches, now

    def status_reply(self) -> dict[str, Any]:
        """What operators see of it."""
        return {
            "name": self.name,
            **self._common(),
            "suspect": self.figures().suspect,
            "slots": sum(worker.slots for worker in self.members if worker.life.status is WorkerStatus.AVAILABLE),
            "slotsOfWorker": self.settings.slots,
            "lifetimeOfWorker": self.settings.lifetime,
            "memoryLimitMib": self.settings.max_memory_mib,
            "memoryHardLimitMib": self.settings.max_memory_hard_mib,
            "reason": self.reason,
        }

    def figures(self) -> PoolFigures:
        """What readiness depends on."""
        available = [worker for worker in self.members if worker.life.status is WorkerStatus.AVAILABLE]
        suspect = sum(worker.suspicion is not None for worker in available)
        reason = self.reason and without_places(self.reason)
        return PoolFigures(self.workers, len(available), reason, suspect=suspect, is_on_demand=self.settings.on_demand)

    def roster_entry(self) -> dict[str, Any]:
        """What the proxy sees of it."""
        return {
            **self._common(),
            "reason": self.figures().reason,
            "suspect": self.figures().suspect,
            "slots": self.settings.slots,
            "lifetime": self.settings.lifetime,
            "headless": self.settings.headless,
            "args": list(self.settings.args),
            "channel": self.settings.channel,
        }

    def metrics(self) -> dict[str, Any]:
        """What the proxy's metrics show of it: the tally, and the memory and the browsers of its workers."""
        sizes = [size for worker in self.members if (size := worker.memory.memory_mib or worker.memory.rss_mib)]
        memory = {"memoryMib": sum(sizes), "largestMib": max(sizes, default=0)}
        now = {
            "earlyDeaths": self.backoff.deaths,
            "kept": sum(worker.kept for worker in self.members),
            "ownBrowsers": sum(worker.own_browsers for worker in self.members),
            "lowered": sum(_runs(each) for worker in self.members for each in worker.lowered_browsers),
        }
        return {"browserType": self.settings.browser_type, **memory, **now, **self.tally.as_data()}

    def _common(self) -> dict[str, Any]:
        count = Counter(worker.life.status for worker in self.members)
        return {
            "browserType": self.settings.browser_type,
            "labels": list(self.settings.labels),
            "isolation": self.settings.isolation.value,
            "playwright": self.settings.playwright,
            "onDemand": self.settings.on_demand,
            "like": self.settings.like,
            "wanted": self.workers,
            "available": count[WorkerStatus.AVAILABLE],
            "starting": count[WorkerStatus.STARTING],
            "spare": count[WorkerStatus.SPARE],
            "draining": count[WorkerStatus.DRAINING],
            "drainTimeouts": self.drain_timeouts,
            "removed": self.is_removed,
        }

    def _is_proof(self, worker: WorkerOfPool, now: float) -> bool:
        served_s = now - worker.warm_since
        started_since = worker.forked_at >= self.backoff.died_at
        return started_since and self.backoff.is_healthy(served_s, worker.lifetime + worker.launches)


def _runs(process: psutil.Process) -> bool:
    """Whether it runs; true where that cannot be found out."""
    try:
        return process.is_running()
    except OSError:  # no descriptor is free: psutil reads a file
        return True
