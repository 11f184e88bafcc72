"""TLS in the kernel (kTLS): whether this host's kernel and OpenSSL have it for both directions of a connection. Such a
connection is read and written in clear by whoever has its socket, and needs no process that has its keys."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PROBE_S: Final = 5.0
"""How long one handshake of the probe may take: a host that is busy at its start is no host without kernel TLS."""

_OPENSSL: Final = (3, 0)
"""The first version with SSL_OP_ENABLE_KTLS."""
_ENABLE_KTLS: Final = 1 << 3
"""SSL_OP_ENABLE_KTLS of openssl/ssl.h; Python has the name (ssl.OP_ENABLE_KTLS) from 3.12 on."""

# linux/tcp.h, linux/socket.h and linux/tls.h; Python has no names for them.
_TCP_ULP: Final = 31
_SOL_TLS: Final = 282
_TLS_TX: Final = 1
_TLS_RX: Final = 2
_INFO_BYTES: Final = 4
"""Of tls_crypto_info: which version and cipher a direction has."""

_VERSIONS: Final = (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2)
_CIPHERS: Final = ("ECDHE+AESGCM", "ECDHE+CHACHA20")
"""Those of TLS 1.2 that a kernel may have; TLS 1.3 has no others."""
_SECLEVEL: Final = "@SECLEVEL=2"
"""As Python's own contexts have it."""

Context = Callable[[], ssl.SSLContext]


class NoKernelTls(Exception):
    """There is none. `why` is a clause for people, `to_do` what mends it, if anything does."""

    def __init__(self, why: str, to_do: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.to_do = to_do


@dataclass(frozen=True, slots=True)
class KernelTls:
    """What kernel and OpenSSL have together: the highest version of TLS, and the ciphers of TLS 1.2."""

    version: ssl.TLSVersion
    ciphers: str

    @property
    def named(self) -> str:
        """The version as people write it."""
        return f"TLS {self.version.name.removeprefix('TLSv').replace('_', '.')}"

    def apply(self, context: ssl.SSLContext) -> None:
        """Has connections of this context use it, and speak nothing else."""
        context.options |= _ENABLE_KTLS
        context.maximum_version = self.version
        context.set_ciphers(self.ciphers)


def find_kernel_tls(new_context: Context) -> KernelTls:
    """What this host has, by handshakes over loopback with a server's contexts. Raises NoKernelTls."""
    _check_openssl()
    _check_kernel()

    def has(version: ssl.TLSVersion, cipher: str) -> bool:
        return _is_in_kernel(new_context(), KernelTls(version, f"{cipher}:{_SECLEVEL}"))

    try:
        ciphers = [cipher for cipher in _CIPHERS if has(ssl.TLSVersion.TLSv1_2, cipher)]
        if not ciphers:
            why = f"{_openssl()} does not use the kernel's TLS for both directions"
            raise NoKernelTls(
                why, "a Python whose OpenSSL is built with enable-ktls, as those of Debian and Ubuntu are"
            )
        version = next(each for each in _VERSIONS if each is ssl.TLSVersion.TLSv1_2 or has(each, ciphers[0]))
    except OSError as error:  # also ssl.SSLError
        raise NoKernelTls(f"a handshake with itself has failed: {error.strerror or error}") from None
    return KernelTls(version, ":".join([*ciphers, _SECLEVEL]))


def kernel_tls_between_hosts() -> KernelTls:
    """What this host may have for connections to other hosts; whether it has, each handshake tells. TLS 1.2 alone: a
    server of TLS 1.3 says more about its handshake later, which nobody could read who has only the socket. Raises
    NoKernelTls."""
    _check_openssl()
    _check_kernel()
    return KernelTls(ssl.TLSVersion.TLSv1_2, ":".join([*_CIPHERS, _SECLEVEL]))


def is_in_kernel(sock: socket.socket) -> bool:
    """Whether the kernel encrypts what is written to this socket, and decrypts what is read from it."""
    return _has(sock, _TLS_TX) and _has(sock, _TLS_RX)


def is_read_by_kernel(sock: socket.socket) -> bool:
    """Whether the kernel decrypts what is read from this socket: then FIONREAD counts what is not decrypted yet."""
    return _has(sock, _TLS_RX)


def _has(sock: socket.socket, direction: int) -> bool:
    try:
        return bool(sock.getsockopt(_SOL_TLS, direction, _INFO_BYTES))
    except OSError:  # no TLS at all, not in this direction, or no TCP
        return False


def _openssl() -> str:
    return " ".join(ssl.OPENSSL_VERSION.split()[:2])


def _check_openssl() -> None:
    """Raises NoKernelTls if it knows none."""
    if ssl.OPENSSL_VERSION_INFO < _OPENSSL:
        raise NoKernelTls(f"{_openssl()} cannot use the kernel's TLS: OpenSSL 3.0 and later can")


def _check_kernel() -> None:
    """Raises NoKernelTls if the kernel has no TLS."""
    try:
        near, far = _connected()
        with near, far:
            near.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
    except FileNotFoundError:
        raise NoKernelTls(
            "this kernel has no TLS, or its module is not loaded",
            "as root: modprobe tls, and echo tls > /etc/modules-load.d/tls.conf for the next boots",
        ) from None
    except OSError as error:
        raise NoKernelTls(f"this kernel gives no TLS: {error.strerror or error}") from None


def _connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection. Raises OSError."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), PROBE_S)
        try:
            while True:
                far, peer = listener.accept()
                if peer == near.getsockname():
                    return near, far
                far.close()  # a stranger
        except BaseException:
            near.close()
            raise


def _is_in_kernel(context: ssl.SSLContext, kernel: KernelTls) -> bool:
    """Whether a handshake with these has both directions in the kernel. Raises OSError, also if there is none."""
    context.minimum_version = kernel.version
    kernel.apply(context)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    near, far = _connected()
    with near, far:
        for each in (near, far):
            each.setblocking(False)
        client = asking.wrap_socket(near, do_handshake_on_connect=False)
        server = context.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
        with client, server:
            _shake_hands(client, server)
            return is_in_kernel(server)


def _shake_hands(*ends: ssl.SSLSocket) -> None:
    """Does the handshake of both ends, non-blocking. Raises OSError."""
    deadline = time.monotonic() + PROBE_S
    unfinished = list(ends)
    while True:
        for end in list(unfinished):
            try:
                end.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            unfinished.remove(end)
        if not unfinished:
            return
        poll = select.poll()
        for end in unfinished:
            poll.register(end, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"it has taken more than {PROBE_S:g} s")
