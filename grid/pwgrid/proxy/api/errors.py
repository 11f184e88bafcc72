"""The one form of every error of the API: a JSON object with its sentence."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.proxy.api import models
from pwgrid.proxy.policy.refusal import Refusal, registry_away
from pwgrid.proxy.select.claim import ClientGone

log = structlog.get_logger()

JSON: Final = "application/json"


def problems(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that refuses with these statuses. With "4XX" among them FastAPI does not add
    the 422 that this API never answers."""
    return {status: {"model": models.Problem} for status in statuses}


def refused(refusal: Refusal) -> Response:
    """The answer for a refusal."""
    return Response(refusal.body(), refusal.status, dict(refusal.headers), JSON)


async def _on_refusal(_request: Request, refusal: Refusal) -> Response:
    return refused(refusal)


async def _on_outage(_request: Request, error: RegistryUnavailable) -> Response:
    return refused(registry_away(error))


_NO_BODY: Final = "bad body: send one JSON object, with Content-Type: application/json"
"""Says what a body has to be. FastAPI answers 400 by itself only for one that it cannot read."""


async def _on_bad_query(_request: Request, error: RequestValidationError) -> Response:
    if any(each["loc"] == ("body",) or each["type"] == "json_invalid" for each in error.errors()):
        return refused(Refusal(400, _NO_BODY))
    wrong = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    what = "body" if any(each["loc"][0] == "body" for each in error.errors()) else "query"
    return refused(Refusal(400, f"bad {what}: {wrong}"))


async def _on_http_error(_request: Request, error: HTTPException) -> Response:
    """Turns FastAPI's own errors into sentences."""
    sentence = _NO_BODY if error.status_code == 400 else str(error.detail)
    return Response(orjson.dumps({"error": sentence}), error.status_code, error.headers, JSON)


async def _on_client_gone(_request: Request, _gone: ClientGone) -> Response:
    """Answers a client that has left with the status that web servers log for that; nobody reads it."""
    return Response(status_code=499)


async def _on_failure(request: Request, error: Exception) -> Response:
    """Answers after a bug."""
    log.error("api_failed", path=request.url.path, error=repr(error))
    return refused(Refusal(500, "the grid failed to answer, and its log says why"))


HANDLERS: Final[dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]] = {
    Refusal: _on_refusal,
    RegistryUnavailable: _on_outage,
    RequestValidationError: _on_bad_query,
    HTTPException: _on_http_error,
    ClientGone: _on_client_gone,
    Exception: _on_failure,
}
