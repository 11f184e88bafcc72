"""The routes of health and readiness, open to all."""

from typing import TYPE_CHECKING

from fastapi import APIRouter

from pwgrid import __version__
from pwgrid.proxy.api import models
from pwgrid.proxy.api.common import problems
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.refusal import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S, Refusal

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy


def health_routes(grid: "Proxy") -> APIRouter:
    """Makes the routes."""
    router = APIRouter(tags=["health"], dependencies=[OPEN_TO_ALL])

    @router.get("/health")
    async def health() -> models.Health:
        """Answers while the proxy runs, whether the grid is ready or not."""
        return models.Health(version=__version__)

    @router.get("/health/ready", responses=problems(503))
    async def ready() -> models.Ready:
        """Every pool has an available worker that Redis would choose (all its slots may be taken); else 503 with the
        reason."""
        reason = await grid.readiness.problem()
        if reason is not None:
            retry_after_s = RETRY_AFTER_STOPPING_S if grid.roster.stopping else RETRY_AFTER_S
            raise Refusal(503, reason, headers=(("Retry-After", str(retry_after_s)),), details={"status": "not ready"})
        return models.Ready()

    return router
