"""The HTTP API of the grid: health, readiness, metrics, workers, sessions. Touches no session's socket."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, Protocol

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pwgrid import __version__
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import EndReason, SessionStatus
from pwgrid.common.types import BROWSER_TYPES
from pwgrid.proxy.connect.refusals import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S
from pwgrid.proxy.connect.upgrade import Counts
from pwgrid.proxy.metrics import CONTENT_TYPE, exposition
from pwgrid.proxy.policy.upgrade_request import Refusal, check_origin, check_token
from pwgrid.proxy.roster import Roster
from pwgrid.registry.registry import Registry, SessionRecord

log = structlog.get_logger()

Endpoint = Callable[[Request], Awaitable[Response]]

MAX_PAGE: Final = 1000
LIVE: Final = ("pending", "running")
CONNECT_HINT: Final = "this is a Playwright grid: connect a Playwright client to ws://<host>:<port>/?browser=chromium"


class Grid(Protocol):
    """What the API sees of the rest of the proxy, and asks of it."""

    roster: Roster
    registry: Registry

    @property
    def counts(self) -> Counts:
        """What the gateway has done."""

    def waiting(self) -> int:
        """Clients in the queue."""

    def ask_drain(self, worker_id: str, reason: str) -> None:
        """Has the master drain a worker."""

    def end_session(self, worker_id: str, session_id: str, reason: str) -> None:
        """Has the master tell a worker to end one of its sessions."""


class Api:
    """The ASGI application. All but health, the hint at / and the icon asks for the grid's token, if it has one.

    No answer takes longer than `timeout_s`, however many questions to Redis it needs.
    """

    def __init__(self, grid: Grid, token: str, allowed_origins: Collection[str], timeout_s: float) -> None:
        self._grid = grid
        self._timeout_s = timeout_s
        self._token = token
        self._allowed_origins = frozenset(allowed_origins)

    def application(self) -> Starlette:
        """What uvicorn serves."""
        handlers: dict[Any, Any] = {
            Refusal: on_refusal,
            RegistryUnavailable: on_outage,
            HTTPException: on_http_error,
            Exception: on_failure,
        }
        return Starlette(
            routes=[
                Route("/", hint, methods=["GET", "HEAD", "POST"]),
                Route("/playwright/{path:path}", hint),
                Route("/favicon.ico", icon),
                Route("/health", health),
                Route("/health/ready", self._ready),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/v1/status", self._guarded(self._status)),
                Route("/v1/workers", self._guarded(self._workers)),
                Route("/v1/workers/{id}/drain", self._guarded(self._drain_worker), methods=["POST"]),
                Route("/v1/sessions", self._guarded(self._sessions)),
                Route("/v1/sessions/{id}", self._guarded(self._session)),
                Route("/v1/sessions/{id}", self._guarded(self._end_session), methods=["DELETE"]),
            ],
            exception_handlers=handlers,
        )

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def check_then_answer(request: Request) -> Response:
            check_origin(request.scope["headers"], self._allowed_origins)
            check_token(self._token, request.scope["headers"], request.query_params.multi_items())
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await endpoint(request)
            except TimeoutError:
                raise RegistryUnavailable(f"no reply within {self._timeout_s:g} s") from None

        return check_then_answer

    async def _ready(self, _request: Request) -> Response:
        roster = self._grid.roster
        reason = roster.not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        retry_after_s = RETRY_AFTER_STOPPING_S if roster.stopping else RETRY_AFTER_S
        return JSONResponse({"status": "not ready", "error": reason}, 503, {"Retry-After": str(retry_after_s)})

    async def _metrics(self, request: Request) -> Response:
        grid = self._grid
        if "application/json" in request.headers.get("accept", ""):
            active, _ = await grid.registry.counters()
            return JSONResponse({"activeConnections": sum(active.values())})
        text = exposition(await grid.registry.snapshot(), grid.roster, grid.counts, grid.waiting())
        return Response(text, media_type=CONTENT_TYPE)

    async def _status(self, _request: Request) -> Response:
        found = await self._grid.registry.snapshot()
        roster = self._grid.roster
        return JSONResponse(
            {
                "ready": roster.not_ready() is None,
                "reason": roster.not_ready(),
                "activeConnections": sum(found.active.values()),
                "waiting": self._grid.waiting(),
                "outcomes": dict(found.outcomes),
                "counterRepairs": found.counter_repairs,
            }
        )

    async def _workers(self, _request: Request) -> Response:
        found = await self._grid.registry.snapshot()
        return JSONResponse(
            {
                "workers": [
                    {
                        "id": worker.worker_id,
                        "browserType": worker.browser_type,
                        "status": worker.status,
                        "active": found.active.get(field, 0),
                        "lifetime": found.lifetime.get(field, 0),
                        "slots": worker.slots,
                        "rssMib": worker.rss_mib,
                        "startedAt": worker.started_at,
                        "wsEndpoint": worker.ws_endpoint,
                    }
                    for field, worker in found.workers.items()
                ]
            }
        )

    async def _drain_worker(self, request: Request) -> Response:
        worker_id = request.path_params["id"]
        if worker_id not in self._grid.roster.workers:
            raise Refusal(404, f"there is no worker {worker_id[:40]!r}: GET /v1/workers lists them")
        self._grid.ask_drain(worker_id, "operator")
        return JSONResponse({"draining": [worker_id]}, 202)

    async def _sessions(self, request: Request) -> Response:
        asked = request.query_params
        try:
            limit = int(asked.get("limit") or 100)
            if not 1 <= limit <= MAX_PAGE:
                raise ValueError(f"limit must be from 1 to {MAX_PAGE}")
            page = await self._grid.registry.sessions(
                status=_one_of("status", asked.get("status"), list(SessionStatus)),
                browser_type=_one_of("browserType", asked.get("browserType"), BROWSER_TYPES),
                worker_id=asked.get("workerId") or None,
                limit=limit,
                cursor=asked.get("cursor") or None,
            )
        except ValueError as error:
            raise Refusal(400, f"bad query: {error}") from None
        return JSONResponse({"sessions": [session.as_json() for session in page.sessions], "cursor": page.cursor})

    async def _session(self, request: Request) -> Response:
        return JSONResponse((await self._find(request)).as_json())

    async def _end_session(self, request: Request) -> Response:
        session = await self._find(request)
        if session.status not in LIVE:
            raise Refusal(409, f"the session has ended already: {session.status}, {session.reason}")
        self._grid.end_session(session.worker_id, session.session_id, EndReason.ENDED_BY_OPERATOR)
        return JSONResponse({"ending": session.session_id}, 202)

    async def _find(self, request: Request) -> SessionRecord:
        session = await self._grid.registry.session(request.path_params["id"])
        if session is None:
            raise Refusal(404, "there is no such session (any more)")
        return session


def _one_of(name: str, asked: str | None, choices: Iterable[str]) -> str | None:
    """What was asked for; None where nothing was. Raises ValueError for what cannot be."""
    if asked and asked not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}")
    return asked or None


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


async def on_outage(_request: Request, error: Exception) -> Response:
    """Redis is away; sessions go on, but there is nothing to show."""
    return JSONResponse({"error": f"the registry does not answer: {error}"}, 503, {"Retry-After": str(RETRY_AFTER_S)})


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, as sentences."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    sentences = {404: f"there is nothing at {path}", 405: f"{request.method} is not possible at {path}"}
    sentence = sentences.get(error.status_code, str(error.detail))
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


async def on_failure(request: Request, error: Exception) -> Response:
    """A bug of ours."""
    log.error("api_failed", path=request.url.path, error=repr(error))
    return JSONResponse({"error": f"the grid failed to answer: {error}"}, 500)
