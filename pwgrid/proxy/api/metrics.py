"""Writes the grid's figures in the text format of Prometheus. Reads only what it is given."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from pwgrid import __version__
from pwgrid.common.histogram import CANARY_BOUNDS_S, DRAIN_BOUNDS_S, LAUNCH_BOUNDS_S, Histogram
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.api import metric_families as families
from pwgrid.proxy.api.models import LEASE_STATUS
from pwgrid.proxy.connect.connect_metrics import ConnectFigures
from pwgrid.proxy.connect.slot_or_refusal import Counts
from pwgrid.proxy.roster import Roster
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MIB: Final = 1024 * 1024

_STATUSES: Final = ("starting", "spare", "available", "draining")
_LEASE_ENDS: Final = (SessionStatus.COMPLETED, SessionStatus.EXPIRED, SessionStatus.ENDED, SessionStatus.FAILED)
_STATES: Final = ("available", "busy", "spare", "draining")

Key = tuple[str, str]
"""Browser type and pool."""


@dataclass(frozen=True, slots=True, eq=False)  # prometheus_client keeps collectors as keys
class Scrape(Collector):
    """What one scrape shows. `found` is None while Redis does not answer. `waiting` counts clients by pool, `requests`
    the API's answers by route, method and status."""

    found: RegistrySnapshot | None
    roster: Roster
    counts: Counts
    figures: ConnectFigures
    waiting: Mapping[str, int]
    requests: Mapping[tuple[str, str, int], int]
    redis: Histogram
    is_ready: bool
    by_worker: bool = False

    def collect(self) -> Iterator[Metric]:
        """All families; prometheus_client calls this."""
        yield from _of_registry(self)
        yield from _of_master(self)
        yield from _of_proxy(self)


def exposition(scrape: Scrape) -> bytes:
    registry = CollectorRegistry()
    registry.register(scrape)
    ProcessCollector(namespace="pwgrid_proxy", registry=registry)
    return generate_latest(registry)


def _pool_of(worker: WorkerRecord) -> Key:
    return worker.browser_type, worker.pool or worker.browser_type


def _of_registry(scrape: Scrape) -> Iterator[Metric]:
    found = scrape.found
    yield families.REDIS_UP.of([((), found is not None)])
    if found is None:
        return
    active, lifetime = Counter[Key](), Counter[Key]()
    slots: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    for field, worker in found.workers.items():
        pool, live = _pool_of(worker), found.active.get(field, 0)
        active[pool] += live
        lifetime[pool] += found.lifetime.get(field, 0)
        slots[pool]["busy"] += live
        if worker.status in _STATES:
            slots[pool][worker.status] += max(0, worker.slots - live)
    yield families.ACTIVE.of(active.items())
    yield families.LIFETIME.of(lifetime.items())
    yield families.SLOTS.of(((*pool, state), count[state]) for pool, count in slots.items() for state in _STATES)
    yield families.SESSIONS.of((tuple(ends), count) for ends, count in found.ends.items())
    yield families.TAKEN_BACK.of(((status,), count) for status, count in found.taken_back.items())
    yield families.DURATION.of(found.lengths.items())
    yield families.LEASES.of(((LEASE_STATUS[status],), found.leases.get(status, 0)) for status in _LEASE_ENDS)
    yield families.LEASES_TAKEN_BACK.of(
        ((LEASE_STATUS[status],), found.leases_taken_back.get(status, 0)) for status in _LEASE_ENDS
    )
    yield families.REPAIRS.of([((), found.counter_repairs)])
    if scrape.by_worker:
        yield from _by_worker(found)


def _by_worker(found: RegistrySnapshot) -> Iterator[Metric]:
    workers = [((*_pool_of(worker), worker.worker_id), field, worker) for field, worker in found.workers.items()]
    yield families.WORKER_ACTIVE.of((key, found.active.get(field, 0)) for key, field, _ in workers)
    yield families.WORKER_LIFETIME.of((key, found.lifetime.get(field, 0)) for key, field, _ in workers)
    yield families.WORKER_SLOTS.of(
        (key, 0 if worker.status == WorkerStatus.SPARE else worker.slots) for key, _, worker in workers
    )
    yield families.WORKER_MEMORY.of(
        (key, worker.rss_mib * MIB) for key, _, worker in workers if worker.rss_mib is not None
    )


def _of_master(scrape: Scrape) -> Iterator[Metric]:
    roster = scrape.roster
    pools = {(pool.browser_type, name): pool for name, pool in roster.pools.items()}
    statuses = Counter((worker.browser_type, worker.pool, worker.status) for worker in roster.workers.values())
    yield families.WORKERS_WANTED.of((key, pool.wanted) for key, pool in pools.items())
    yield families.SLOTS_WANTED.of((key, pool.wanted * pool.slots) for key, pool in pools.items())
    yield families.DRAIN_TIMEOUTS.of((key, pool.drain_timeouts) for key, pool in pools.items())
    yield families.WORKERS.of(((*key, status), statuses[*key, status]) for key in pools for status in _STATUSES)
    if roster.metrics:
        yield from _of_tallies(roster.metrics)


def _of_tallies(told: Mapping[str, Any]) -> Iterator[Metric]:
    pools = {(pool["browserType"], name): pool for name, pool in told["pools"].items()}
    yield families.MASTER_START.of([((), told["startedAt"])])
    yield families.HOST_MEMORY.of([((), told["hostAvailableMib"] * MIB)])
    yield families.MEMORY.of((key, pool["memoryMib"] * MIB) for key, pool in pools.items())
    yield families.LARGEST.of((key, pool["largestMib"] * MIB) for key, pool in pools.items())
    yield families.STARTS.of((key, pool["starts"]) for key, pool in pools.items())
    yield families.EARLY_DEATHS.of((key, pool["earlyDeaths"]) for key, pool in pools.items())
    yield families.CANARY_FAILURES.of((key, pool["canaryFailures"]) for key, pool in pools.items())
    yield families.RECYCLES.of(
        ((*key, reason), count) for key, pool in pools.items() for reason, count in pool["recycles"].items()
    )
    yield families.DEATHS.of(
        ((*key, reason, signal), count) for key, pool in pools.items() for reason, signal, count in pool["deaths"]
    )
    for family, name, bounds in (
        (families.LAUNCH, "launch", LAUNCH_BOUNDS_S),
        (families.DRAIN, "drain", DRAIN_BOUNDS_S),
        (families.CANARY, "canary", CANARY_BOUNDS_S),
    ):
        yield family.of((key, Histogram.read(bounds, pool[name])) for key, pool in pools.items())


def _of_proxy(scrape: Scrape) -> Iterator[Metric]:
    figures, upgrades = scrape.figures, asdict(scrape.counts)
    yield families.BUILD.of([((__version__, platform.python_version()), 1)])
    yield families.READY.of([((), scrape.is_ready)])
    pools = scrape.roster.pools
    yield families.WAITING.of(((pools[name].browser_type, name), count) for name, count in scrape.waiting.items())
    for name, family in families.UPGRADES.items():
        yield family.of([((), upgrades[name])])
    yield families.CONNECT.of(
        ((*pool, phase), getattr(phases, phase))
        for pool, phases in figures.phases.items()
        for phase in ("queue", "selection", "handoff")
    )
    yield families.QUEUE_WAIT.of(((*pool, outcome), found) for (pool, outcome), found in figures.waits.items())
    yield families.REFUSALS.of(((str(status), reason), count) for (status, reason), count in figures.refused.items())
    yield families.HTTP.of(
        ((route, method, str(status)), count) for (route, method, status), count in scrape.requests.items()
    )
    yield families.REDIS_SECONDS.of([((), scrape.redis)])
