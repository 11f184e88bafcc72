"""The routes of the grid's health: for all, and for operators its status."""

from fastapi import APIRouter

from pwgrid import __version__
from pwgrid.proxy.api import models
from pwgrid.proxy.api.errors import problems
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S, Refusal
from pwgrid.proxy.services import Services


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


def status_routes(grid: Services) -> APIRouter:
    router = APIRouter(tags=["grid"], dependencies=[NEEDS_OPERATOR])

    @router.get("/v1/status")
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

    return router
