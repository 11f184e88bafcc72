"""Refuses a client in its own protocol, CDP: of an HTTP answer it would show its user the status alone."""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pwgrid.proxy.policy.refusal import Refusal

_LINGER_S: Final = 5.0
"""How long the client may take for its first command, which gets the sentence, and for its end."""

_CLOSE_BYTES: Final = 123
_SERVER_ERROR: Final = -32000
"""The code of errors in CDP that have none of their own."""


def shows_no_http_answer(request: Request) -> bool:
    """Whether the client is Puppeteer, which shows `Unexpected server response: 401`. Playwright, and most others, show
    the answer's body."""
    return any(each.startswith("Puppeteer") for each in request.headers.get_all("user-agent"))


class RefusalInCdp:
    """Accepts the WebSocket of a client that is refused, answers its first command with the sentence, and closes.
    `receive` gets what comes after the head. The transport is closed within _LINGER_S."""

    def __init__(self, transport: asyncio.Transport, request: Request, refusal: Refusal) -> None:
        self._transport = transport
        self._error = refusal.error
        self._has_answered = False
        self._protocol = ServerProtocol()
        self._protocol.receive_data(request.serialize())  # it takes frames only after a head
        self._protocol.events_received()
        response = self._protocol.accept(request)
        if isinstance(self._protocol.handshake_exc, InvalidHandshake):
            raise self._protocol.handshake_exc
        self._protocol.send_response(response)
        self._write()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    @classmethod
    def to(cls, transport: asyncio.Transport, request: Request | None, refusal: Refusal) -> RefusalInCdp | None:
        """Refuses like this where the client would show nothing else; returns None for all others."""
        if request is None or not shows_no_http_answer(request):
            return None
        try:
            return cls(transport, request, refusal)
        except InvalidHandshake:
            return None

    def receive(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT and not self._has_answered:
                self._has_answered = True
                self._answer(bytes(event.data))
        self._write()

    def _answer(self, command: bytes) -> None:
        try:
            number = orjson.loads(command)["id"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            number = None
        error = {"code": _SERVER_ERROR, "message": self._error}
        self._protocol.send_text(orjson.dumps({"id": number, "error": error}))
        reason = self._error.encode()[:_CLOSE_BYTES].decode(errors="ignore")
        self._protocol.send_close(CloseCode.TRY_AGAIN_LATER, reason)

    def _write(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.write_eof()
