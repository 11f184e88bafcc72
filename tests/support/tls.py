"""Certificates for a grid that speaks TLS, and raw clients of it."""

import shutil
import socket
import ssl
from pathlib import Path

from tests.support import raw
from tests.support.https_server import CERTIFICATES

AUTHORITY = CERTIFICATES / "authority.pem"
SERVER = CERTIFICATES / "server.pem"
"""Certificate and key of localhost and 127.0.0.1."""


def copies(directory: Path, source: Path = SERVER) -> dict[str, str]:
    """Settings with copies of both files, which a test may change."""
    for name in ("cert.pem", "key.pem"):
        shutil.copyfile(source, directory / name)
    return {"PWGRID_TLS_CERT": str(directory / "cert.pem"), "PWGRID_TLS_KEY": str(directory / "key.pem")}


def trusting() -> ssl.SSLContext:
    """A client that trusts the tests' authority alone."""
    return ssl.create_default_context(cafile=str(AUTHORITY))


def connect(port: int, source: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """A TLS connection to the grid."""
    plain = socket.create_connection(("127.0.0.1", port), raw.STALL_S, source_address=(source, 0))
    try:
        return (context or trusting()).wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def session(port: int, source: str = "127.0.0.1", target: str = "/") -> ssl.SSLSocket:
    """A session that a browser server has."""
    sock = connect(port, source)
    try:
        sock.sendall(raw.head(target=target))
        answer = b""
        while b"\r\n\r\n" not in answer and (chunk := sock.recv(4096)):
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert raw.goes_on(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def serial(sock: ssl.SSLSocket) -> str:
    """Of the certificate that the grid has shown."""
    return str((sock.getpeercert() or {})["serialNumber"])
