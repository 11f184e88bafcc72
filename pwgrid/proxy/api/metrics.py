"""Puts the grid's figures into the text format of Prometheus. Reads what it is given, asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from pwgrid.common.session_lifecycle import LIVE, SessionStatus
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.connect.upgrade import Counts
from pwgrid.proxy.roster import Roster
from pwgrid.registry.registry import RegistrySnapshot

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
MIB: Final = 1024 * 1024

_UPGRADES: Final = {
    "handed_off": "Clients that a worker has taken",
    "refused": "Clients that were answered with an HTTP error",
    "retried": "Handoffs that a worker did not take, so that another one was tried",
    "abandoned": "Clients that went while they waited",
    "options_ignored": "Clients that a worker has taken, with launch options that a shared browser cannot heed",
}
"""Of `Counts`: what this proxy has done since it started."""


def exposition(found: RegistrySnapshot, roster: Roster, counts: Counts, waiting: int, *, is_ready: bool) -> bytes:
    """One scrape. `waiting`: clients in the queue."""
    registry = CollectorRegistry()
    registry.register(_Figures([*_of_registry(found), *_of_roster(roster, is_ready), *_of_proxy(counts, waiting)]))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        """The figures of this scrape."""
        yield from self._metrics


def _of_registry(found: RegistrySnapshot) -> Iterator[Metric]:
    labels = ("browser_type", "worker")
    active = GaugeMetricFamily("pwgrid_active_sessions", "Live sessions", labels=labels)
    slots = GaugeMetricFamily("pwgrid_slots", "Sessions that the worker takes at once; a spare none", labels=labels)
    lifetime = GaugeMetricFamily("pwgrid_lifetime_sessions", "Sessions that the worker has had", labels=labels)
    memory = GaugeMetricFamily("pwgrid_worker_memory_bytes", "RSS of the worker and its browser", labels=labels)
    for field, worker in found.workers.items():
        key = (worker.browser_type, worker.worker_id)
        active.add_metric(key, found.active.get(field, 0))
        slots.add_metric(key, 0 if worker.status == WorkerStatus.SPARE else worker.slots)
        lifetime.add_metric(key, found.lifetime.get(field, 0))
        if worker.rss_mib is not None:
            memory.add_metric(key, worker.rss_mib * MIB)
    yield from (active, slots, lifetime, memory)
    sessions = CounterMetricFamily("pwgrid_sessions", "Sessions that have ended, by how", labels=("status",))
    for status in SessionStatus:
        if status not in LIVE:
            sessions.add_metric((status.value,), found.outcomes.get(status.value, 0))
    yield sessions
    taken_back = CounterMetricFamily(
        "pwgrid_sessions_taken_back", "Of these, ends that were only presumed, and wrong", labels=("status",)
    )
    for ended_as, count in found.taken_back.items():
        taken_back.add_metric((ended_as,), count)
    yield taken_back
    yield CounterMetricFamily(
        "pwgrid_counter_repairs", "Counters in Redis that a heartbeat had to correct", value=found.counter_repairs
    )


def _of_roster(roster: Roster, is_ready: bool) -> Iterator[Metric]:
    yield GaugeMetricFamily("pwgrid_ready", "1 if every pool can take a session", value=is_ready)
    wanted = GaugeMetricFamily("pwgrid_workers_wanted", "Workers that shall serve", labels=("browser_type",))
    drains = CounterMetricFamily("pwgrid_drain_timeouts", "Drains that cut sessions", labels=("browser_type",))
    workers = GaugeMetricFamily("pwgrid_workers", "Workers, by where they are", labels=("browser_type", "status"))
    for browser_type, pool in roster.pools.items():
        wanted.add_metric((browser_type,), pool.wanted)
        drains.add_metric((browser_type,), pool.drain_timeouts)
        statuses = [each.status for each in roster.workers.values() if each.browser_type == browser_type]
        for status in ("starting", "spare", "available", "draining"):
            workers.add_metric((browser_type, status), statuses.count(status))
    yield from (wanted, drains, workers)


def _of_proxy(counts: Counts, waiting: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("pwgrid_clients_waiting", "Clients in the queue", value=waiting)
    figures = asdict(counts)
    for name, meaning in _UPGRADES.items():
        yield CounterMetricFamily(f"pwgrid_upgrades_{name}", meaning, value=figures[name])
