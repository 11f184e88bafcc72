"""The routes of the pools, for operators: their room, their settings, and to scale and drain them."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query

from pwgrid.common.playwright_version import order_of
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.api import models
from pwgrid.proxy.api.bounded_body import BoundedBody
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.hosts import ask_master, host_named, hosts_of
from pwgrid.proxy.api.models import NoneIfEmpty
from pwgrid.proxy.api.roles import NEEDS_OPERATOR
from pwgrid.proxy.policy.pools_of_all_hosts import whole_pools
from pwgrid.proxy.services import Services
from pwgrid.registry.records import RegistrySnapshot


def pool_routes(grid: Services) -> APIRouter:
    router = APIRouter(tags=["pools"], dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/capacity")
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

    @router.get("/v1/pools")
    async def pools() -> models.Pools:
        """The pools with their settings, and how many of their workers are in which state."""
        rosters = grid.hosts.rosters()
        found = whole_pools(rosters).values()
        return models.Pools(pools=[models.Pool.of(each, with_hosts=len(rosters) > 1) for each in found])

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
    waiting = Counter({name: grid.queue.waiting(name) for name in grid.queue.pools()})
    for host in grid.hosts.table.heard(time.monotonic()):
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
