"""What several modules of routes use: query parameters, the form of refusals in the API's description, addresses."""

from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import BeforeValidator
from starlette.requests import HTTPConnection

from pwgrid.proxy.api import models

MAX_PAGE: Final = 1000

NoneIfEmpty = BeforeValidator(lambda given: given or None)
"""An empty filter counts as not given."""

PageSize = Annotated[int, BeforeValidator(lambda given: given or 100), Query(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str | None, NoneIfEmpty, Query()]


def problems(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that refuses with these statuses. With "4XX" among them FastAPI does not add
    the 422 that this API never answers."""
    return {status: {"model": models.Problem} for status in statuses}


def address_of(client: HTTPConnection) -> str:
    """Returns the client's host and port for the log; a Unix socket has none."""
    return f"{client.client.host}:{client.client.port}" if client.client else "unknown"
