"""What the grid has and what of it is taken, by pool, label key and worker. Asks the registry once."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.proxy.api import models
from pwgrid.proxy.api.roles import needs
from pwgrid.proxy.roster import PoolView, Roster
from pwgrid.proxy.select.queue import Queue
from pwgrid.registry.registry import Registry, RegistrySnapshot, Selection
from pwgrid.tokens.tokens import Role


class Grid(Protocol):
    """What these routes see of the rest of the proxy."""

    roster: Roster
    registry: Registry
    queue: Queue[Selection]


def capacity_routes(grid: Grid, route_class: type[APIRoute]) -> APIRouter:
    """For operators."""
    router = APIRouter(route_class=route_class, dependencies=[needs(Role.OPERATOR)])

    @router.get("/v1/capacity", tags=["pools"])
    async def capacity() -> models.Capacity:
        """Slots, busy ones, waiting clients and spare workers: of all, of each pool, of each label key."""
        found = await grid.registry.snapshot()
        pools = {name: _room(grid, pool, found) for name, pool in grid.roster.pools.items()}
        labels = {key: pools[name] for name, pool in grid.roster.pools.items() for key in pool.labels}
        return models.Capacity(total=_sum(pools.values()), pools=pools, labels=labels)

    @router.get("/v1/pools", tags=["pools"])
    async def pools() -> models.Pools:
        """The pools as the master has them."""
        return models.Pools(pools=[models.Pool.of(each) for each in grid.roster.pools.values()])

    @router.get("/nodes", tags=["workers"])
    async def nodes() -> models.Nodes:
        """The registered workers, as hubs of other makes list their nodes."""
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


def _room(grid: Grid, pool: PoolView, found: RegistrySnapshot) -> models.Room:
    mine = {field: worker for field, worker in found.workers.items() if worker.pool == pool.name}
    serving = [worker for worker in mine.values() if worker.status == WorkerStatus.AVAILABLE]
    return models.Room(
        slots=sum(worker.slots for worker in serving),
        busy=_sessions(found.active, mine),
        waiting=grid.queue.waiting(pool.name),
        spare=sum(worker.status == WorkerStatus.SPARE for worker in mine.values()),
    )


def _sessions(active: Mapping[str, int], fields: Iterable[str]) -> int:
    return sum(active.get(field, 0) for field in fields)


def _sum(rooms: Iterable[models.Room]) -> models.Room:
    known = list(rooms)
    return models.Room(
        slots=sum(each.slots for each in known),
        busy=sum(each.busy for each in known),
        waiting=sum(each.waiting for each in known),
        spare=sum(each.spare for each in known),
    )
