"""Counts all answers of the API by route, method and status. Changes no answer."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNKNOWN: Final = "unknown"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Requests = Counter[tuple[str, str, int]]


class RequestCounts:
    """ASGI middleware. Counts a route by its pattern (`/v1/sessions/{id}`), so that clients cannot make labels."""

    def __init__(self, app: ASGIApp, counted: Requests) -> None:
        self._app = app
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # if the application raises, an outer layer answers with this

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else UNKNOWN
            self._counted[getattr(scope.get("route"), "path", UNKNOWN), method, status] += 1
