"""The FastAPI application: its routes, who may use them, and the one form of every error."""

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import orjson
import structlog
from fastapi import APIRouter, Depends, FastAPI, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pwgrid import __version__
from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import LIVE, EndReason, SessionStatus
from pwgrid.common.types import BrowserType
from pwgrid.proxy.api import dashboard, models
from pwgrid.proxy.api.common import Cursor, NoneIfEmpty, PageSize, problems
from pwgrid.proxy.api.docs import docs_routes
from pwgrid.proxy.api.leases import lease_routes, on_client_gone
from pwgrid.proxy.api.metrics import CONTENT_TYPE, Scrape, exposition
from pwgrid.proxy.api.pools import pool_command_routes, pool_routes
from pwgrid.proxy.api.request_counts import RequestCounts, Requests
from pwgrid.proxy.api.roles import check_all_name_a_role, needs, open_to_all
from pwgrid.proxy.connect.refusal_sentences import RETRY_AFTER_S, RETRY_AFTER_STOPPING_S, body_of, registry_away
from pwgrid.proxy.policy.accept_or_refuse import CONNECT_HINT
from pwgrid.proxy.policy.access import ANYBODY, Access, Identity
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.select.queue import ClientGone
from pwgrid.registry.records import SessionRecord
from pwgrid.tokens.tokens import Role

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy

log = structlog.get_logger()

JSON: Final = "application/json"


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
    )
    for error, handler in _HANDLERS.items():
        app.add_exception_handler(error, handler)
    requests = Requests()
    app.add_middleware(RequestCounts, counted=requests)
    app.state.access = access
    takes_token = {"dependencies": [Depends(HTTPBearer(auto_error=False))], "responses": problems(401, 403, 429, 503)}
    routers: list[tuple[APIRouter, dict[str, Any]]] = [
        (_open_routes(grid), {}),
        (dashboard.file_routes(), {}),
        (docs_routes(), {}),
        (_client_routes(grid), takes_token),  # its security scheme is for /docs
        (lease_routes(grid), takes_token),
        (_operator_routes(grid), takes_token),
        (_metrics_route(grid, requests), takes_token),
        (pool_routes(grid), takes_token),
        (pool_command_routes(grid), takes_token),
    ]
    for router, of_all in routers:
        check_all_name_a_role(router)
        app.include_router(router, **of_all)
    app.include_router(dashboard.live_routes(grid, access))  # WebSockets, which check roles themselves
    return app


def _open_routes(grid: "Proxy") -> APIRouter:
    router = APIRouter(tags=["health"], dependencies=[open_to_all])

    @router.api_route("/", methods=["GET", "HEAD", "POST"], include_in_schema=False)
    @router.get("/playwright/{path:path}", include_in_schema=False)
    @router.get("/lease/{path:path}", include_in_schema=False)
    async def hint(request: Request) -> Response:
        """Answers requests that are no WebSocket upgrade: a browser at / gets the dashboard, all others a hint."""
        if request.url.path == "/" and (page := dashboard.page_of(request)) is not None:
            return page
        return _refused(Refusal(426, CONNECT_HINT, headers=(("Upgrade", "websocket"), ("Connection", "Upgrade"))))

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


def _metrics_route(grid: "Proxy", requests: Requests) -> APIRouter:
    router = APIRouter(dependencies=[needs(Role.OPERATOR)])

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


def _operator_routes(grid: "Proxy") -> APIRouter:
    router = APIRouter(dependencies=[needs(Role.OPERATOR)])

    @router.get("/v1/status", tags=["grid"])
    async def status() -> models.Status:
        """Readiness and its reason, live sessions, waiting clients, outcomes."""
        found = await grid.registry.snapshot()
        reason = await grid.readiness.problem(found)
        return models.Status(
            ready=reason is None,
            reason=reason,
            active_connections=sum(found.active.values()),
            waiting=grid.queue.waiting(),
            waiting_by_run=[models.WaitingRun(**each._asdict()) for each in grid.queue.waiting_by_run()],
            clients=models.Clients.model_validate(asdict(grid.gateway.counts)),
            outcomes=dict(found.outcomes),
            taken_back=dict(found.taken_back),
            counter_repairs=found.counter_repairs,
        )

    @router.get("/v1/workers", tags=["workers"])
    async def workers(identity: Annotated[Identity, needs(Role.OPERATOR)]) -> models.Workers:
        """The registered workers with their counters. `wsEndpoint` is a secret of operators: null if the grid asks for
        no token, since then anybody may ask."""
        return models.Workers.of(await grid.registry.snapshot(), with_endpoints=identity is not ANYBODY)

    @router.post("/v1/workers/{id}/drain", tags=["workers"], status_code=202, responses=problems(404))
    async def drain(worker_id: Annotated[str, Path(alias="id")], now: bool = False) -> models.Draining:
        """Drains a worker: it takes no new session and ends when its live ones have ended; its replacement starts at
        once. With `now` its live sessions end at once, too."""
        if worker_id not in grid.roster.workers:
            raise Refusal(404, f"there is no worker {worker_id[:40]!r}: GET /v1/workers lists them")
        grid.ask_drain(worker_id, "operator", now=now)
        return models.Draining(draining=[worker_id])

    return router


def _client_routes(grid: "Proxy") -> APIRouter:
    """Makes the routes of sessions: a client sees and ends its own, an operator all."""
    router = APIRouter(dependencies=[needs(Role.CLIENT)])
    who = Annotated[Identity, needs(Role.CLIENT)]

    async def find(session_id: Annotated[str, Path(alias="id")], identity: who) -> SessionRecord:
        session = await grid.registry.session(session_id)
        if session is None or not identity.may_see(session.token):
            raise Refusal(404, "there is no such session (any more)")
        return session

    found_session = Annotated[SessionRecord, Depends(find)]

    @router.get("/v1/sessions", tags=["sessions"], responses=problems(400))
    async def sessions(
        identity: who,
        status: Annotated[SessionStatus | None, NoneIfEmpty, Query()] = None,
        browser_type: Annotated[BrowserType | None, NoneIfEmpty, Query(alias="browserType")] = None,
        worker_id: Annotated[str | None, NoneIfEmpty, Query(alias="workerId")] = None,
        limit: PageSize = 100,
        cursor: Cursor = None,
    ) -> models.Sessions:
        """Sessions that pass all given filters, the newest first; for a client only those of its token."""
        filters = {"status": status, "browser_type": browser_type, "worker_id": worker_id}
        try:
            page = await grid.registry.sessions(**filters, token=identity.sees_only, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Refusal(400, f"bad query: {error}") from None
        return models.Sessions(sessions=[models.Session.of(each) for each in page.sessions], cursor=page.cursor)

    @router.get("/v1/sessions/{id}", tags=["sessions"], responses=problems(404))
    async def session(found: found_session) -> models.Session:
        """One session: status, reason, times, client, bytes."""
        return models.Session.of(found)

    @router.delete(
        "/v1/sessions/{id}",
        tags=["sessions"],
        status_code=202,
        responses=problems(404, 409),
    )
    async def end_session(found: found_session) -> models.Ending:
        """Ends a live session; its client hears that an operator ended it."""
        if found.status not in LIVE:
            raise Refusal(409, f"the session has ended already: {found.status}, {found.reason}")
        grid.end_session(found.worker_id, found.session_id, EndReason.ENDED_BY_OPERATOR)
        return models.Ending(ending=found.session_id)

    return router


# Every error has the same form


def _refused(refusal: Refusal) -> Response:
    return Response(body_of(refusal), refusal.status, dict(refusal.headers), JSON)


async def _on_refusal(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return _refused(refusal)


async def _on_outage(_request: Request, error: Exception) -> Response:
    """Answers while Redis is away."""
    headers = (("Retry-After", str(RETRY_AFTER_S)),)
    return _refused(Refusal(503, registry_away(error), headers=headers))


_NO_BODY: Final = "bad body: send one JSON object, with Content-Type: application/json"
"""Says what a body has to be. FastAPI answers 400 by itself only for one that it cannot read."""


async def _on_bad_query(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if any(each["loc"] == ("body",) or each["type"] == "json_invalid" for each in error.errors()):
        return _refused(Refusal(400, _NO_BODY))
    wrong = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    what = "body" if any(each["loc"][0] == "body" for each in error.errors()) else "query"
    return _refused(Refusal(400, f"bad {what}: {wrong}"))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Turns Starlette's own errors into sentences."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    sentences = {400: _NO_BODY, 404: f"there is nothing at {path}", 405: f"{request.method} is not possible at {path}"}
    sentence = sentences.get(error.status_code, str(error.detail))
    return Response(orjson.dumps({"error": sentence}), error.status_code, error.headers, JSON)


async def _on_failure(request: Request, error: Exception) -> Response:
    """Answers after a bug."""
    log.error("api_failed", path=request.url.path, error=repr(error))
    return _refused(Refusal(500, "the grid failed to answer, and its log says why"))


_Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]
_HANDLERS: Final[dict[type[Exception], _Handler]] = {
    Refusal: _on_refusal,
    RegistryUnavailable: _on_outage,
    RequestValidationError: _on_bad_query,
    HTTPException: _on_http_error,
    ClientGone: on_client_gone,
    Exception: _on_failure,
}
