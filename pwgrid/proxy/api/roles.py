"""The role that each route of the API needs. The proxy does not start while a route names none."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, Depends
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute
from websockets.datastructures import Headers

from pwgrid.proxy.policy.access import Access, Identity
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.tokens.tokens import Role

OPEN: Final = "open"
"""For routes that ask for no token. They still refuse a Host that is no name of the grid."""


class _Open:
    async def __call__(self, request: Request) -> None:
        """Raises Refusal for a foreign Host."""
        # Load balancers check health with HTTP/1.0, which has no Host.
        if "host" in request.headers or request.scope.get("http_version") != "1.0":
            _access(request).check_host(Headers(request.headers.items()), request.scope.get("server"))


class _Needs:
    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Identity:
        """Returns who asks. Raises Refusal for those who may not."""
        # Browsers send the dashboard's Origin with its requests, except with GET and HEAD.
        identity = identify(request, from_own_page=request.method not in ("GET", "HEAD"))
        if self.role is Role.OPERATOR and not identity.is_operator:
            raise Refusal(
                403,
                f"the token {identity.name} is a client's: it connects, and sees and ends its own sessions; "
                "this takes an operator's",
            )
        return identity


def identify(connection: HTTPConnection, *, from_own_page: bool) -> Identity:
    """Returns who asks, by a request or a WebSocket. Raises Refusal for those who may not use the grid."""
    headers, parameters = Headers(connection.headers.items()), connection.query_params.multi_items()
    peer = connection.client.host if connection.client else ""
    local = connection.scope.get("server")
    return _access(connection).check(headers, parameters, local, peer, from_own_page=from_own_page)


open_to_all: Final[Any] = Depends(_Open())
_NEEDS: Final[dict[Role, Any]] = {role: Depends(_Needs(role)) for role in Role}


def needs(role: Role) -> Any:
    """Returns a dependency for a route or router: the least role that it takes. Its value is the Identity."""
    return _NEEDS[role]


def role_of(route: BaseRoute) -> str | None:
    """Returns the role that a route names, a Role or OPEN, or None. Of several the highest counts."""
    if not isinstance(route, APIRoute):
        return None
    calls = [each.call for each in _all_of(route.dependant)]
    roles = [call.role for call in calls if isinstance(call, _Needs)]
    if roles:
        return Role.OPERATOR if Role.OPERATOR in roles else Role.CLIENT
    return OPEN if any(isinstance(call, _Open) for call in calls) else None


def check_all_name_a_role(router: APIRouter) -> None:
    """Raises RuntimeError for a route of the router that names no role."""
    nobody = [getattr(route, "path", str(route)) for route in router.routes if role_of(route) is None]
    if nobody:
        raise RuntimeError(f"these routes name no role (pwgrid/proxy/api/roles.py): {', '.join(nobody)}")


def _all_of(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from _all_of(each)


def _access(connection: HTTPConnection) -> Access:
    access: Access = connection.app.state.access
    return access
