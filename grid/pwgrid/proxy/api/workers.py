"""The routes of the workers, for operators: what they are, and to drain one."""

import sys
from typing import Annotated

from fastapi import APIRouter, Path

from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.hosts import ask_master
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, Operator
from pwgrid.proxy.policy.access import ANYBODY
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.services import Services


def worker_routes(grid: Services) -> APIRouter:
    router = APIRouter(tags=["workers"], dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/workers")
    async def workers(
        identity: Operator, limit: models.PageSizeOrAll = None, cursor: models.Cursor = None
    ) -> models.Workers:
        """The registered workers with their counters: all, or with a `limit` a page of them. `wsEndpoint` is a secret
        of operators: null if the grid asks for no token, since then anybody may ask."""
        found, following = await grid.registry.worker_page(limit=limit or sys.maxsize, cursor=cursor)
        return models.Workers.of(found, grid.roster, with_endpoints=identity is not ANYBODY, cursor=following)

    @router.post("/v1/workers/{id}/drain", status_code=202, responses=problems(404, 503))
    async def drain(worker_id: Annotated[str, Path(alias="id")], now: bool = False) -> models.Draining:
        """Drains a worker: it takes no new session and ends when its live ones have ended; its replacement starts at
        once. With `now` its live sessions end at once, too."""
        host = await _host_of_worker(grid, worker_id)
        # Without `once` a second drain, which may be a retry, cuts sessions.
        asked = {"worker": worker_id, "reason": "operator", "now": now, "once": True}
        return models.Draining.model_validate(await ask_master(grid, host, "drain", asked))

    @router.get("/nodes")
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


async def _host_of_worker(grid: Services, worker_id: str) -> str:
    """Returns the name of the host that has this worker. Raises Refusal if none has."""
    if worker_id in grid.roster.workers:
        return grid.hosts.name
    host = await grid.hosts.host_of(worker_id)
    if host is None:
        raise Refusal(404, f"there is no worker {worker_id[:40]!r}: GET /v1/workers lists them")
    return host.record.name
