"""What clients of the Chrome DevTools Protocol ask over HTTP before they connect, and what WebDriver clients hear."""

from __future__ import annotations

import secrets
from typing import Final

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from pwgrid.proxy.api.errors import JSON, refused
from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.api.roles import OPEN_TO_ALL
from pwgrid.proxy.policy.connect_request import CONNECT_HINT
from pwgrid.proxy.policy.devtools_request import BROWSER_PATH, PAGE_PATH
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.services import Services

PROTOCOL_VERSION: Final = "1.3"
"""Of CDP, as each Chromium says."""

_NO_URL: Final = (
    "this grid opens no URL over HTTP: leave the URL out, connect to the page, and open it there (Page.navigate)"
)
_NO_TARGETS: Final = (
    "this grid has no pages over HTTP: a session ends with its last connection, or by DELETE /v1/sessions/{id}"
)
_EMPTY_PAGE: Final = "about:blank"
_NO_WEBDRIVER: Final = (
    "this grid speaks no WebDriver: connect a Playwright client to ws://<host>:<port>/, or a CDP client (Puppeteer, "
    "connect_over_cdp) to http://<host>:<port>; Selenium needs a grid of its own"
)


def devtools_routes(grid: Services) -> APIRouter:
    """Makes the routes. They ask for no token: a client that is told where to connect is checked there, and its user is
    shown the sentence of that refusal, which that of one here would not be."""
    router = APIRouter(dependencies=[OPEN_TO_ALL], include_in_schema=False)

    @router.get("/json/version")
    async def version(request: Request) -> dict[str, str]:
        """Answers as Chromium does. Each answer has the URL of another session, which begins when its first client
        connects; who comes to the same URL later finds that session's browser again."""
        return {**_about(grid), "webSocketDebuggerUrl": _url(request, BROWSER_PATH + secrets.token_hex(8))}

    @router.get("/json/list")
    async def targets(request: Request) -> list[dict[str, str]]:
        """Lists the page of a session that begins when its first client connects, as `version` does."""
        return [_new_page(request)]

    @router.get("/json/protocol")
    async def protocol() -> FileResponse:
        return FileResponse(await grid.protocol.file(), media_type=JSON)

    @router.api_route("/json/new", methods=["GET", "PUT"])
    async def new(request: Request) -> dict[str, str]:
        """Where Chromium opens the URL that is the query."""
        if request.url.query not in ("", _EMPTY_PAGE):
            raise Refusal(404, _NO_URL)
        return _new_page(request, query="")

    @router.get("/json/activate/{target}")
    @router.get("/json/close/{target}")
    async def no_targets() -> None:
        raise Refusal(404, _NO_TARGETS)

    @router.get("/cdp")
    @router.get("/devtools/{path:path}")
    async def hint() -> Response:
        return refused(Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"), ("Connection", "Upgrade"))))

    @router.post("/session")
    @router.post("/wd/hub/session")
    async def webdriver() -> Response:
        """Refuses in the form of WebDriver's errors, which its clients show to their users."""
        value = {"error": "session not created", "message": _NO_WEBDRIVER, "stacktrace": ""}
        return Response(orjson.dumps({"error": _NO_WEBDRIVER, "value": value}), 400, media_type=JSON)

    return router


def _url(request: Request, path: str, query: str | None = None) -> str:
    query = request.url.query if query is None else query
    return f"{arrival_of(request).endpoint}{path}{f'?{query}' if query else ''}"


def _new_page(request: Request, query: str | None = None) -> dict[str, str]:
    session_id = secrets.token_hex(8)
    about = {"description": "", "id": session_id, "title": _EMPTY_PAGE, "type": "page", "url": _EMPTY_PAGE}
    return {**about, "webSocketDebuggerUrl": _url(request, PAGE_PATH + session_id, query)}


def _about(grid: Services) -> dict[str, str]:
    """What Chromium says of itself, as far as a worker has told its version."""
    versions = (each.browser_version for each in grid.roster.workers.values() if each.browser_type == "chromium")
    known = next(filter(None, versions), "")
    if not known:
        return {"Protocol-Version": PROTOCOL_VERSION}
    major = known.partition(".")[0]
    agent = (
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"HeadlessChrome/{major}.0.0.0 Safari/537.36"
    )
    return {"Browser": f"Chrome/{known}", "Protocol-Version": PROTOCOL_VERSION, "User-Agent": agent}
