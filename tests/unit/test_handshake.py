"""The opening handshake as bytes, against the RFC's own example and a WebSocket library."""

import base64
import os

import pytest
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from pwgrid.common.handshake import accept_value, close_frame, switching_protocols
from pwgrid.proxy.policy.upgrade_request import browser_server_headers

HEADERS = [(b"upgrade", b"websocket"), (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")]
OFFER = (b"sec-websocket-extensions", b"permessage-deflate; client_max_window_bits")


def test_the_accept_value_is_the_one_of_rfc_6455() -> None:
    lines = browser_server_headers(HEADERS, compression=False)
    assert accept_value(lines) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_any_key_gets_the_same_value_as_from_a_library() -> None:
    for _ in range(50):
        key = base64.b64encode(os.urandom(16))
        lines = browser_server_headers([*HEADERS[:1], (b"sec-websocket-key", key), OFFER], compression=False)
        assert accept_value(lines) == accept_key(key.decode())


@pytest.mark.parametrize("headers", [HEADERS[:1], [*HEADERS, OFFER]], ids=["no key", "compression is to be negotiated"])
def test_what_only_the_browser_server_can_answer_has_no_accept_value(headers: list[tuple[bytes, bytes]]) -> None:
    assert accept_value(browser_server_headers(headers, compression=True)) == ""


def test_the_answer_is_a_whole_head_that_negotiates_nothing() -> None:
    assert switching_protocols("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").split(b"\r\n") == [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        b"",
        b"",
    ]


@pytest.mark.parametrize("reason", ["", "no slot", "é" * 61 + "x", "é" * 62, "x" * 200])
def test_a_close_frame_carries_as_much_of_the_reason_as_fits(reason: str) -> None:
    data = close_frame(1013, reason)
    text = data[4:].decode()
    assert reason.startswith(text)
    assert len(text.encode()) == min(
        len(reason.encode()), 123 if reason.isascii() or len(reason.encode()) <= 123 else 122
    )
    assert data == Frame(Opcode.CLOSE, (1013).to_bytes(2) + text.encode()).serialize(mask=False)
