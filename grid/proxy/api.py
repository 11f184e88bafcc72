"""The HTTP API of the grid: health, readiness, metrics. Reads what the proxy knows; touches no session's socket."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grid import __version__
from grid.core.upgrade import Refusal, check_token
from grid.proxy.responses import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S
from grid.proxy.roster import Roster

log = structlog.get_logger()

Endpoint = Callable[[Request], Awaitable[Response]]

CONNECT_HINT = "this is a Playwright grid: connect a Playwright client to ws://<host>:<port>/?browser=chromium"


class Figures(Protocol):
    """What the API reads of the rest of the proxy."""

    roster: Roster

    async def active_connections(self) -> int:
        """Live sessions in the whole grid."""

    def waiting(self) -> int:
        """Clients in the queue."""


class Api:
    """The ASGI application. All but health, the hint at / and the icon asks for the grid's token, if it has one."""

    def __init__(self, figures: Figures, token: str) -> None:
        self._figures = figures
        self._token = token

    def application(self) -> Starlette:
        """What uvicorn serves."""
        handlers: dict[Any, Any] = {Refusal: on_refusal, HTTPException: on_http_error, Exception: on_failure}
        return Starlette(
            routes=[
                Route("/", hint, methods=["GET", "HEAD", "POST"]),
                Route("/playwright/{path:path}", hint),
                Route("/favicon.ico", icon),
                Route("/health", health),
                Route("/health/ready", self._ready),
                Route("/metrics", self._guarded(self._metrics)),
            ],
            exception_handlers=handlers,
        )

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def check_then_answer(request: Request) -> Response:
            check_token(self._token, request.scope["headers"], request.query_params.multi_items())
            return await endpoint(request)

        return check_then_answer

    async def _ready(self, _request: Request) -> Response:
        roster = self._figures.roster
        reason = roster.not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        retry_after_s = RETRY_AFTER_STOPPING_S if roster.stopping else RETRY_AFTER_S
        return JSONResponse({"status": "not ready", "error": reason}, 503, {"Retry-After": str(retry_after_s)})

    async def _metrics(self, _request: Request) -> Response:
        figures = self._figures
        return JSONResponse({"activeConnections": await figures.active_connections(), "waiting": figures.waiting()})


async def health(_request: Request) -> Response:
    """The proxy lives."""
    return JSONResponse({"status": "ok", "version": __version__})


async def icon(_request: Request) -> Response:
    """Browsers ask for it."""
    return Response(status_code=204)


async def hint(_request: Request) -> Response:
    """Somebody opened the endpoint without a Playwright client."""
    return JSONResponse({"error": CONNECT_HINT}, 426, {"Upgrade": "websocket", "Connection": "Upgrade"})


async def on_refusal(_request: Request, refusal: Exception) -> Response:
    """A refusal has the same shape everywhere."""
    assert isinstance(refusal, Refusal)
    return JSONResponse({"error": refusal.error, **refusal.details}, refusal.status, dict(refusal.headers))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, as sentences."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    sentences = {404: f"there is nothing at {path}", 405: f"{request.method} is not possible at {path}"}
    sentence = sentences.get(error.status_code, str(error.detail))
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


async def on_failure(request: Request, error: Exception) -> Response:
    """Redis is away, or we have a bug."""
    log.error("api_failed", path=request.url.path, error=repr(error))
    return JSONResponse({"error": f"the grid failed to answer: {error}"}, 500)
