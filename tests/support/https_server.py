"""An HTTPS server that asks for a client certificate, and answers with a page whose title is the name in it."""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

CERTIFICATES: Final = Path(__file__).with_name("certificates")
OWNER: Final = "the owner"
"""The name in `client.pem`."""


def client_certificate(url: str) -> dict[str, Any]:
    """The option `clientCertificates` of a context whose owner shows `client.pem` to the server at `url`."""
    pem = base64.b64encode((CERTIFICATES / "client.pem").read_bytes()).decode()
    return {"clientCertificates": [{"origin": url, "cert": pem, "key": pem}]}


@contextlib.asynccontextmanager
async def https_server(host: str = "localhost") -> AsyncIterator[str]:
    """Yields its URL."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "authority.pem"))
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.load_cert_chain(CERTIFICATES / "server.pem")
    async with await asyncio.start_server(_answer, host, 0, ssl=tls, family=socket.AF_INET) as server:
        yield f"https://{host}:{server.sockets[0].getsockname()[1]}"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        shown = dict(pair for ((pair),) in (writer.get_extra_info("peercert") or {}).get("subject", ()))
        body = f"<!doctype html><title>{shown.get('commonName', 'nobody')}</title>".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
    writer.close()
