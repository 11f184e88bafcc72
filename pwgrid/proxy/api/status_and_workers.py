"""The routes of the grid's status and of its workers, for operators."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path

from pwgrid.proxy.api import models
from pwgrid.proxy.api.common import problems
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, Operator
from pwgrid.proxy.policy.access import ANYBODY
from pwgrid.proxy.policy.refusal import Refusal

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy


def operator_routes(grid: "Proxy") -> APIRouter:
    """Makes the routes."""
    router = APIRouter(dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/status", tags=["grid"])
    async def status() -> models.Status:
        """Readiness and its reason, live sessions, waiting clients, outcomes."""
        found = await grid.registry.snapshot()
        reason = await grid.readiness.problem(found)
        return models.Status(
            ready=reason is None,
            reason=reason,
            active_connections=sum(found.active.values()),
            waiting=grid.queue.waiting(),
            waiting_by_run=[models.WaitingRun(**each._asdict()) for each in grid.queue.waiting_by_run()],
            clients=models.Clients.model_validate(asdict(grid.gateway.counts)),
            outcomes=dict(found.outcomes),
            taken_back=dict(found.taken_back),
            counter_repairs=found.counter_repairs,
        )

    @router.get("/v1/workers", tags=["workers"])
    async def workers(identity: Operator) -> models.Workers:
        """The registered workers with their counters. `wsEndpoint` is a secret of operators: null if the grid asks for
        no token, since then anybody may ask."""
        return models.Workers.of(await grid.registry.snapshot(), with_endpoints=identity is not ANYBODY)

    @router.post("/v1/workers/{id}/drain", tags=["workers"], status_code=202, responses=problems(404))
    async def drain(worker_id: Annotated[str, Path(alias="id")], now: bool = False) -> models.Draining:
        """Drains a worker: it takes no new session and ends when its live ones have ended; its replacement starts at
        once. With `now` its live sessions end at once, too."""
        if worker_id not in grid.roster.workers:
            raise Refusal(404, f"there is no worker {worker_id[:40]!r}: GET /v1/workers lists them")
        grid.control.event("drain_asked", {"workerId": worker_id, "reason": "operator", "now": now})
        return models.Draining(draining=[worker_id])

    return router
