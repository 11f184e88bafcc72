"""A client that would show nothing of an HTTP answer hears why it is refused in its own protocol."""

import asyncio
import json
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.uri import parse_uri

from pwgrid.proxy.connect.refuse_in_cdp import RefusalInCdp
from pwgrid.proxy.policy.refusal import Refusal

SENTENCE = "this grid asks for a token: " + "ä" * 100


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.is_ended = self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_aborted = True


def client(agent: str) -> tuple[ClientProtocol, Request]:
    protocol = ClientProtocol(parse_uri("ws://grid/cdp"))
    request = protocol.connect()
    request.headers["User-Agent"] = agent
    protocol.send_request(request)
    protocol.data_to_send()
    return protocol, request


def refused(agent: str) -> tuple[ClientProtocol, Transport, RefusalInCdp | None]:
    protocol, request = client(agent)
    transport = Transport()
    refusal = Refusal(401, SENTENCE)
    return protocol, transport, RefusalInCdp.to(cast(asyncio.Transport, transport), request, refusal)


def heard(protocol: ClientProtocol, transport: Transport) -> list[Any]:
    protocol.receive_data(transport.written)
    transport.written = b""
    return protocol.events_received()


async def test_puppeteer_hears_the_sentence_with_its_first_command() -> None:
    protocol, transport, refusal = refused("Puppeteer 24.43.1")
    assert refusal is not None
    (response,) = heard(protocol, transport)
    assert isinstance(response, Response)
    assert response.status_code == 101
    protocol.send_text(b'{"id":7,"method":"Target.getBrowserContexts"}')
    for data in protocol.data_to_send():
        refusal.receive(data)
    answer, close = heard(protocol, transport)
    assert json.loads(answer.data) == {"id": 7, "error": {"code": -32000, "message": SENTENCE}}
    assert close.opcode is Opcode.CLOSE
    assert protocol.close_rcvd is not None
    assert protocol.close_rcvd.code == 1013
    assert SENTENCE.startswith(protocol.close_rcvd.reason or "-")
    for data in protocol.data_to_send():
        refusal.receive(data)
    assert transport.is_ended


async def test_of_several_commands_the_first_is_answered() -> None:
    protocol, transport, refusal = refused("Puppeteer 1")
    assert refusal is not None
    heard(protocol, transport)
    for number in (7, 8):
        protocol.send_text(b'{"id":%d}' % number)
    refusal.receive(b"".join(protocol.data_to_send()))
    answer, close = heard(protocol, transport)
    assert json.loads(answer.data)["id"] == 7
    assert close.opcode is Opcode.CLOSE


@pytest.mark.parametrize("message", [b"{", b"[]", b'{"method":"x"}', b"7"])
async def test_what_is_no_command_is_answered_all_the_same(message: bytes) -> None:
    protocol, transport, refusal = refused("Puppeteer 1")
    assert refusal is not None
    heard(protocol, transport)
    protocol.send_text(message)
    for data in protocol.data_to_send():
        refusal.receive(data)
    answer = heard(protocol, transport)[0]
    assert isinstance(answer, Frame)
    assert json.loads(answer.data)["id"] is None


async def test_all_others_get_an_http_answer() -> None:
    for agent in ("Playwright/1.65.1", "", "python websockets"):
        assert refused(agent)[2] is None
    assert RefusalInCdp.to(cast(asyncio.Transport, Transport()), None, Refusal(400, "no head")) is None


async def test_a_bad_handshake_of_puppeteer_gets_one_too() -> None:
    _, request = client("Puppeteer 1")
    del request.headers["Sec-WebSocket-Key"]
    assert RefusalInCdp.to(cast(asyncio.Transport, Transport()), request, Refusal(400, "bad")) is None
