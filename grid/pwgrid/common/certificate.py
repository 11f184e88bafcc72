"""Makes what a server speaks TLS with of a certificate's file and its key's, or says what is wrong with them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final, NoReturn

from pwgrid.common.errors import GridError

_MOST_BYTES: Final = 1 << 20
_CERTIFICATE: Final = b"CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_NOT_OF_IT: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

Stamp = tuple[tuple[int, int, int], ...]
"""When which file was there, and how large: another one after each change."""


def stamp_of(*paths: str) -> Stamp:
    """The stamp of these files as they are now, also if they are not there."""
    found = []
    for path in paths:
        try:
            file = os.stat(path)
            found.append((file.st_ino, file.st_mtime_ns, file.st_size))
        except OSError as error:
            found.append((0, 0, -(error.errno or 1)))
    return tuple(found)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """What a server speaks TLS with, 1.2 at least. `certificate` may have those of authorities behind its own; both may
    be one file. Raises GridError with a sentence that names the file."""
    _check(certificate, "tls_cert", _CERTIFICATE, "a certificate")
    _check(key, "tls_key", _KEY, "a private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])

    def ask() -> NoReturn:
        # OpenSSL would ask the terminal.
        raise GridError(f"tls_key {key}: the key has a password: openssl pkey -in {key} -out … takes it off")

    try:
        context.load_cert_chain(certificate, key, password=ask)
    except ssl.SSLError as error:
        if error.reason in _NOT_OF_IT:
            raise GridError(f"tls_key {key}: the key does not belong to the certificate in {certificate}") from None
        reason = (error.reason or "it cannot be read").lower().replace("_", " ")
        raise GridError(f"tls_cert {certificate}, tls_key {key}: OpenSSL does not take them: {reason}") from None
    except OSError as error:  # replaced at this moment
        raise GridError(f"tls_cert {certificate}, tls_key {key}: {error.strerror or error}") from None
    return context


def client_context(authorities: str) -> ssl.SSLContext:
    """What a client checks a server's certificate and name with: by the authorities in a file, or those that this
    system trusts. Raises GridError."""
    if authorities:
        _check(authorities, "tls_ca", _CERTIFICATE, "a certificate")
    try:
        context = ssl.create_default_context(cafile=authorities or None)
    except (ssl.SSLError, OSError) as error:
        raise GridError(f"tls_ca {authorities}: OpenSSL does not take it: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _check(path: str, setting: str, mark: bytes, what: str) -> None:
    """OpenSSL does not say which of the two files it cannot read."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise GridError(f"{setting} {path}: {error.strerror or error}") from None
    if mark not in content:
        raise GridError(f"{setting} {path}: there is no {what.partition(' ')[2]} in it; it must be a PEM file")
