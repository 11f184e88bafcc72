"""What passes between a page and what shows it a session: a fault of ours is raised, nonsense of a page is not."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketState
from structlog.testing import capture_logs

from pwgrid.common.errors import RegistryUnavailable
from pwgrid.common.tasks import end_task
from pwgrid.proxy.api import page_socket
from pwgrid.proxy.api.live_view import live_view_route, relay
from pwgrid.proxy.api.page_socket import close_page
from pwgrid.proxy.api.requests_as_sent import ARRIVAL
from pwgrid.proxy.policy.access import ANYBODY, Identity
from pwgrid.proxy.policy.arrival import Arrival
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.registry.records import SessionRecord

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
                writer.close()
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
    await page_socket._until_gone(socket)
    assert says == []


class Viewed:
    """A grid with one session, whose browser server the test plays; and a page that opens its live view."""

    def __init__(self, runtime: Path, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool = False) -> None:
        self._shows: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.is_refused, self.is_accepted, self._is_gone = False, asyncio.Event(), is_gone
        self.sent: list[Any] = []
        """What the page has got: messages, and at last with which code it was closed."""
        monkeypatch.setattr(asyncio, "open_unix_connection", self._open)
        record = SessionRecord.read("0123", {"status": "running", "workerId": "ab"})
        self.note_view, self.proxy_ends = AsyncMock(), asyncio.Event()
        registry = Mock(session=AsyncMock(return_value=record), note_view=self.note_view)
        grid = Mock(registry=registry, runtime=runtime, settings=Mock(live_view=True), feed=Mock(ended=self.proxy_ends))
        self._app = Mock(**{"state.access.check": self._check})
        self._view = live_view_route(grid).routes[0].endpoint  # type: ignore[attr-defined]

    def _check(self, *_asked: object, **_more: object) -> Identity:
        if self.is_refused:
            raise Refusal(401, "revoked")
        return ANYBODY

    async def _open(self, *_of: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, shows = socket.socketpair()
        await self._shows.put(await asyncio.open_connection(sock=shows))
        return await asyncio.open_connection(sock=ours)

    async def is_shown_no_more(self) -> bool:
        """Whether the connection to the browser server, which has been asked for the session, ends."""
        reader, writer = await self._shows.get()
        with closing(writer):
            return await reader.read() == packet(b'{"session":"0123","operator":true}')

    async def _receive(self) -> Message:
        if self.is_accepted.is_set():
            await asyncio.Event().wait()
        return {"type": "websocket.connect"}

    async def _send(self, message: Message) -> None:
        if self._is_gone:
            raise OSError("gone")
        if message["type"] == "websocket.accept":
            self.is_accepted.set()
        else:
            self.sent.append(message.get("text") or message.get("bytes") or message.get("code"))

    async def shown(self, *packets: bytes) -> None:
        """The page looks while the browser server says this, and ends."""
        viewing = asyncio.create_task(self.view())
        async with asyncio.timeout(BOUND_S):
            reader, writer = await self._shows.get()
            with closing(writer):
                writer.write(b"".join(packets))
                await writer.drain()
                await reader.readexactly(len(packet(b'{"session":"0123","operator":true}')))
            await viewing

    async def view(self) -> None:
        scope = {"type": "websocket", "headers": [], "query_string": b"", "app": self._app, ARRIVAL: Arrival("a", 1)}
        await self._view(WebSocket(scope, self._receive, self._send), "0123")


async def test_who_is_gone_before_the_view_begins_leaves_no_connection_to_the_browser_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Viewed(tmp_path, monkeypatch, is_gone=True)
    with pytest.raises(OSError, match="gone") as held:
        await page.view()
    async with asyncio.timeout(BOUND_S):
        assert await page.is_shown_no_more()
    del held  # with its traceback, which has kept the connection from being collected


async def test_a_view_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_socket, "TOKEN_CHECK_INTERVAL_S", 0.01)
    page = Viewed(tmp_path, monkeypatch)
    viewing = asyncio.create_task(page.view())
    async with asyncio.timeout(BOUND_S):
        await page.is_accepted.wait()
        page.is_refused = True
        await viewing
        assert await page.is_shown_no_more()


PAGES, FULL, ENDED = b'{"pages":[]}', b'{"full":8}', b'{"ended":true}'


async def test_a_look_is_recorded_before_the_page_gets_anything_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Viewed(tmp_path, monkeypatch)
    shown_before: list[int] = []
    page.note_view.side_effect = lambda _session: shown_before.append(len(page.sent))
    with capture_logs() as logs:
        await page.shown(packet(PAGES), packet(ENDED))
    assert (shown_before, page.sent) == ([0, 2], [PAGES.decode(), ENDED.decode(), 1000])
    assert [each["event"] for each in logs] == ["session_viewed"]


@pytest.mark.parametrize("said", [FULL, ENDED])
async def test_who_sees_nothing_of_the_session_has_not_looked_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    page = Viewed(tmp_path, monkeypatch)
    with capture_logs() as logs:
        await page.shown(packet(said))
    assert (page.sent, logs) == ([said.decode(), 1000], [])
    page.note_view.assert_not_called()


async def test_nothing_is_shown_while_it_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Viewed(tmp_path, monkeypatch)
    page.note_view.side_effect = RegistryUnavailable("Redis is away")
    await page.shown(packet(PAGES))
    assert page.sent == [page_socket.TRY_AGAIN_LATER]


async def test_a_view_ends_with_its_proxy_so_that_the_page_connects_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Viewed(tmp_path, monkeypatch)
    viewing = asyncio.create_task(page.view())
    async with asyncio.timeout(BOUND_S):
        await page.is_accepted.wait()
        page.proxy_ends.set()
        await viewing
        assert await page.is_shown_no_more()
    assert page.sent == [page_socket.SERVICE_RESTART]


@pytest.mark.parametrize(
    ("left", "live_view", "status"),
    [
        ({"view": {"worker": "ab", "session": "0123", "operator": True}}, False, 403),
        ({"view": {"worker": "ab", "session": "0123"}}, True, 503),  # nobody listens there
        ({"view": {"worker": "../ab", "session": "0123"}}, True, 503),
        ({"view": "0123"}, True, 404),
        ({"worker": "ab", "ask": {}}, True, 404),
    ],
)
async def test_what_another_host_has_left_is_shown_only_where_this_one_shows_sessions(
    tmp_path: Path, left: dict[str, Any], live_view: bool, status: int
) -> None:
    grid = Mock(runtime=tmp_path, settings=Mock(live_view=live_view))
    grid.gateway.from_other_hosts.taken = AsyncMock(return_value=left)
    shows = live_view_route(grid).routes[1].endpoint  # type: ignore[attr-defined]
    with pytest.raises(Refusal) as caught:
        await shows(Mock(), "0" * 32)
    assert caught.value.status == status
