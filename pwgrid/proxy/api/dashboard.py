"""The routes of the dashboard: its files, its feed, and the live view of a session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import structlog
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.tasks import first_of
from pwgrid.proxy.api.common import address_of
from pwgrid.proxy.api.errors import refused
from pwgrid.proxy.api.roles import OPEN_TO_ALL, identify
from pwgrid.proxy.api.sessions import find_session
from pwgrid.proxy.dashboard.feed import Page
from pwgrid.proxy.dashboard.live_view import SOCKET, close_page, open_view, relay, send_to_page
from pwgrid.proxy.dashboard.page_files import HEADERS, File, files
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal, no_capacity, registry_away

if TYPE_CHECKING:
    from pwgrid.proxy.main import Proxy

log = structlog.get_logger()

SERVICE_RESTART: Final = 1012
"""The WebSocket close code that has the page connect again, to the next proxy."""

TOKEN_LOOK_S: Final = 1.0
"""How often the token of who looks at a session is checked again: it may have been revoked."""


def page_of(request: Request) -> Response | None:
    """Returns the page for a browser that opens the endpoint; None for all other clients."""
    # fetch() and command line tools ask for no HTML.
    if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "").lower():
        return _sent(files()["index.html"], request)
    return None


def file_routes() -> APIRouter:
    """Makes the routes of the page's files. They ask for no token: they hold the page's code and no data."""
    router = APIRouter(include_in_schema=False, dependencies=[OPEN_TO_ALL])

    @router.api_route("/dashboard", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return _sent(files()["index.html"], request)

    @router.api_route("/dashboard/", methods=["GET", "HEAD"])
    async def page_with_slash(request: Request) -> Response:
        """Redirects to the path without the slash, where the page's relative links are right."""
        return RedirectResponse(f"../dashboard?{request.url.query}" if request.url.query else "../dashboard")

    @router.api_route("/dashboard/{name}", methods=["GET", "HEAD"])
    async def file(name: str, request: Request) -> Response:
        if (found := files().get(name)) is None:
            raise Refusal(404, f"there is nothing at /dashboard/{name[:100]}")
        return _sent(found, request)

    return router


def live_routes(grid: Proxy) -> APIRouter:
    """Makes the page's WebSockets: its feed, only for operators, since it shows all sessions; and the live view of one
    session, for operators and the session's own token."""
    router = APIRouter()

    def who(socket: WebSocket) -> Identity:
        return identify(socket, from_own_page=True)

    def operator(socket: WebSocket) -> Identity:
        """As `who`. Raises Refusal for all others, too."""
        identity = who(socket)
        if not identity.is_operator:
            raise Refusal(403, f"the token {identity.name} is a client's: the page takes an operator's")
        return identity

    @router.websocket("/v1/live")
    async def live(socket: WebSocket) -> None:
        try:
            identity = operator(socket)
            if grid.feed.is_full:
                raise no_capacity("too many pages look at this grid already: close some")
        except Refusal as refusal:
            await _deny(socket, refusal)
            return
        await socket.accept()
        you = orjson.dumps({"you": {"name": identity.name, "operator": identity.is_operator}})
        async with grid.feed.page() as page:
            await first_of(_send(socket, page, you, partial(operator, socket)), _until_gone(socket), page.ended.wait())
        await close_page(socket, SERVICE_RESTART)

    @router.websocket("/v1/live/{id}")
    async def view(socket: WebSocket, session_id: Annotated[str, Path(alias="id")]) -> None:
        try:
            reader, writer = await _open_view(grid, who(socket), session_id)
        except (Refusal, RegistryUnavailable) as error:
            await _deny(socket, error)
            return
        try:
            await socket.accept()
            log.info("session_viewed", session=session_id, by=address_of(socket))
            await first_of(relay(socket, reader, writer), _until_refused(partial(who, socket)))
        finally:
            writer.close()
            with contextlib.suppress(RegistryUnavailable):  # the record has the view's begin already
                await grid.registry.note_view(session_id)
            grid.feed.sessions.touch(session_id)
        await close_page(socket)

    return router


async def _open_view(
    grid: Proxy, identity: Identity, session_id: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Records that somebody looks at the session, and connects to the browser server that shows it. Raises Refusal or
    RegistryUnavailable."""
    if not grid.settings.live_view:
        raise Refusal(403, "nobody may look at sessions of this grid: LIVE_VIEW=false forbids it")
    record = await find_session(grid, session_id, identity)
    if record.status != SessionStatus.RUNNING:
        raise Refusal(409, f"the session does not run: it is {record.status}")
    await grid.registry.note_view(session_id)
    grid.feed.sessions.touch(session_id)
    try:
        return await open_view(grid.boot.runtime / "w" / record.worker_id / SOCKET, session_id)
    except OSError:
        raise no_capacity("the worker of this session cannot show it now") from None


async def _deny(socket: WebSocket, error: Refusal | RegistryUnavailable) -> None:
    await socket.send_denial_response(refused(error if isinstance(error, Refusal) else registry_away(error)))


async def _send(socket: WebSocket, page: Page, first: bytes, check: Callable[[], object]) -> None:
    """Until the page is gone, or `check` raises Refusal: it is called before each message, and there is one every 10 s
    at least (pwgrid/proxy/dashboard/feed.py)."""
    with contextlib.suppress(WebSocketDisconnect, Refusal):
        await send_to_page(socket, first.decode())
        while True:
            message = await page.messages.get()
            check()
            await send_to_page(socket, message.decode())


async def _until_gone(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass  # a page has nothing to say


async def _until_refused(check: Callable[[], object]) -> None:
    """Returns once `check` raises Refusal. No event tells that the file of tokens has changed."""
    with contextlib.suppress(Refusal):
        while True:
            await asyncio.sleep(TOKEN_LOOK_S)
            check()


def _sent(file: File, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(None, 304, headers)
    return Response(file.content, 200, headers, file.media_type)
