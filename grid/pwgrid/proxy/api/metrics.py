"""Every metric, and /metrics, which writes them in the text format of Prometheus.

tools/metrics_page.py makes docs/metrics.md from the names, kinds, labels, meanings and sources here.
"""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pwgrid import __version__
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.histogram import CANARY_BOUNDS_S, DRAIN_BOUNDS_S, LAUNCH_BOUNDS_S, Histogram
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import JSON
from pwgrid.proxy.api.models import NoneIfEmpty
from pwgrid.proxy.api.roles import NEEDS_OPERATOR
from pwgrid.proxy.roster import Roster
from pwgrid.proxy.services import Services
from pwgrid.registry.records import RegistrySnapshot, WorkerRecord


class Source(StrEnum):
    """The process that holds a figure. A counter begins at 0 when that process starts."""

    REDIS = "Redis"
    MASTER = "master"
    PROXY = "proxy"


_MAKES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Each one that is made is added to `ALL`."""

    kind: str
    """One of _MAKES. A gauge rises and falls, a counter only rises, a histogram counts figures by upper bounds."""
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
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def of(self, samples: Iterable[tuple[Sequence[str], float | Histogram]]) -> Metric:
        metric: Any = _MAKES[self.kind](self.name, self.meaning, labels=self.labels)
        for labels, figure in samples:
            if isinstance(figure, Histogram):
                bounds = [*(f"{bound:g}" for bound in figure.bounds), "+Inf"]
                metric.add_metric(labels, list(zip(bounds, accumulate(figure.counts), strict=True)), figure.total)
            else:
                metric.add_metric(labels, figure)
        return metric  # type: ignore[no-any-return]


gauge, counter, histogram = (partial(Family, kind) for kind in _MAKES)

ALL: Final[list[Family]] = []
"""In the order of docs/metrics.md, which is that of this file."""

_R, _M, _P = Source.REDIS, Source.MASTER, Source.PROXY
POOL: Final = ("browser_type", "pool")
WORKER: Final = (*POOL, "worker")
OF_VERSION: Final = (*POOL, "playwright")
"""The Playwright that a worker runs, as major.minor."""

READY: Final = gauge("pwgrid_ready", _P, "1 if every pool can take a session")
POOL_INFO: Final = gauge(
    "pwgrid_pool_info",
    _M,
    "Always 1; the labels are the pool's Playwright, and whether it starts on demand",
    (*POOL, "playwright", "on_demand"),
)
SLOTS_WANTED: Final = gauge("pwgrid_slots_wanted", _M, "Slots when all wanted workers serve", POOL)
SLOTS: Final = gauge(
    "pwgrid_slots",
    _R,
    "Slots of the present workers: busy (a session has it), available (a client can have it now), spare (of a spare "
    "worker), draining (free, but its worker drains)",
    (*POOL, "state"),
)
ACTIVE: Final = gauge("pwgrid_active_sessions", _R, "Live sessions", POOL)
LIFETIME: Final = gauge(
    "pwgrid_lifetime_sessions", _R, "Sessions that count towards the lifetimes of the present workers", POOL
)
WAITING: Final = gauge("pwgrid_clients_waiting", _P, "Clients in the queue", POOL)

SESSIONS: Final = counter(
    "pwgrid_sessions",
    _R,
    "Sessions that have ended, by status and reason (docs/lifecycle.md has both)",
    (*POOL, "status", "reason"),
)
TAKEN_BACK: Final = counter("pwgrid_sessions_taken_back", _R, "Of these, ends that were presumed wrongly", ("status",))
DURATION: Final = histogram(
    "pwgrid_session_duration_seconds", _R, "Length of the sessions whose worker reported their end", POOL
)
LEASES: Final = counter(
    "pwgrid_leases", _R, "Leases that have ended, by status: returned, expired, ended or failed", ("status",)
)
LEASES_TAKEN_BACK: Final = counter(
    "pwgrid_leases_taken_back", _R, "Of these, ends that were presumed wrongly", ("status",)
)
REPAIRS: Final = counter("pwgrid_counter_repairs", _R, "Counters in Redis that a heartbeat had to correct")

WORKERS_WANTED: Final = gauge("pwgrid_workers_wanted", _M, "Workers that are wanted", POOL)
WORKERS: Final = gauge("pwgrid_workers", _M, "Workers by status", (*POOL, "status"))
STARTS: Final = counter("pwgrid_worker_starts", _M, "Workers that were started", POOL)
LAUNCH: Final = histogram("pwgrid_worker_launch_seconds", _M, "From a worker's fork until its browser is warm", POOL)
RECYCLES: Final = counter("pwgrid_worker_recycles", _M, "Workers that were replaced as planned", (*POOL, "reason"))
DEATHS: Final = counter(
    "pwgrid_worker_deaths",
    _M,
    "Workers that ended without being asked to; signal is none where no signal ended a process",
    (*POOL, "reason", "signal"),
)
EARLY_DEATHS: Final = gauge(
    "pwgrid_worker_early_deaths",
    _M,
    "Early deaths of workers without a healthy worker in between: the more, the longer the next start waits",
    POOL,
)
DRAIN: Final = histogram("pwgrid_worker_drain_seconds", _M, "How long the sessions of a drain went on", POOL)
DRAIN_TIMEOUTS: Final = counter("pwgrid_drain_timeouts", _M, "Drains that cut sessions", POOL)
SUSPECT: Final = gauge(
    "pwgrid_workers_suspect", _M, "Available workers that take no new client, since their browser may be sick", POOL
)
CANARY: Final = histogram(
    "pwgrid_canary_first_page_seconds", _M, "A browser's time to a page of the grid's own", OF_VERSION
)
CANARY_FAILURES: Final = counter("pwgrid_canary_failures", _M, "Tries of a browser that failed", OF_VERSION)
SERVER_ERRORS: Final = counter(
    "pwgrid_browser_server_errors",
    _M,
    "Errors in browser servers that nobody waited for: in a session, in the connection to the browser, a message of it "
    "that was too long, and others",
    (*POOL, "kind"),
)

MEMORY: Final = gauge("pwgrid_pool_memory_bytes", _M, "Memory of all workers with their browsers (MEMORY_METRIC)", POOL)
KEPT: Final = gauge("pwgrid_kept_sessions", _M, "Sessions whose browsers wait for a client to come back", POOL)
OWN_BROWSERS: Final = gauge("pwgrid_own_browsers", _M, "Sessions that have a browser of their own", POOL)
LOWERED: Final = gauge(
    "pwgrid_browsers_lowered",
    _M,
    "Browsers with a lower priority, for taking more than their share of the processors (PROCESSOR_SHARES)",
    POOL,
)
LAUNCHES: Final = counter(
    "pwgrid_browser_launches",
    _M,
    "Browsers that sessions got for themselves and that count towards no lifetime (MAX_LAUNCHES)",
    POOL,
)
LARGEST: Final = gauge("pwgrid_largest_worker_memory_bytes", _M, "Memory of the largest worker with its browser", POOL)
HOST_MEMORY: Final = gauge("pwgrid_host_memory_available_bytes", _M, "Memory that host and cgroup still have")

UPGRADES: Final = {
    "handed_off": counter(
        "pwgrid_upgrades_handed_off", _P, "Clients that a worker has taken, or may have taken when it died"
    ),
    "refused": counter("pwgrid_upgrades_refused", _P, "Clients that were answered with an HTTP error"),
    "retried": counter(
        "pwgrid_upgrades_retried", _P, "Handoffs that a worker did not take, so that another one was tried"
    ),
    "abandoned": counter("pwgrid_upgrades_abandoned", _P, "Clients that left while they waited"),
    "options_ignored": counter(
        "pwgrid_upgrades_options_ignored",
        _P,
        "Clients that a worker has taken, although a shared browser ignores some of their launch options",
    ),
}
"""By the names of `ConnectFigures`."""

CONNECT: Final = histogram(
    "pwgrid_proxy_connect_seconds",
    _P,
    "Connects by phase: queue (in line), selection (the call that leases a slot), handoff (until the browser "
    "server has the socket)",
    (*POOL, "phase"),
)
QUEUE_WAIT: Final = histogram(
    "pwgrid_proxy_queue_wait_seconds",
    _P,
    "Waits of the clients that stood in line: served, refused or abandoned (the client left)",
    (*POOL, "outcome"),
)
REFUSALS: Final = counter(
    "pwgrid_proxy_refusals", _P, "Clients that got an HTTP error instead of a session", ("status", "reason")
)
HTTP: Final = counter("pwgrid_proxy_http_requests", _P, "Requests to the API", ("route", "method", "status"))
REDIS_UP: Final = gauge("pwgrid_redis_up", _P, "1 if Redis has answered this scrape; else its figures are missing")
REDIS_WRITABLE: Final = gauge(
    "pwgrid_redis_writable", _P, "1 if Redis takes writes; else clients are served without it"
)
REDIS_SECONDS: Final = histogram("pwgrid_proxy_redis_exchange_seconds", _P, "How long Redis took for a pipeline")

HOSTS: Final = gauge(
    "pwgrid_hosts",
    _P,
    "Hosts, where several form the grid, as this one sees them: serving, drained, stopping, unreachable, silent",
    ("state",),
)
FORWARDED: Final = counter("pwgrid_upgrades_forwarded", _P, "Clients that a worker of another host has taken")

BUILD: Final = gauge(
    "pwgrid_build_info", _P, "Always 1; the labels are the versions that run", ("version", "python_version")
)
MASTER_START: Final = gauge("pwgrid_master_start_time_seconds", _M, "When the grid was started, in Unix seconds")
PROCESS: Final = [
    make(f"pwgrid_proxy_process_{name}", _P, "Of the proxy, as prometheus_client exports it for any process")
    for make, name in (
        (gauge, "virtual_memory_bytes"),
        (gauge, "resident_memory_bytes"),
        (gauge, "start_time_seconds"),
        (counter, "cpu_seconds"),
        (gauge, "open_fds"),
        (gauge, "max_fds"),
    )
]

WORKER_ACTIVE: Final = gauge("pwgrid_worker_active_sessions", _R, "Live sessions of one worker", WORKER)
WORKER_SLOTS: Final = gauge("pwgrid_worker_slots", _R, "Sessions that one worker takes at once; 0 for a spare", WORKER)
WORKER_LIFETIME: Final = gauge(
    "pwgrid_worker_lifetime_sessions", _R, "Sessions that count towards the lifetime of one worker", WORKER
)
WORKER_LAUNCHES: Final = gauge(
    "pwgrid_worker_launches", _R, "Of one worker, own browsers that its lifetime does not count (MAX_LAUNCHES)", WORKER
)
WORKER_MEMORY: Final = gauge("pwgrid_worker_memory_bytes", _R, "RSS of the worker and its browser", WORKER)
ONLY_BY_WORKER: Final = (WORKER_ACTIVE, WORKER_SLOTS, WORKER_LIFETIME, WORKER_LAUNCHES, WORKER_MEMORY)


MIB: Final = 1024 * 1024

_STATUSES: Final = ("starting", "spare", "available", "draining")
_LEASE_ENDS: Final = (SessionStatus.COMPLETED, SessionStatus.EXPIRED, SessionStatus.ENDED, SessionStatus.FAILED)
_STATES: Final = ("available", "busy", "spare", "draining")

Key = tuple[str, str]
"""Browser type and pool."""


def metrics_route(grid: Services, requests: Requests) -> APIRouter:
    router = APIRouter(dependencies=[NEEDS_OPERATOR])

    @router.get("/metrics", tags=["metrics"], response_model=models.ActiveConnections)
    async def metrics(request: Request, by: Annotated[Literal["worker"] | None, NoneIfEmpty, Query()] = None) -> object:
        """Metrics in the text format of Prometheus, with `by=worker` also for each worker; with `Accept:
        application/json` the number of live sessions. While Redis is away its figures are missing, and
        `pwgrid_redis_up` is 0."""
        if JSON in request.headers.get("accept", ""):
            activity = await grid.registry.activity()
            return models.ActiveConnections(active_connections=sum(activity.active.values()))
        try:
            found = await grid.registry.snapshot()
        except RegistryUnavailable:
            found = None
        reason = (await grid.readiness.verdict(found)).reason if found is not None else grid.roster.not_ready()
        scrape = Scrape(grid, found, requests, is_ready=reason is None, by_worker=by is not None)
        return Response(exposition(scrape), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


@dataclass(frozen=True, slots=True, eq=False)  # prometheus_client keeps collectors as keys
class Scrape(Collector):
    """What one scrape shows. `found` is None while Redis does not answer."""

    grid: Services
    found: RegistrySnapshot | None
    requests: Requests
    is_ready: bool
    by_worker: bool = False

    def collect(self) -> Iterator[Metric]:
        """All families; prometheus_client calls this."""
        if self.found is not None:
            yield from _of_registry(self.found)
            if self.by_worker:
                yield from _by_worker(self.found)
        yield from _of_master(self.grid.roster)
        yield from _of_proxy(self)


def exposition(scrape: Scrape) -> bytes:
    registry = CollectorRegistry()
    registry.register(scrape)
    ProcessCollector(namespace="pwgrid_proxy", registry=registry)
    return generate_latest(registry)


def _pool_of(worker: WorkerRecord) -> Key:
    return worker.browser_type, worker.pool or worker.browser_type


def _of_registry(found: RegistrySnapshot) -> Iterator[Metric]:
    active, lifetime = Counter[Key](), Counter[Key]()
    slots: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    for field, worker in found.workers.items():
        pool, live = _pool_of(worker), found.active.get(field, 0)
        active[pool] += live
        lifetime[pool] += found.lifetime.get(field, 0)
        slots[pool]["busy"] += live
        if worker.status in _STATES:
            slots[pool][worker.status] += max(0, worker.slots - live)
    yield ACTIVE.of(active.items())
    yield LIFETIME.of(lifetime.items())
    yield SLOTS.of(((*pool, state), count[state]) for pool, count in slots.items() for state in _STATES)
    yield SESSIONS.of((tuple(ends), count) for ends, count in found.ends.items())
    yield TAKEN_BACK.of(((status,), count) for status, count in found.taken_back.items())
    yield DURATION.of(found.lengths.items())
    yield LEASES.of(((models.LEASE_STATUS[status],), found.leases.get(status, 0)) for status in _LEASE_ENDS)
    yield LEASES_TAKEN_BACK.of(
        ((models.LEASE_STATUS[status],), found.leases_taken_back.get(status, 0)) for status in _LEASE_ENDS
    )
    yield REPAIRS.of([((), found.counter_repairs)])


def _by_worker(found: RegistrySnapshot) -> Iterator[Metric]:
    workers = [((*_pool_of(worker), worker.worker_id), field, worker) for field, worker in found.workers.items()]
    yield WORKER_ACTIVE.of((key, found.active.get(field, 0)) for key, field, _ in workers)
    yield WORKER_LIFETIME.of((key, found.lifetime.get(field, 0)) for key, field, _ in workers)
    yield WORKER_LAUNCHES.of((key, worker.launches) for key, _, worker in workers)
    yield WORKER_SLOTS.of(
        (key, 0 if worker.status == WorkerStatus.SPARE else worker.slots) for key, _, worker in workers
    )
    yield WORKER_MEMORY.of((key, worker.rss_mib * MIB) for key, _, worker in workers if worker.rss_mib is not None)


def _of_master(roster: Roster) -> Iterator[Metric]:
    pools = {(pool.browser_type, name): pool for name, pool in roster.pools.items()}
    statuses = Counter((worker.browser_type, worker.pool, worker.status) for worker in roster.workers.values())
    yield WORKERS_WANTED.of((key, pool.wanted) for key, pool in pools.items())
    yield POOL_INFO.of(((*key, pool.playwright, str(pool.is_on_demand).lower()), 1) for key, pool in pools.items())
    yield SLOTS_WANTED.of((key, pool.wanted * pool.slots) for key, pool in pools.items())
    yield SUSPECT.of((key, pool.suspect) for key, pool in pools.items())
    yield DRAIN_TIMEOUTS.of((key, pool.drain_timeouts) for key, pool in pools.items())
    yield WORKERS.of(((*key, status), statuses[*key, status]) for key in pools for status in _STATUSES)
    if roster.metrics:
        yield from _of_tallies(roster.metrics)


def _of_tallies(told: Mapping[str, Any]) -> Iterator[Metric]:
    pools = {(pool["browserType"], name): pool for name, pool in told["pools"].items()}
    yield MASTER_START.of([((), told["startedAt"])])
    yield HOST_MEMORY.of([((), told["hostAvailableMib"] * MIB)])
    yield MEMORY.of((key, pool["memoryMib"] * MIB) for key, pool in pools.items())
    yield LARGEST.of((key, pool["largestMib"] * MIB) for key, pool in pools.items())
    yield KEPT.of((key, pool.get("kept", 0)) for key, pool in pools.items())
    yield OWN_BROWSERS.of((key, pool.get("ownBrowsers", 0)) for key, pool in pools.items())
    yield LOWERED.of((key, pool.get("lowered", 0)) for key, pool in pools.items())
    yield LAUNCHES.of((key, pool.get("launches", 0)) for key, pool in pools.items())
    yield STARTS.of((key, pool["starts"]) for key, pool in pools.items())
    yield EARLY_DEATHS.of((key, pool["earlyDeaths"]) for key, pool in pools.items())
    canaries = {
        (*key, version): told for key, pool in pools.items() for version, told in pool.get("canaries", {}).items()
    }
    yield CANARY.of((key, Histogram.read(CANARY_BOUNDS_S, pages)) for key, (_, *pages) in canaries.items())
    yield CANARY_FAILURES.of((key, failures) for key, (failures, *_) in canaries.items())
    yield SERVER_ERRORS.of(
        ((*key, kind), count) for key, pool in pools.items() for kind, count in pool.get("serverErrors", {}).items()
    )
    yield RECYCLES.of(
        ((*key, reason), count) for key, pool in pools.items() for reason, count in pool["recycles"].items()
    )
    yield DEATHS.of(
        ((*key, reason, signal), count) for key, pool in pools.items() for reason, signal, count in pool["deaths"]
    )
    for family, name, bounds in (
        (LAUNCH, "launch", LAUNCH_BOUNDS_S),
        (DRAIN, "drain", DRAIN_BOUNDS_S),
    ):
        yield family.of((key, Histogram.read(bounds, pool[name])) for key, pool in pools.items())


def _of_proxy(scrape: Scrape) -> Iterator[Metric]:
    grid = scrape.grid
    figures = grid.gateway.figures
    yield REDIS_UP.of([((), scrape.found is not None)])
    yield REDIS_WRITABLE.of([((), scrape.found is not None and scrape.found.write_fault is None)])
    yield BUILD.of([((__version__, platform.python_version()), 1)])
    yield READY.of([((), scrape.is_ready)])
    # Also those who wait here for a pool that only another host has.
    lines = {name: grid.roster.pool(name) for name in (*grid.roster.pools, *grid.queue.pools())}
    yield WAITING.of(((pool.browser_type, name), grid.queue.waiting(name)) for name, pool in lines.items() if pool)
    for name, family in UPGRADES.items():
        yield family.of([((), getattr(figures, name))])
    yield CONNECT.of(
        ((*pool, phase), getattr(phases, phase))
        for pool, phases in figures.phases.items()
        for phase in ("queue", "selection", "handoff")
    )
    yield QUEUE_WAIT.of(((*pool, outcome), found) for (pool, outcome), found in figures.waits.items())
    yield REFUSALS.of(((str(status), reason), count) for (status, reason), count in figures.refusals.items())
    yield HTTP.of(((route, method, str(status)), count) for (route, method, status), count in scrape.requests.items())
    yield REDIS_SECONDS.of([((), grid.registry.client.exchanges)])
    yield HOSTS.of(((state,), count) for state, count in grid.hosts.counted().items())
    forwarding = grid.gateway.forwarding
    yield FORWARDED.of([((), 0 if forwarding is None else forwarding.forwarded)])


UNKNOWN: Final = "unknown"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Requests = Counter[tuple[str, str, int]]
"""Answers of the API by route, method and status."""


class RequestCounts:
    """ASGI middleware. Counts a route by its pattern (`/v1/sessions/{id}`), so that clients cannot make labels."""

    def __init__(self, app: ASGIApp, counted: Requests) -> None:
        self._app = app
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # if the application raises, an outer layer answers with this

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else UNKNOWN
            self._counted[getattr(scope.get("route"), "path", UNKNOWN), method, status] += 1
