"""Checks for every request who asks, and whether that one's role is enough.

Each route of the API names the role that it needs. The proxy does not start while one names none.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from websockets.datastructures import Headers

from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.refusal import Refusal


def identify(connection: HTTPConnection, *, from_own_page: bool) -> Identity:
    """Returns who asks, by a request or a WebSocket. Raises Refusal for those who may not use the grid."""
    headers, parameters = Headers(connection.headers.items()), connection.query_params.multi_items()
    local, arrival = connection.scope.get("server"), arrival_of(connection)
    return _access(connection).check(headers, parameters, local, arrival, from_own_page=from_own_page)


def check_open(connection: HTTPConnection) -> None:
    """For what asks for no token. Raises Refusal for a Host that is no name of the grid."""
    # Load balancers check health with HTTP/1.0, which has no Host.
    if "host" in connection.headers or connection.scope.get("http_version") != "1.0":
        headers = Headers(connection.headers.items())
        _access(connection).check_host(headers, connection.scope.get("server"), arrival_of(connection))


def check_client(connection: HTTPConnection) -> Identity:
    """For what takes every token. Returns who asks. Raises Refusal for those who may not use the grid."""
    # Browsers send the dashboard's Origin with its requests, except with GET and HEAD.
    return identify(connection, from_own_page=connection.scope.get("method") not in ("GET", "HEAD"))


def check_operator(identity: Identity) -> Identity:
    """For what takes an operator's token. Raises Refusal for a client's."""
    if not identity.is_operator:
        raise Refusal(
            403,
            f"the token {identity.name} is a client's: it connects, and sees and ends its own sessions; "
            "this takes an operator's",
        )
    return identity


async def _open(request: Request) -> None:
    check_open(request)


async def _client(request: Request) -> Identity:
    return check_client(request)


async def _operator(identity: Annotated[Identity, Depends(_client)]) -> Identity:
    return check_operator(identity)


OPEN_TO_ALL: Final[Any] = Depends(_open)
"""For routes that ask for no token. They still refuse a Host that is no name of the grid."""

NEEDS_CLIENT: Final[Any] = Depends(_client)
"""For routes that take every token; refuses those who may not use the grid."""

NEEDS_OPERATOR: Final[Any] = Depends(_operator)
"""For routes that take an operator's token."""

Client = Annotated[Identity, NEEDS_CLIENT]
Operator = Annotated[Identity, NEEDS_OPERATOR]


def check_all_name_a_role(router: APIRouter) -> None:
    """Raises RuntimeError for a route of the router that names no role."""
    nobody = [
        getattr(route, "path", str(route))
        for route in router.routes
        if not (isinstance(route, APIRoute) and any(_roles(route.dependant)))
    ]
    if nobody:
        raise RuntimeError(f"these routes name no role (pwgrid/proxy/api/roles.py): {', '.join(nobody)}")


def check_role(route: APIRoute, connection: HTTPConnection) -> None:
    """Raises Refusal unless who asks has the role that the route needs."""
    roles = set(_roles(route.dependant))
    if roles == {_open}:
        check_open(connection)
        return
    identity = check_client(connection)
    if _operator in roles:
        check_operator(identity)


def _roles(dependant: Dependant) -> Iterator[object]:
    if dependant.call in (_open, _client, _operator):
        yield dependant.call
    for each in dependant.dependencies:
        yield from _roles(each)


def _access(connection: HTTPConnection) -> Access:
    access: Access = connection.app.state.access
    return access
