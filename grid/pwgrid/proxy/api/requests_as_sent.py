"""Shows the API each request as its client has sent it, before any reverse proxy: its address, and the path below that
of the grid."""

from typing import Final
from urllib.parse import unquote

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from pwgrid.proxy.api.errors import refused
from pwgrid.proxy.policy.access import Access
from pwgrid.proxy.policy.arrival import Arrival
from pwgrid.proxy.policy.refusal import Refusal

ARRIVAL: Final = "pwgrid.arrival"
"""The key of an Arrival in a scope."""


class RequestsAsSent:
    """ASGI middleware, the outermost. Refuses requests whose header fields contradict each other."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._arrivals = access.arrivals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            arrival = self._arrivals.of(HTTPConnection(scope).headers.getlist, scope.get("client"), scope.get("server"))
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send)
            return
        # Not as root_path: a prefix may be the beginning of a path of ours, as /v1 is.
        path = arrival._replace(prefix=unquote(arrival.prefix)).without_prefix(scope["path"])
        await self._app({**scope, "path": path, ARRIVAL: arrival}, receive, send)


def arrival_of(connection: HTTPConnection) -> Arrival:
    """How this request or WebSocket has come."""
    arrival: Arrival = connection.scope[ARRIVAL]
    return arrival
