"""The live view of a session: passes on to an operator's page what a browser server shows.

At most one packet is kept here: the page asks for each frame. Before the first one that shows something of a session
goes to the page, the session's record has that somebody looks. A session of another host is shown by that host's proxy,
to which this one opens a WebSocket of the same kind as a page's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final

import orjson
import structlog
from fastapi import APIRouter, Path
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.tasks import first_of
from pwgrid.proxy.api.hosts import host_of_session
from pwgrid.proxy.api.page_socket import (
    NORMAL,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    close_page,
    send_to_page,
    until_refused,
    who_looks,
)
from pwgrid.proxy.api.requests_as_sent import arrival_of
from pwgrid.proxy.api.sessions import find_session
from pwgrid.proxy.connect.forwarding import MOST_SHOWN_BYTES
from pwgrid.proxy.connect.handoff_link import HandoffFailure
from pwgrid.proxy.hosts.host_table import OtherHost
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.forward_message import PATH, VIEW_PATH, forward_in
from pwgrid.proxy.policy.refusal import Refusal, no_capacity, nothing_at
from pwgrid.proxy.services import Services
from pwgrid.registry.records import SessionRecord
from pwgrid.runtime.directory import worker_dir

log = structlog.get_logger()

SOCKET: Final = "live.sock"
"""In the worker's directory; pwgrid/worker/browser/live_view.cjs listens there."""

CONNECT_S: Final = 2.0

_HEADER_BYTES: Final = 5
_JSON: Final = 0


BeforeShown = Callable[[str | bytes], Awaitable[None]]
"""Is called with each message before the page gets it."""


class _Look:
    """Records that somebody, `by`, looks at a session: once there is something to see, until `end`."""

    def __init__(self, grid: Services, session_id: str, by: str) -> None:
        self._grid = grid
        self._session_id = session_id
        self._by = by
        self._is_noted = False

    async def before(self, message: str | bytes) -> None:
        """Raises RegistryUnavailable: then nothing may be shown."""
        if not self._is_noted and _shows_something(message):
            await self._note()
            self._is_noted = True
            log.info("session_viewed", session=self._session_id, by=self._by)

    async def end(self) -> None:
        if self._is_noted:
            with contextlib.suppress(RegistryUnavailable):  # the record has the view's begin already
                await self._note()

    async def _note(self) -> None:
        await self._grid.registry.note_view(self._session_id)
        self._grid.feed.sessions.touch(self._session_id)


def _shows_something(message: str | bytes) -> bool:
    """Whether it is a frame or a list of pages, and not that the session is over, or that too many look already."""
    return isinstance(message, bytes) or "pages" in _object(message.encode())


def live_view_route(grid: Services) -> APIRouter:
    """Makes the WebSockets that show one session: for operators and the session's own token, and for other hosts'
    proxies. What is raised before they are accepted refuses them."""
    router = APIRouter()

    @router.websocket("/v1/live/{id}")
    async def view(socket: WebSocket, session_id: Annotated[str, Path(alias="id")]) -> None:
        identity = who_looks(socket)
        session = await _session_to_show(grid, identity, session_id)
        look, there = _Look(grid, session_id, str(arrival_of(socket))), None
        async with contextlib.AsyncExitStack() as stack:
            if (host := host_of_session(grid, session)) is None:
                reader, writer = await _connected(grid, session.worker_id, session_id, is_operator=identity.is_operator)
                stack.callback(writer.close)
                shows = partial(relay, socket, reader, writer, look.before)
            else:
                asked = {"worker": session.worker_id, "session": session_id, "operator": identity.is_operator}
                there = await stack.enter_async_context(_shown_by(grid, host, asked))
                shows = partial(relay_from_host, socket, there, look.before)
            stack.push_async_callback(look.end)
            await socket.accept()
            try:
                await first_of(shows(), until_refused(partial(who_looks, socket)), grid.feed.ended.wait())
            except RegistryUnavailable:
                return await close_page(socket, TRY_AGAIN_LATER)
        is_proxy_s_end = grid.feed.ended.is_set() or (there is not None and there.close_code == SERVICE_RESTART)
        await close_page(socket, SERVICE_RESTART if is_proxy_s_end else NORMAL)

    @router.websocket(f"{VIEW_PATH}{{id}}")
    async def for_host(socket: WebSocket, forward_id: Annotated[str, Path(alias="id")]) -> None:
        """Asks for no token: whoever knows the id of what was left in Redis has been told it by who has left it
        there. That host has checked who looks, and ends the connection when that one may no longer."""
        if (others := grid.gateway.from_other_hosts) is None or not forward_in(f"{PATH}{forward_id}"):
            raise nothing_at(f"{VIEW_PATH}{forward_id}")
        asked = (await others.taken(forward_id)).get("view")
        if not isinstance(asked, dict):
            raise nothing_at(f"{VIEW_PATH}{forward_id}")
        _check_allowed(grid)
        session = (str(asked.get("worker")), str(asked.get("session")))
        reader, writer = await _connected(grid, *session, is_operator=asked.get("operator") is True)
        with contextlib.closing(writer):
            await socket.accept()
            await first_of(relay(socket, reader, writer), grid.feed.ended.wait())
        await close_page(socket, SERVICE_RESTART if grid.feed.ended.is_set() else NORMAL)

    return router


def _check_allowed(grid: Services) -> None:
    if not grid.settings.live_view:
        raise Refusal(403, "nobody may look at sessions of this grid: LIVE_VIEW=false forbids it")


async def _session_to_show(grid: Services, identity: Identity, session_id: str) -> SessionRecord:
    """Raises Refusal or RegistryUnavailable."""
    _check_allowed(grid)
    record = await find_session(grid, session_id, identity)
    if record.status != SessionStatus.RUNNING:
        raise Refusal(409, f"the session does not run: it is {record.status}")
    return record


async def _connected(
    grid: Services, worker_id: str, session_id: str, *, is_operator: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to the browser server of this host that shows the session. Raises Refusal."""
    try:
        path = worker_dir(grid.runtime, worker_id)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(path / SOCKET)
    except (ValueError, OSError):  # ValueError: whatever is in Redis
        raise _not_shown() from None
    writer.write(_packet({"session": session_id, "operator": is_operator}))
    return reader, writer


@contextlib.asynccontextmanager
async def _shown_by(grid: Services, host: OtherHost, asked: dict[str, Any]) -> AsyncIterator[ClientConnection]:
    """Gives the WebSocket on which another host shows the session. Raises Refusal."""
    if (forwarding := grid.gateway.forwarding) is None:
        raise no_capacity("the session is on another host, and this one stands alone: set ADVERTISED_HOST")
    async with contextlib.AsyncExitStack() as stack:
        try:
            there = await stack.enter_async_context(forwarding.view(host, {"view": asked}))
        except HandoffFailure as failure:
            raise no_capacity(f"the session cannot be shown: {failure}") from None
        yield there


def _not_shown() -> Refusal:
    return no_capacity("the worker of this session cannot show it now")


async def _pass_on(_message: str | bytes) -> None:
    """Another host's proxy has checked and records who looks."""


async def relay(
    socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, before: BeforeShown = _pass_on
) -> None:
    """Relays until the session, the page or the browser server ends. The caller closes `writer`."""
    await first_of(_show(socket, reader, before), _hear(socket, writer))


async def relay_from_host(socket: WebSocket, there: ClientConnection, before: BeforeShown) -> None:
    """The same for a session that another host shows: message by message, as they are."""
    await first_of(_show_from_host(socket, there, before), _hear_for_host(socket, there))


async def _show_from_host(socket: WebSocket, there: ClientConnection, before: BeforeShown) -> None:
    with contextlib.suppress(ConnectionClosed, WebSocketDisconnect):
        while True:
            message = await there.recv()
            await before(message)
            await send_to_page(socket, message)


async def _hear_for_host(socket: WebSocket, there: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            await there.send(message.get("bytes") or b"")


async def _show(socket: WebSocket, reader: asyncio.StreamReader, before: BeforeShown) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, WebSocketDisconnect):
        while True:
            header = await reader.readexactly(_HEADER_BYTES)
            size = int.from_bytes(header[:4], "big")
            if size > MOST_SHOWN_BYTES:
                return
            content = await reader.readexactly(size)
            message = content.decode() if header[4] == _JSON else content
            await before(message)
            await send_to_page(socket, message)


async def _hear(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            said = _object(message.get("bytes") or b"")
            if said.get("ack") is True:
                writer.write(_packet({"ack": True}))
            elif isinstance(page := said.get("page"), str):
                writer.write(_packet({"page": page[:200]}))
            await writer.drain()


def _object(text: bytes) -> dict[str, Any]:
    """What a page or a browser server says; empty where that makes no sense."""
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _packet(said: dict[str, Any]) -> bytes:
    content = orjson.dumps(said)
    return len(content).to_bytes(4, "big") + bytes([_JSON]) + content
