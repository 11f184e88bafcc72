"""What requests get at a client's endpoint that are no WebSocket upgrade."""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pwgrid.proxy.api.dashboard_files import file_of_dashboard
from pwgrid.proxy.api.errors import refused
from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.api.roles import OPEN_TO_ALL
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
    if request.scope["path"] == "/" and wants_page:
        return file_of_dashboard("index.html", request) if _ends_in_slash(request) else _with_slash(request)
    return refused(Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"), ("Connection", "Upgrade"))))


def _ends_in_slash(request: Request) -> bool:
    raw_path: bytes = request.scope["raw_path"]
    return raw_path.endswith(b"/")


def _with_slash(request: Request) -> Response:
    """Redirects from the path below which a reverse proxy serves the grid to where the page's relative links are right.
    It names no host."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{arrival_of(request).prefix}/{query}")


@router.get("/json")
async def endpoint() -> dict[str, str]:
    """Answers as `playwright run-server` does: a client whose endpoint begins with http asks for it."""
    return {"wsEndpointPath": "/"}
