"""Answers what no route of the API takes: unknown paths, other methods, OPTIONS. HEAD gets the answer of GET, and a
slash at the end of a path is ignored. The framework's own answers would check nobody: neither Host nor token.
"""

from collections.abc import Iterable
from typing import Final

from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from pwgrid.proxy.api.roles import check_client, check_role
from pwgrid.proxy.policy.refusal import Refusal, nothing_at

_WITH_SLASH: Final = ("/", "/dashboard/")
"""Paths that end in a slash: the second redirects to the page's other address."""

ALL_OF_SERVER: Final = "*"
"""The target of an OPTIONS that is about no path (RFC 9110, 9.3.7)."""


class UsualRequests:
    """ASGI middleware: a HEAD becomes a GET, whose body uvicorn does not send, and a path loses a slash at its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = dict(scope)  # uvicorn looks at the method of its own
        if inner.get("method") == "HEAD":
            inner["method"] = "GET"
        path = inner.get("path", "")
        if path.endswith("/") and not path.endswith("//") and path not in _WITH_SLASH:
            inner["path"] = path[:-1]
        try:
            await self._app(inner, receive, send)
        finally:
            scope["route"] = inner.get("route")


class WithoutRoute(BaseRoute):
    """The last route: takes what none of `routes` does. A path needs the role that its routes need, whatever is asked
    for there; an unknown one that of a client."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self._routes = tuple(routes)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        path, method = scope["path"], scope["method"] if is_http else ""
        asked = "/" if (path, method) == (ALL_OF_SERVER, "OPTIONS") else path
        there = [route for route in self._routes if is_http and route.path_regex.match(asked)]
        if not there:
            check_client(HTTPConnection(scope))
            raise nothing_at(path)
        check_role(there[0], HTTPConnection(scope))
        scope["route"] = there[0]
        methods = {method for route in there for method in route.methods or ()} | {"OPTIONS"}
        allow = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        if method == "OPTIONS":  # says nothing of other origins: no page of theirs may read the grid
            await Response(status_code=204, headers={"Allow": allow})(scope, receive, send)
            return
        raise Refusal(405, f"{method[:20]} is not possible at {path[:100]}: use {allow}", headers=(("Allow", allow),))
