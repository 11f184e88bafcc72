"""What requests get at a client's endpoint that are no WebSocket upgrade."""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pwgrid.proxy.api.dashboard_and_docs_files import file_of_dashboard
from pwgrid.proxy.api.errors import refused
from pwgrid.proxy.api.roles_and_body_limits import OPEN_TO_ALL
from pwgrid.proxy.policy.connect_request import CONNECT_HINT
from pwgrid.proxy.policy.refusal import Refusal

router: Final = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)


@router.api_route("/", methods=["GET", "POST"])
@router.get("/playwright/{path:path}")
@router.get("/lease/{path:path}")
async def hint(request: Request) -> Response:
    """Answers requests that are no WebSocket upgrade: a browser at / gets the dashboard, all others a hint."""
    # fetch() and command line tools ask for no HTML.
    wants_page = request.method != "POST" and "text/html" in request.headers.get("accept", "").lower()
    if request.url.path == "/" and wants_page:
        return file_of_dashboard("index.html", request)
    return refused(Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"), ("Connection", "Upgrade"))))


@router.get("/json")
async def endpoint() -> dict[str, str]:
    """Answers as `playwright run-server` does: a client whose endpoint begins with http asks for it."""
    return {"wsEndpointPath": "/"}


@router.get("/json/version")
async def devtools_endpoint(request: Request) -> dict[str, str]:
    """Sends clients of the DevTools protocol to an endpoint that tells them that the grid does not speak it."""
    return {"webSocketDebuggerUrl": str(request.url.replace(scheme="ws", path="/"))}
