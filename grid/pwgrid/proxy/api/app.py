"""The FastAPI application: all routes, and who may use them."""

from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from pwgrid import __version__
from pwgrid.proxy.api import dashboard_files, docs_pages, not_a_websocket
from pwgrid.proxy.api.devtools import devtools_routes
from pwgrid.proxy.api.errors import HANDLERS, problems
from pwgrid.proxy.api.health import health_routes, status_routes
from pwgrid.proxy.api.hosts import host_routes
from pwgrid.proxy.api.leases import lease_routes
from pwgrid.proxy.api.live_view import live_view_route
from pwgrid.proxy.api.metrics import RequestCounts, Requests, metrics_route
from pwgrid.proxy.api.page_socket import page_route
from pwgrid.proxy.api.pools import pool_command_routes, pool_routes
from pwgrid.proxy.api.questions_from_hosts import questions_route
from pwgrid.proxy.api.requests_as_sent import RequestsAsSent
from pwgrid.proxy.api.requests_without_route import UsualRequests, WithoutRoute
from pwgrid.proxy.api.roles import check_all_name_a_role
from pwgrid.proxy.api.session_files import session_file_routes
from pwgrid.proxy.api.sessions import session_routes
from pwgrid.proxy.api.workers import worker_routes
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.services import Services


def create_app(grid: Services, access: Access) -> FastAPI:
    """Makes the application that uvicorn serves. If the grid asks for a token, all routes do except health, the hints
    at / and /json, the dashboard's files, the icon and the API's own description.
    """
    app = FastAPI(
        title="pwgrid",
        version=__version__,
        description="A grid of real Playwright browsers on one host.",
        docs_url=None,  # FastAPI's own pages take their files from another host
        redoc_url=None,
        servers=[{"url": "."}],  # where this description is, perhaps below the path of a reverse proxy
        openapi_url=None,  # its own route would check no Host
        redirect_slashes=False,  # a redirect goes to the Host that the request names
        exception_handlers=HANDLERS,
    )
    requests = Requests()
    app.add_middleware(UsualRequests)
    app.add_middleware(RequestCounts, counted=requests)
    app.add_middleware(RequestsAsSent, access=access)  # the last one added gets a request first
    app.state.access = access
    takes_token = {
        "dependencies": [Depends(HTTPBearer(auto_error=False))],
        "responses": problems(401, 403, 429, 503, "4XX"),
    }
    routers: list[tuple[APIRouter, dict[str, Any]]] = [
        (health_routes(grid), {}),
        (not_a_websocket.router, {}),
        (devtools_routes(grid), {}),
        (dashboard_files.router, {}),
        (docs_pages.router, {}),
        (session_routes(grid), takes_token),  # its security scheme is for /docs
        (session_file_routes(grid), takes_token),
        (lease_routes(grid), takes_token),
        (status_routes(grid), takes_token),
        (worker_routes(grid), takes_token),
        (pool_routes(grid), takes_token),
        (pool_command_routes(grid), takes_token),
        (host_routes(grid), takes_token),
        (questions_route(grid), {}),
        (metrics_route(grid, requests), takes_token),
    ]
    for router, of_all in routers:
        check_all_name_a_role(router)
        app.include_router(router, **of_all)
    for sockets in (page_route(grid), live_view_route(grid)):  # WebSockets check roles themselves
        app.include_router(sockets)
    routes = [route for router, _ in routers for route in router.routes if isinstance(route, APIRoute)]
    app.router.routes.append(WithoutRoute(routes))
    return app
