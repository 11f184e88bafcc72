"""Certificates for a grid that speaks TLS, and raw clients of it."""

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from pwgrid.common.certificate import server_context
from pwgrid.common.kernel_tls import KernelTls, NoKernelTls, find_kernel_tls
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


def own_pair(directory: Path, names: str = "DNS:localhost") -> Path:
    """A certificate for these names that nobody else has signed, with its key, in one file. Who trusts it may have it
    as an authority."""
    made, key = directory / "own.pem", directory / "own.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "9",
    ]
    named = ["-subj", "/CN=another", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, *named], check=True, capture_output=True)
    made.write_bytes(key.read_bytes() + made.read_bytes())
    return made


def trusting(authority: Path = AUTHORITY) -> ssl.SSLContext:
    """A client that trusts this authority alone."""
    return ssl.create_default_context(cafile=str(authority))


def connect(
    port: int, source: str = "127.0.0.1", context: ssl.SSLContext | None = None, name: str = "localhost"
) -> ssl.SSLSocket:
    """A TLS connection to the grid."""
    address = "127.0.0.1" if name == "localhost" else name
    plain = socket.create_connection((address, port), raw.STALL_S, source_address=(source, 0))
    try:
        return (context or trusting()).wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def session(port: int, source: str = "127.0.0.1", target: str = "/") -> ssl.SSLSocket:
    """A session that a browser server has."""
    sock = connect(port, source)
    try:
        assert raw.goes_on(raw.upgraded(sock, raw.head(target=target)))
    except BaseException:
        sock.close()
        raise
    return sock


def needed_kernel_tls() -> KernelTls:
    """What this host's kernel has of TLS; skips the test where it has none."""
    try:
        return find_kernel_tls(lambda: server_context(str(SERVER), str(SERVER)))
    except NoKernelTls as error:
        pytest.skip(f"TLS in the kernel: {error.why}")
