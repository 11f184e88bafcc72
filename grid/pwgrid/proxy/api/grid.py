"""The routes of the grid: health for all; for operators its status, workers and pools, also to scale and drain them."""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query

from pwgrid import __version__
from pwgrid.common.playwright_version import order_of
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.api import models
from pwgrid.proxy.api.bounded_body import BoundedBody
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.hosts import ask_master, host_named, hosts_of
from pwgrid.proxy.api.models import NoneIfEmpty
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, OPEN_TO_ALL, Operator
from pwgrid.proxy.policy.access import ANYBODY
from pwgrid.proxy.policy.refusal import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S, Refusal
from pwgrid.proxy.policy.whole_pools import whole_pools
from pwgrid.proxy.services import Services
from pwgrid.registry.records import RegistrySnapshot


def health_routes(grid: Services) -> APIRouter:
    router = APIRouter(tags=["health"], dependencies=[OPEN_TO_ALL])

    @router.get("/health")
    async def health() -> models.Health:
        """Answers while the proxy runs, whether the grid is ready or not."""
        return models.Health(version=__version__)

    @router.get("/health/ready", responses=problems(503), response_model_exclude_none=True)
    async def ready() -> models.Ready:
        """Every pool has an available worker that would be chosen (all its slots may be taken), perhaps on another
        host of the grid; else 503 with the reason, also on a host that an operator has drained. `degraded` is there if
        clients are served without Redis, and says why."""
        found = await grid.readiness.verdict()
        if (reason := found.reason) is not None:
            retry_after_s = RETRY_AFTER_STOPPING_S if grid.roster.stopping else RETRY_AFTER_S
            raise Refusal(503, reason, headers=(("Retry-After", str(retry_after_s)),), details={"status": "not ready"})
        return models.Ready(degraded=found.degraded)

    return router


def operator_routes(grid: Services) -> APIRouter:
    router = APIRouter(dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/status", tags=["grid"])
    async def status() -> models.Status:
        """Readiness and its reason, live sessions, waiting clients, outcomes."""
        found = await grid.readiness.look()
        verdict = await grid.readiness.verdict(found)
        return models.Status(
            ready=verdict.reason is None,
            reason=verdict.reason,
            degraded=verdict.degraded,
            active_connections=sum(found.active.values()),
            waiting=grid.queue.waiting(),
            waiting_by_run=[models.WaitingRun(**each._asdict()) for each in grid.queue.waiting_by_run()],
            clients=models.Clients.model_validate(grid.gateway.figures, from_attributes=True),
            outcomes=dict(found.outcomes),
            taken_back=dict(found.taken_back),
            counter_repairs=found.counter_repairs,
        )

    @router.get("/v1/workers", tags=["workers"])
    async def workers(
        identity: Operator, limit: models.PageSizeOrAll = None, cursor: models.Cursor = None
    ) -> models.Workers:
        """The registered workers with their counters: all, or with a `limit` a page of them. `wsEndpoint` is a secret
        of operators: null if the grid asks for no token, since then anybody may ask."""
        found, following = await grid.registry.worker_page(limit=limit or sys.maxsize, cursor=cursor)
        return models.Workers.of(found, grid.roster, with_endpoints=identity is not ANYBODY, cursor=following)

    @router.post("/v1/workers/{id}/drain", tags=["workers"], status_code=202, responses=problems(404, 503))
    async def drain(worker_id: Annotated[str, Path(alias="id")], now: bool = False) -> models.Draining:
        """Drains a worker: it takes no new session and ends when its live ones have ended; its replacement starts at
        once. With `now` its live sessions end at once, too."""
        host = await _host_of_worker(grid, worker_id)
        # Without `once` a second drain, which may be a retry, cuts sessions.
        asked = {"worker": worker_id, "reason": "operator", "now": now, "once": True}
        return models.Draining.model_validate(await ask_master(grid, host, "drain", asked))

    @router.get("/v1/capacity", tags=["pools"])
    async def capacity() -> models.Capacity:
        """Slots, busy slots, waiting clients and spare workers: in total, by pool, by label key, and by Playwright
        version."""
        found = await grid.registry.snapshot()
        pools = {name: pool.whole for name, pool in whole_pools(grid.hosts.rosters()).items()}
        rooms = _rooms(grid, found, pools)
        there = {name: pool for name, pool in pools.items() if not pool.is_removed}
        labels = _summed(rooms, {name: pool.labels for name, pool in there.items()})
        versions = _summed(rooms, {name: (pool.playwright,) for name, pool in there.items() if pool.playwright})
        versions = dict(sorted(versions.items(), key=lambda each: order_of(each[0])))
        hosts = {host.name: host.room for host in hosts_of(grid, found.active)}
        return models.Capacity(total=_sum(rooms.values()), pools=rooms, labels=labels, versions=versions, hosts=hosts)

    @router.get("/v1/pools", tags=["pools"])
    async def pools() -> models.Pools:
        """The pools with their settings, and how many of their workers are in which state."""
        rosters = grid.hosts.rosters()
        found = whole_pools(rosters).values()
        return models.Pools(pools=[models.Pool.of(each, with_hosts=len(rosters) > 1) for each in found])

    @router.get("/nodes", tags=["workers"])
    async def nodes() -> models.Nodes:
        """The registered workers, in the form in which other browser hubs list their nodes."""
        found = await grid.registry.snapshot()
        return models.Nodes(
            nodes=[
                models.Node(
                    node_id=worker.worker_id,
                    browser_type=worker.browser_type,
                    pool=worker.pool,
                    labels=[*worker.labels],
                    status=worker.status,
                    capacity=worker.slots,
                    active=found.active.get(field, 0),
                    last_heartbeat=worker.last_heartbeat,
                    playwright_version=worker.playwright_version,
                )
                for field, worker in found.workers.items()
            ]
        )

    return router


def pool_command_routes(grid: Services) -> APIRouter:
    """Makes the routes that the master answers, for operators; AskMaster bounds how long it may take."""
    router = APIRouter(prefix="/v1/pools", tags=["pools"], route_class=BoundedBody, dependencies=[NEEDS_OPERATOR])

    @router.post("/{name}/scale", responses=problems(409, 413), response_model_exclude_none=True)
    async def scale(
        pool: Annotated[str, Path(alias="name")],
        wanted: models.Scale,
        host: Annotated[str | None, NoneIfEmpty, Query()] = None,
    ) -> models.Scaled:
        """Sets a pool's number of workers until the next reload that changes it; surplus workers drain. Where several
        hosts form the grid it is the number of one of them: of `host`, else of the host that answers if it has the
        pool, else of the only one that has."""
        asked = host_named(grid, host, _hosts_with(grid, pool))
        found = await ask_master(grid, asked, "scale", {pool: wanted.workers})
        return models.Scaled(wanted=found["wanted"], host=asked or None)

    @router.post("/{name}/drain", status_code=202)
    async def drain(
        pool: Annotated[str, Path(alias="name")], host: Annotated[str | None, NoneIfEmpty, Query()] = None
    ) -> models.Draining:
        """Drains all workers of a pool, of all hosts that have it or of `host` alone: they take no new session and end
        when their live ones have ended; replacements start at once. May be repeated: live sessions go on."""
        has_it = _hosts_with(grid, pool)
        hosts = has_it if host is None and has_it else [host_named(grid, host, has_it)]
        return models.Draining(draining=await _drain_pool(grid, pool, hosts))

    return router


async def _host_of_worker(grid: Services, worker_id: str) -> str:
    """Returns the name of the host that has this worker. Raises Refusal if none has."""
    if worker_id in grid.roster.workers:
        return grid.hosts.name
    host = await grid.hosts.host_of(worker_id)
    if host is None:
        raise Refusal(404, f"there is no worker {worker_id[:40]!r}: GET /v1/workers lists them")
    return host.record.name


def _hosts_with(grid: Services, pool: str) -> list[str]:
    """The names of the hosts that have a pool of this name."""
    return [host for host, roster in grid.hosts.rosters().items() if pool in roster.pools]


async def _drain_pool(grid: Services, pool: str, hosts: Collection[str]) -> list[str]:
    """Drains the workers of a pool on these hosts; returns their ids. Raises Refusal, also if only one of them does not
    answer: it may be repeated."""
    asked = {"pool": pool, "reason": "operator", "once": True}  # without `once` a second drain cuts sessions
    answers = await asyncio.gather(*(ask_master(grid, host, "drain", asked) for host in hosts), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [worker for answer in answers if isinstance(answer, dict) for worker in answer["draining"]]


def _rooms(grid: Services, found: RegistrySnapshot, pools: Collection[str]) -> dict[str, models.Room]:
    """By pool, of those that the masters have told of (`pools`)."""
    waiting = Counter({name: grid.queue.waiting(name) for name in grid.roster.pools})
    for host in grid.hosts.table.others.values():
        waiting.update(host.record.waiting)
    slots, busy, spare = Counter[str](), Counter[str](), Counter[str]()
    for field, worker in found.workers.items():
        busy[worker.pool] += found.active.get(field, 0)
        if worker.status == WorkerStatus.AVAILABLE:
            slots[worker.pool] += worker.slots
        spare[worker.pool] += worker.status == WorkerStatus.SPARE
    return {
        name: models.Room(slots=slots[name], busy=busy[name], waiting=waiting[name], spare=spare[name])
        for name in pools
    }


def _summed(rooms: Mapping[str, models.Room], words: Mapping[str, Collection[str]]) -> dict[str, models.Room]:
    """For each word that pools have, the room of these pools together. `words` are by pool."""
    found = defaultdict[str, list[models.Room]](list)
    for name, of_pool in words.items():
        for word in of_pool:
            found[word].append(rooms[name])
    return {word: _sum(each) for word, each in found.items()}


def _sum(rooms: Collection[models.Room]) -> models.Room:
    return models.Room(**{name: sum(getattr(each, name) for each in rooms) for name in models.Room.model_fields})
