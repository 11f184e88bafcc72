"""An HTTPS server that asks for a client certificate, and answers with a page whose title is the name in it."""

import asyncio
import base64
import contextlib
import secrets
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

CERTIFICATES: Final = Path(__file__).with_name("certificates")
OWNER: Final = "the owner"
"""The name in `client.pem`."""


def certificate_file(name: str) -> str:
    """As a client sends it."""
    return base64.b64encode((CERTIFICATES / name).read_bytes()).decode()


def client_certificate(url: str) -> dict[str, Any]:
    """The option `clientCertificates` of a context whose owner shows `client.pem` to the server at `url`."""
    pem = certificate_file("client.pem")
    return {"clientCertificates": [{"origin": url, "cert": pem, "key": pem}]}


def packed_certificate(url: str, file: str = "client.pfx") -> dict[str, Any]:
    """The same with a PKCS 12 file."""
    return {"clientCertificates": [{"origin": url, "pfx": certificate_file(file), "passphrase": "x"}]}


@contextlib.asynccontextmanager
async def https_server(host: str = "localhost", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yields its URL."""
    tls = tls or ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "authority.pem"))
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.load_cert_chain(CERTIFICATES / "server.pem")
    async with await asyncio.start_server(_answer, host, 0, ssl=tls, family=socket.AF_INET) as server:
        yield f"https://{host}:{server.sockets[0].getsockname()[1]}"


def large_diffie_hellman() -> ssl.SSLContext:
    """Of a server that wants its clients to compute with 10,000 bits, the most that OpenSSL does."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    tls.set_ciphers("DHE-RSA-AES128-GCM-SHA256:@SECLEVEL=0")
    tls.load_cert_chain(CERTIFICATES / "large.pem")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(_diffie_hellman_parameters(secrets.randbits(10_000) | 1 << 9_999 | 1))
        file.flush()
        tls.load_dh_params(file.name)
    return tls


def _diffie_hellman_parameters(modulus: int) -> str:
    """As PEM (PKCS 3): SEQUENCE { modulus, generator 2 }."""
    number = modulus.to_bytes(modulus.bit_length() // 8 + 1, "big")
    body = b"\x02\x82" + len(number).to_bytes(2, "big") + number + b"\x02\x01\x02"
    der = b"\x30\x82" + len(body).to_bytes(2, "big") + body
    return f"-----BEGIN DH PARAMETERS-----\n{base64.encodebytes(der).decode()}-----END DH PARAMETERS-----\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        shown = dict(pair for ((pair),) in (writer.get_extra_info("peercert") or {}).get("subject", ()))
        body = f"<!doctype html><title>{shown.get('commonName', 'nobody')}</title>".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
    writer.close()
