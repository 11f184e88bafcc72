"""What passes between a page and what shows it a session: a fault of ours is raised, nonsense of a page is not."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketState

from pwgrid.common.waiting import end_task
from pwgrid.proxy.api import dashboard
from pwgrid.proxy.dashboard.live_view import close_page, relay

BOUND_S = 20.0


class Page:
    """The page's WebSocket: it says what the test puts in, and then waits, or is gone."""

    def __init__(self, *says: str, is_gone: bool = False, is_closed: bool = False) -> None:
        self.says = list(says)
        self.is_closed = is_closed
        self.is_gone = is_gone
        self.shown: list[str] = []

    async def receive(self) -> Message:
        if self.says:
            return {"type": "websocket.receive", "bytes": self.says.pop(0).encode()}
        if not self.is_gone:
            await asyncio.Event().wait()
        return {"type": "websocket.disconnect", "code": 1001}

    async def send_text(self, text: str) -> None:
        if self.is_closed:  # as uvicorn says it
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")
        self.shown.append(text)

    async def close(self, code: int) -> None:
        raise RuntimeError("Unexpected ASGI message 'websocket.close', after sending 'websocket.close'.")


def packet(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + b"\0" + content


async def relayed(page: Page, content: bytes = b"") -> bytes:
    """What the page said, as it was passed on until the end; what shows the session sends `content`."""
    ours, shows = socket.socketpair()
    with shows:
        shows.sendall(content)
        reader, writer = await asyncio.open_connection(sock=ours)
        async with asyncio.timeout(BOUND_S):
            try:
                await relay(cast(WebSocket, page), reader, writer)
            finally:
                await writer.wait_closed()
        return shows.recv(4096)


@pytest.mark.parametrize("nonsense", ["[]", "5", "null", "{", '"text"'])
async def test_what_is_no_object_is_ignored(nonsense: str) -> None:
    assert await relayed(Page(nonsense, '{"ack":true}', is_gone=True)) == packet(b'{"ack":true}')


async def test_a_page_that_goes_ends_it_quietly() -> None:
    assert await relayed(Page(is_gone=True)) == b""


async def test_a_page_on_which_the_server_has_given_up_ends_it_quietly() -> None:
    await relayed(Page(is_closed=True), packet(b"{}"))


async def test_a_page_on_which_the_server_has_given_up_is_closed_already() -> None:
    await close_page(cast(WebSocket, Page(is_closed=True)))


async def test_a_fault_of_ours_is_raised() -> None:
    with pytest.raises(UnicodeDecodeError):
        await relayed(Page(), packet(b"\xff"))


async def test_what_is_shown_reaches_the_page() -> None:
    page = Page()
    showing = asyncio.create_task(relayed(page, packet(b'{"pages":[]}')))
    async with asyncio.timeout(BOUND_S):
        while not page.shown:
            await asyncio.sleep(0)
    await end_task(showing)
    assert page.shown == ['{"pages":[]}']


async def test_a_page_of_the_grid_may_say_what_it_likes_until_it_goes() -> None:
    says: list[Message] = [
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.receive", "bytes": b"hello"},
        {"type": "websocket.disconnect", "code": 1001},
    ]

    async def receive() -> Message:
        return says.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    socket = WebSocket({"type": "websocket"}, receive, send)
    socket.client_state = WebSocketState.CONNECTED
    await dashboard._until_gone(socket)
    assert says == []
