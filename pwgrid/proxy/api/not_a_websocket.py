"""Answers requests for a client's endpoint that are no WebSocket upgrade, with a hint or the dashboard."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pwgrid.proxy.api import dashboard
from pwgrid.proxy.api.errors import refused
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.accept_or_refuse import CONNECT_HINT
from pwgrid.proxy.policy.refusal import Refusal


def hint_routes() -> APIRouter:
    """Makes the routes."""
    router = APIRouter(dependencies=[OPEN_TO_ALL])

    @router.api_route("/", methods=["GET", "HEAD", "POST"], include_in_schema=False)
    @router.get("/playwright/{path:path}", include_in_schema=False)
    @router.get("/lease/{path:path}", include_in_schema=False)
    async def hint(request: Request) -> Response:
        """Answers requests that are no WebSocket upgrade: a browser at / gets the dashboard, all others a hint."""
        if request.url.path == "/" and (page := dashboard.page_of(request)) is not None:
            return page
        return refused(Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"), ("Connection", "Upgrade"))))

    @router.get("/json", include_in_schema=False)
    async def endpoint() -> dict[str, str]:
        """Answers as `playwright run-server` does: a client whose endpoint begins with http asks for it."""
        return {"wsEndpointPath": "/"}

    @router.get("/json/version", include_in_schema=False)
    @router.get("/json/version/", include_in_schema=False)
    async def devtools_endpoint(request: Request) -> dict[str, str]:
        """Sends clients of the DevTools protocol to an endpoint that tells them that the grid does not speak it."""
        return {"webSocketDebuggerUrl": str(request.url.replace(scheme="ws", path="/"))}

    @router.get("/favicon.ico", include_in_schema=False, status_code=204)
    async def icon() -> None:
        """Answers browsers, which always ask for an icon, with nothing."""

    return router
