"""The live view of a session: passes on to an operator's page what a browser server shows.

At most one packet is kept here: the page asks for each frame.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Annotated, Any, Final

import orjson
import structlog
from fastapi import APIRouter, Path
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.tasks import first_of
from pwgrid.proxy.api.hosts import check_is_here
from pwgrid.proxy.api.page_socket import close_page, send_to_page, until_refused, who_looks
from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.api.sessions import find_session
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal, no_capacity
from pwgrid.proxy.services import Services
from pwgrid.runtime.directory import worker_dir

log = structlog.get_logger()

SOCKET: Final = "live.sock"
"""In the worker's directory; pwgrid/worker/browser/live_view.cjs listens there."""

CONNECT_S: Final = 2.0
_HEADER_BYTES: Final = 5
_JSON: Final = 0
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Of one frame."""


def live_view_route(grid: Services) -> APIRouter:
    """Makes the WebSocket that shows one session, for operators and the session's own token. What is raised before it
    is accepted refuses it."""
    router = APIRouter()

    @router.websocket("/v1/live/{id}")
    async def view(socket: WebSocket, session_id: Annotated[str, Path(alias="id")]) -> None:
        reader, writer = await _open_view(grid, who_looks(socket), session_id)
        try:
            await socket.accept()
            log.info("session_viewed", session=session_id, by=str(arrival_of(socket)))
            await first_of(relay(socket, reader, writer), until_refused(partial(who_looks, socket)))
        finally:
            writer.close()
            with contextlib.suppress(RegistryUnavailable):  # the record has the view's begin already
                await grid.registry.note_view(session_id)
            grid.feed.sessions.touch(session_id)
        await close_page(socket)

    return router


async def _open_view(
    grid: Services, identity: Identity, session_id: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Records that somebody looks at the session, and connects to the browser server that shows it. Raises Refusal or
    RegistryUnavailable."""
    if not grid.settings.live_view:
        raise Refusal(403, "nobody may look at sessions of this grid: LIVE_VIEW=false forbids it")
    record = await find_session(grid, session_id, identity)
    if record.status != SessionStatus.RUNNING:
        raise Refusal(409, f"the session does not run: it is {record.status}")
    check_is_here(grid, record, "the pages")
    try:
        path = worker_dir(grid.runtime, record.worker_id)
    except ValueError:  # whatever is in Redis
        raise _not_shown() from None
    await grid.registry.note_view(session_id)
    grid.feed.sessions.touch(session_id)
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(path / SOCKET)
    except OSError:
        raise _not_shown() from None
    writer.write(_packet({"session": session_id, "operator": identity.is_operator}))
    return reader, writer


def _not_shown() -> Refusal:
    return no_capacity("the worker of this session cannot show it now")


async def relay(socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relays until the session, the page or the browser server ends. The caller closes `writer`."""
    await first_of(_show(socket, reader), _hear(socket, writer))


async def _show(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, WebSocketDisconnect):
        while True:
            header = await reader.readexactly(_HEADER_BYTES)
            size = int.from_bytes(header[:4], "big")
            if size > _MOST_BYTES:
                return
            content = await reader.readexactly(size)
            await send_to_page(socket, content.decode() if header[4] == _JSON else content)


async def _hear(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            said = _read(message)
            if said.get("ack") is True:
                writer.write(_packet({"ack": True}))
            elif isinstance(page := said.get("page"), str):
                writer.write(_packet({"page": page[:200]}))
            await writer.drain()


def _read(message: Message) -> dict[str, Any]:
    """What a page says; empty where that makes no sense."""
    try:
        said = orjson.loads(message.get("bytes") or b"")
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _packet(said: dict[str, Any]) -> bytes:
    content = orjson.dumps(said)
    return len(content).to_bytes(4, "big") + bytes([_JSON]) + content
