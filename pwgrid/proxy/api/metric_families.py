"""Every metric: name, kind, labels, meaning and source. tools/metrics_page.py makes docs/metrics.md from these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pwgrid.common.histogram import Histogram


class Source(StrEnum):
    """The process that holds a figure. A counter begins at 0 when that process starts."""

    REDIS = "Redis"
    MASTER = "master"
    PROXY = "proxy"


Labels = Sequence[str]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Whatever is made is in `ALL`."""

    kind: ClassVar[str]
    name: str
    """Without the `_total` of a counter."""
    source: Source
    meaning: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ALL.append(self)

    @property
    def shown(self) -> str:
        """The name in queries."""
        return self.name


class _Single(Family):
    makes: type[GaugeMetricFamily | CounterMetricFamily]

    def of(self, samples: Iterable[tuple[Labels, float]]) -> Metric:
        metric = self.makes(self.name, self.meaning, labels=self.labels)
        for labels, value in samples:
            metric.add_metric(labels, value)
        return metric


class Gauge(_Single):
    """A figure that rises and falls."""

    kind = "gauge"
    makes = GaugeMetricFamily


class Counter(_Single):
    """A figure that only rises."""

    kind = "counter"
    makes = CounterMetricFamily

    @property
    def shown(self) -> str:
        return f"{self.name}_total"


class Buckets(Family):
    """A histogram: figures counted by upper bounds."""

    kind = "histogram"

    def of(self, samples: Iterable[tuple[Labels, Histogram]]) -> Metric:
        metric = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, found in samples:
            bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
            metric.add_metric(labels, list(zip(bounds, accumulate(found.counts), strict=True)), found.total)
        return metric


ALL: Final[list[Family]] = []
"""In the order of docs/metrics.md, which is that of this file."""

_R, _M, _P = Source.REDIS, Source.MASTER, Source.PROXY
POOL: Final = ("browser_type", "pool")
WORKER: Final = (*POOL, "worker")

READY: Final = Gauge("pwgrid_ready", _P, "1 if every pool can take a session")
SLOTS_WANTED: Final = Gauge("pwgrid_slots_wanted", _M, "Slots when all wanted workers serve", POOL)
SLOTS: Final = Gauge(
    "pwgrid_slots",
    _R,
    "Slots of the present workers: busy (a session has it), available (a client can have it now), spare (of a spare "
    "worker), draining (free, but its worker drains)",
    (*POOL, "state"),
)
ACTIVE: Final = Gauge("pwgrid_active_sessions", _R, "Live sessions", POOL)
LIFETIME: Final = Gauge("pwgrid_lifetime_sessions", _R, "Sessions that the present workers have had", POOL)
WAITING: Final = Gauge("pwgrid_clients_waiting", _P, "Clients in the queue", POOL)

SESSIONS: Final = Counter(
    "pwgrid_sessions",
    _R,
    "Sessions that have ended, by status and reason (docs/lifecycle.md has both)",
    (*POOL, "status", "reason"),
)
TAKEN_BACK: Final = Counter("pwgrid_sessions_taken_back", _R, "Of these, ends that were presumed wrongly", ("status",))
DURATION: Final = Buckets(
    "pwgrid_session_duration_seconds", _R, "Length of the sessions whose worker reported their end", POOL
)
LEASES: Final = Counter(
    "pwgrid_leases", _R, "Leases that have ended, by status: returned, expired, ended or failed", ("status",)
)
LEASES_TAKEN_BACK: Final = Counter(
    "pwgrid_leases_taken_back", _R, "Of these, ends that were presumed wrongly", ("status",)
)
REPAIRS: Final = Counter("pwgrid_counter_repairs", _R, "Counters in Redis that a heartbeat had to correct")

WORKERS_WANTED: Final = Gauge("pwgrid_workers_wanted", _M, "Workers that are wanted", POOL)
WORKERS: Final = Gauge("pwgrid_workers", _M, "Workers by status", (*POOL, "status"))
STARTS: Final = Counter("pwgrid_worker_starts", _M, "Workers that were started", POOL)
LAUNCH: Final = Buckets("pwgrid_worker_launch_seconds", _M, "From a worker's fork until its browser is warm", POOL)
RECYCLES: Final = Counter("pwgrid_worker_recycles", _M, "Workers that were replaced as planned", (*POOL, "reason"))
DEATHS: Final = Counter(
    "pwgrid_worker_deaths",
    _M,
    "Workers that ended without being asked to; signal is none where no signal ended a process",
    (*POOL, "reason", "signal"),
)
EARLY_DEATHS: Final = Gauge(
    "pwgrid_worker_early_deaths",
    _M,
    "Early deaths of workers without a healthy worker in between: the more, the longer the next start waits",
    POOL,
)
DRAIN: Final = Buckets("pwgrid_worker_drain_seconds", _M, "How long the sessions of a drain went on", POOL)
DRAIN_TIMEOUTS: Final = Counter("pwgrid_drain_timeouts", _M, "Drains that cut sessions", POOL)
CANARY: Final = Buckets("pwgrid_canary_first_page_seconds", _M, "An idle browser's time to its first page", POOL)
CANARY_FAILURES: Final = Counter("pwgrid_canary_failures", _M, "Tries of an idle browser that failed", POOL)

MEMORY: Final = Gauge("pwgrid_pool_memory_bytes", _M, "Memory of all workers with their browsers (MEMORY_METRIC)", POOL)
LARGEST: Final = Gauge("pwgrid_largest_worker_memory_bytes", _M, "Memory of the largest worker with its browser", POOL)
HOST_MEMORY: Final = Gauge("pwgrid_host_memory_available_bytes", _M, "Memory that host and cgroup still have")

UPGRADES: Final = {
    "handed_off": Counter(
        "pwgrid_upgrades_handed_off", _P, "Clients that a worker has taken, or may have taken when it died"
    ),
    "refused": Counter("pwgrid_upgrades_refused", _P, "Clients that were answered with an HTTP error"),
    "retried": Counter(
        "pwgrid_upgrades_retried", _P, "Handoffs that a worker did not take, so that another one was tried"
    ),
    "abandoned": Counter("pwgrid_upgrades_abandoned", _P, "Clients that left while they waited"),
    "options_ignored": Counter(
        "pwgrid_upgrades_options_ignored",
        _P,
        "Clients that a worker has taken, although a shared browser ignores some of their launch options",
    ),
}
"""By the names of `Counts`."""

CONNECT: Final = Buckets(
    "pwgrid_proxy_connect_seconds",
    _P,
    "Connects by phase: queue (in line), selection (the call that leases a slot), handoff (until the browser "
    "server has the socket)",
    (*POOL, "phase"),
)
QUEUE_WAIT: Final = Buckets(
    "pwgrid_proxy_queue_wait_seconds",
    _P,
    "Waits of the clients that stood in line: served, refused or abandoned (the client left)",
    (*POOL, "outcome"),
)
REFUSALS: Final = Counter(
    "pwgrid_proxy_refusals", _P, "Clients that got an HTTP error instead of a session", ("status", "reason")
)
HTTP: Final = Counter("pwgrid_proxy_http_requests", _P, "Requests to the API", ("route", "method", "status"))
REDIS_UP: Final = Gauge("pwgrid_redis_up", _P, "1 if Redis has answered this scrape; else its figures are missing")
REDIS_SECONDS: Final = Buckets("pwgrid_proxy_redis_exchange_seconds", _P, "How long Redis took for a pipeline")

BUILD: Final = Gauge(
    "pwgrid_build_info", _P, "Always 1; the labels are the versions that run", ("version", "python_version")
)
MASTER_START: Final = Gauge("pwgrid_master_start_time_seconds", _M, "When the grid was started, in Unix seconds")
_PROCESS: Final[dict[str, type[Gauge | Counter]]] = {
    "virtual_memory_bytes": Gauge,
    "resident_memory_bytes": Gauge,
    "start_time_seconds": Gauge,
    "cpu_seconds": Counter,
    "open_fds": Gauge,
    "max_fds": Gauge,
}
PROCESS: Final[list[Gauge | Counter]] = [
    kind(f"pwgrid_proxy_process_{name}", _P, "Of the proxy, as prometheus_client exports it for any process")
    for name, kind in _PROCESS.items()
]

WORKER_ACTIVE: Final = Gauge("pwgrid_worker_active_sessions", _R, "Live sessions of one worker", WORKER)
WORKER_SLOTS: Final = Gauge("pwgrid_worker_slots", _R, "Sessions that one worker takes at once; 0 for a spare", WORKER)
WORKER_LIFETIME: Final = Gauge("pwgrid_worker_lifetime_sessions", _R, "Sessions that one worker has had", WORKER)
WORKER_MEMORY: Final = Gauge("pwgrid_worker_memory_bytes", _R, "RSS of the worker and its browser", WORKER)
ONLY_BY_WORKER: Final = (WORKER_ACTIVE, WORKER_SLOTS, WORKER_LIFETIME, WORKER_MEMORY)
