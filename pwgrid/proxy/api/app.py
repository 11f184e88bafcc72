"""The FastAPI application: all routes, and who may use them."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import Response

from pwgrid import __version__
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.api import dashboard, models
from pwgrid.proxy.api.common import NoneIfEmpty, problems
from pwgrid.proxy.api.docs import docs_routes
from pwgrid.proxy.api.errors import HANDLERS, JSON
from pwgrid.proxy.api.health import health_routes
from pwgrid.proxy.api.leases import lease_routes
from pwgrid.proxy.api.metrics import CONTENT_TYPE, Scrape, exposition
from pwgrid.proxy.api.not_a_websocket import hint_routes
from pwgrid.proxy.api.pools import pool_command_routes, pool_routes
from pwgrid.proxy.api.request_counts import RequestCounts, Requests
from pwgrid.proxy.api.roles import NEEDS_OPERATOR, check_all_name_a_role
from pwgrid.proxy.api.sessions import session_routes
from pwgrid.proxy.api.status_and_workers import operator_routes
from pwgrid.proxy.policy.access import Access

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy


def create_app(grid: "Proxy", access: Access) -> FastAPI:
    """Makes the application that uvicorn serves. If the grid asks for a token, all routes do except health, the hints
    at / and /json, the dashboard's files, the icon and the API's own description.
    """
    app = FastAPI(
        title="pwgrid",
        version=__version__,
        description="A grid of real Playwright browsers on one host.",
        docs_url=None,  # FastAPI's own pages take their files from another host
        redoc_url=None,
        exception_handlers=HANDLERS,
    )
    requests = Requests()
    app.add_middleware(RequestCounts, counted=requests)
    app.state.access = access
    takes_token = {
        "dependencies": [Depends(HTTPBearer(auto_error=False))],
        "responses": problems(401, 403, 429, 503, "4XX"),
    }
    routers: list[tuple[APIRouter, dict[str, Any]]] = [
        (health_routes(grid), {}),
        (hint_routes(), {}),
        (dashboard.file_routes(), {}),
        (docs_routes(), {}),
        (session_routes(grid), takes_token),  # its security scheme is for /docs
        (lease_routes(grid), takes_token),
        (operator_routes(grid), takes_token),
        (_metrics_route(grid, requests), takes_token),
        (pool_routes(grid), takes_token),
        (pool_command_routes(grid), takes_token),
    ]
    for router, of_all in routers:
        check_all_name_a_role(router)
        app.include_router(router, **of_all)
    app.include_router(dashboard.live_routes(grid))  # WebSockets, which check roles themselves
    return app


def _metrics_route(grid: "Proxy", requests: Requests) -> APIRouter:
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
        reason = await grid.readiness.problem(found) if found is not None else grid.roster.not_ready()
        scrape = Scrape(
            found=found,
            roster=grid.roster,
            counts=grid.gateway.counts,
            figures=grid.gateway.figures,
            waiting={name: grid.queue.waiting(name) for name in grid.roster.pools},
            requests=requests,
            redis=grid.registry.client.exchanges,
            is_ready=reason is None,
            by_worker=by is not None,
        )
        return Response(exposition(scrape), media_type=CONTENT_TYPE)

    return router
