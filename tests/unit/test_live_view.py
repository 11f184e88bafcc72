"""What a page says while it looks at a session, on its way to the browser server. The other end: tests/process."""

import asyncio
from typing import Any, cast

import orjson
import pytest
from starlette.websockets import WebSocket

from pwgrid.proxy.api.live_view import relay


class Socket:
    """A page's WebSocket, of which a test says what comes."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = iter(messages)

    async def receive(self) -> dict[str, Any]:
        return next(self._messages)


class Writer:
    """To the browser server."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        await asyncio.sleep(0)


def message(said: bytes) -> dict[str, Any]:
    return {"type": "websocket.receive", "bytes": said}


SENSELESS = (
    b"",
    b"{",
    b"null",
    b"7",
    b"[]",
    b'"ack"',
    b'{"page":7}',
    b'{"ack":1}',
    b'{"ack":[true]}',
    b"[" * 9000,
    b"\xff",
)


@pytest.mark.parametrize("said", SENSELESS)
async def test_what_makes_no_sense_is_ignored_and_what_comes_after_it_is_heard(said: bytes) -> None:
    writer = Writer()
    socket = Socket(*map(message, (said, b'{"page":"p@1"}', b'{"ack":true}')), {"type": "websocket.disconnect"})
    async with asyncio.timeout(20):
        await relay(cast("WebSocket", socket), asyncio.StreamReader(), cast("asyncio.StreamWriter", writer))
    told, found = writer.written, []
    while told:
        end = 5 + int.from_bytes(told[:4], "big")
        found.append(orjson.loads(told[5:end]))
        told = told[end:]
    assert found == [{"page": "p@1"}, {"ack": True}]
