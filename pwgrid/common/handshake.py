"""The opening handshake of a WebSocket (RFC 6455, section 4.2.2) as bytes, and a close frame. No I/O.

The worker that admits a session answers its client, while the browser server is still on its way to the socket: the
answer does not depend on it, unless it has to negotiate compression.
"""

import base64
import hashlib
from typing import Final

ANSWERED: Final = "answered"
"""In the place of an accept value: the client has its answer already."""

TRY_AGAIN_LATER: Final = 1013
"""Close code for a client that no worker took after all (registered with IANA)."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = b"\r\nsec-websocket-key: "
_KEY_BYTES: Final = 24
_EXTENSIONS: Final = b"\r\nsec-websocket-extensions: "
_REASON_BYTES: Final = 123


def accept_value(lines: bytes) -> str:
    """The Sec-WebSocket-Accept for these header lines (as `browser_server_headers` makes them).

    Empty where the browser server has to answer itself, because the client may get compression.
    """
    at = lines.find(_KEY)
    if at < 0 or _EXTENSIONS in lines:
        return ""
    key = lines[at + len(_KEY) :][:_KEY_BYTES]
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()


def switching_protocols(accept: str) -> bytes:
    """The answer that opens the WebSocket: no subprotocol, no extension."""
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n"
    ).encode()


def close_frame(code: int, reason: str) -> bytes:
    """A server's close frame; the reason is cut to the 123 bytes that fit."""
    text = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
    return bytes([0x88, 2 + len(text)]) + code.to_bytes(2) + text
