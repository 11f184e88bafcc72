"""The WebSocket of the dashboard's page, on which it gets the feed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

import orjson
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from pwgrid.common.tasks import first_of
from pwgrid.proxy.api.roles import identify
from pwgrid.proxy.dashboard.feed import MOST_PAGES, Page
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.services import Services

NORMAL: Final = 1000
SERVICE_RESTART: Final = 1012
"""The WebSocket close code that has the page connect again, to the next proxy."""

TRY_AGAIN_LATER: Final = 1013
"""The WebSocket close code where as many look as may, and while it cannot be recorded that somebody looks."""

TOKEN_CHECK_INTERVAL_S: Final = 1.0
"""The token of who has a page open is checked again and again: it may have been revoked."""


def page_route(grid: Services) -> APIRouter:
    """Makes the page's WebSocket, for operators only, since it shows all sessions. What is raised before it is accepted
    refuses it."""
    router = APIRouter()

    @router.websocket("/v1/live")
    async def live(socket: WebSocket) -> None:
        identity = _operator(socket)
        await socket.accept()
        if grid.feed.is_full:  # a refusal would not tell the page why: browsers do not
            with contextlib.suppress(WebSocketDisconnect):
                await send_to_page(socket, orjson.dumps({"full": MOST_PAGES}).decode())
            return await close_page(socket, TRY_AGAIN_LATER)
        you = orjson.dumps({"you": {"name": identity.name, "operator": identity.is_operator}})
        check = partial(_operator, socket)
        async with grid.feed.page() as page:
            # `until_refused` for a page that reads nothing, or is told nothing for a while.
            sends = _send(socket, page, you, check)
            await first_of(sends, _until_gone(socket), page.ended.wait(), until_refused(check))
        await close_page(socket, SERVICE_RESTART)

    return router


def who_looks(socket: WebSocket) -> Identity:
    """Returns who opens a WebSocket of the page. Raises Refusal for those who may not use the grid."""
    return identify(socket, from_own_page=True)


def _operator(socket: WebSocket) -> Identity:
    """As `who_looks`. Raises Refusal also for those who are no operators."""
    identity = who_looks(socket)
    if not identity.is_operator:
        raise Refusal(403, f"the token {identity.name} is a client's: the page takes an operator's")
    return identity


async def _send(socket: WebSocket, page: Page, first: bytes, check: Callable[[], object]) -> None:
    """Sends messages until the page is gone, or `check` raises Refusal: it is called before each message, and there is
    one at least every 10 s (pwgrid/proxy/dashboard/feed.py)."""
    with contextlib.suppress(WebSocketDisconnect, Refusal):
        await send_to_page(socket, first.decode())
        while True:
            message = await page.messages.get()
            check()
            await send_to_page(socket, message.decode())


async def _until_gone(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass  # a page has nothing to say


async def until_refused(check: Callable[[], object]) -> None:
    """Returns once `check` raises Refusal. No event tells that the file of tokens has changed."""
    with contextlib.suppress(Refusal):
        while True:
            await asyncio.sleep(TOKEN_CHECK_INTERVAL_S)
            check()


async def send_to_page(socket: WebSocket, message: str | bytes) -> None:
    """Raises WebSocketDisconnect where the page is gone. uvicorn itself closes the connection of a page that
    answers no ping or sends invalid frames; a send then raises RuntimeError."""
    try:
        await (socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message))
    except RuntimeError as error:
        raise WebSocketDisconnect(1006, str(error)) from None


async def close_page(socket: WebSocket, code: int = NORMAL) -> None:
    """Closes the page's connection, if it is not closed already."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # as above
        await socket.close(code)
