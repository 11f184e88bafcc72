"""Passes what a browser server shows of a session on to a page, and what the page says back. Decides nothing, keeps one
packet: the page asks for each frame."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from pwgrid.common.tasks import first_of

SOCKET: Final = "live.sock"
"""In the worker's directory; pwgrid/worker/browser/live_view.cjs listens there."""

CONNECT_S: Final = 2.0
_HEADER_BYTES: Final = 5
_JSON: Final = 0
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Of one frame."""


async def open_view(path: Path, session_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the session is shown. Raises OSError where nobody shows it."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(_packet({"session": session_id}))
    return reader, writer


async def relay(socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the session, the page or the browser server ends. The caller closes `writer`."""
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


async def send_to_page(socket: WebSocket, message: str | bytes) -> None:
    """Raises WebSocketDisconnect where the page is gone. uvicorn itself closes the connection of a page that
    answers no ping or sends invalid frames; a send then raises RuntimeError."""
    try:
        await (socket.send_text(message) if isinstance(message, str) else socket.send_bytes(message))
    except RuntimeError as error:
        raise WebSocketDisconnect(1006, str(error)) from None


async def close_page(socket: WebSocket, code: int = 1000) -> None:
    """Closes the page's connection, if it is not closed already."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # as above
        await socket.close(code)


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
