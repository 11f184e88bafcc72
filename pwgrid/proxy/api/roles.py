"""The role that each route of the API needs. The proxy does not start while a route names none."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from websockets.datastructures import Headers

from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.refusal import Refusal


def identify(connection: HTTPConnection, *, from_own_page: bool) -> Identity:
    """Returns who asks, by a request or a WebSocket. Raises Refusal for those who may not use the grid."""
    headers, parameters = Headers(connection.headers.items()), connection.query_params.multi_items()
    peer = connection.client.host if connection.client else ""
    local = connection.scope.get("server")
    return _access(connection).check(headers, parameters, local, peer, from_own_page=from_own_page)


async def _open(request: Request) -> None:
    # Load balancers check health with HTTP/1.0, which has no Host.
    if "host" in request.headers or request.scope.get("http_version") != "1.0":
        _access(request).check_host(Headers(request.headers.items()), request.scope.get("server"))


async def _client(request: Request) -> Identity:
    # Browsers send the dashboard's Origin with its requests, except with GET and HEAD.
    return identify(request, from_own_page=request.method not in ("GET", "HEAD"))


async def _operator(identity: Annotated[Identity, Depends(_client)]) -> Identity:
    if not identity.is_operator:
        raise Refusal(
            403,
            f"the token {identity.name} is a client's: it connects, and sees and ends its own sessions; "
            "this takes an operator's",
        )
    return identity


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
        if not (isinstance(route, APIRoute) and _names_a_role(route.dependant))
    ]
    if nobody:
        raise RuntimeError(f"these routes name no role (pwgrid/proxy/api/roles.py): {', '.join(nobody)}")


def _names_a_role(dependant: Dependant) -> bool:
    return dependant.call in (_open, _client, _operator) or any(map(_names_a_role, dependant.dependencies))


def _access(connection: HTTPConnection) -> Access:
    access: Access = connection.app.state.access
    return access
