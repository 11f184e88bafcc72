"""Whether TLS can go on in the kernel is found out by handshakes. Most hosts that run this have no such kernel: what
the kernel says is made up, the handshakes are real."""

import socket
import ssl
from collections.abc import Callable

import pytest

from pwgrid.common import kernel_tls
from pwgrid.common.certificate import server_context
from pwgrid.common.kernel_tls import KernelTls, NoKernelTls, find_kernel_tls, is_in_kernel
from pwgrid.settings.load import load
from pwgrid.setup import doctor_checks
from tests.support.tls import SERVER

BOTH = "ECDHE+AESGCM:ECDHE+CHACHA20:@SECLEVEL=2"
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def context() -> ssl.SSLContext:
    return server_context(str(SERVER), str(SERVER))


def cipher(sock: ssl.SSLSocket) -> str:
    found = sock.cipher()
    assert found is not None
    return found[0]


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[ssl.SSLSocket], bool]], None]:
    """Sets which connections the kernel takes."""

    def set_to(is_taken: Callable[[ssl.SSLSocket], bool]) -> None:
        monkeypatch.setattr(kernel_tls, "_check_kernel", lambda: None)
        monkeypatch.setattr(kernel_tls, "is_in_kernel", is_taken)

    return set_to


@pytest.mark.parametrize(
    ("is_taken", "found"),
    [
        (lambda _sock: True, KernelTls(TLS_1_3, BOTH)),
        (lambda sock: sock.version() == "TLSv1.2", KernelTls(TLS_1_2, BOTH)),
        (lambda sock: "GCM" in cipher(sock), KernelTls(TLS_1_3, "ECDHE+AESGCM:@SECLEVEL=2")),
        (lambda sock: "CHACHA" in cipher(sock), KernelTls(TLS_1_2, "ECDHE+CHACHA20:@SECLEVEL=2")),
    ],
    ids=["all", "TLS 1.2 alone", "AES alone", "ChaCha20 alone"],
)
def test_what_the_kernel_takes_is_spoken_and_nothing_else(
    is_taken: Callable[[ssl.SSLSocket], bool],
    found: KernelTls,
    takes: Callable[[Callable[[ssl.SSLSocket], bool]], None],
) -> None:
    takes(is_taken)
    assert find_kernel_tls(context) == found
    limited = context()
    found.apply(limited)
    assert limited.maximum_version == found.version
    spoken = {each["name"] for each in limited.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert all(("GCM" in name or "CHACHA" in name) and name.startswith("ECDHE") for name in spoken)
    assert any("CHACHA" in name for name in spoken) == ("CHACHA20" in found.ciphers)


def test_an_openssl_that_leaves_a_direction_to_itself_is_told_of(
    takes: Callable[[Callable[[ssl.SSLSocket], bool]], None],
) -> None:
    takes(lambda _sock: False)
    with pytest.raises(NoKernelTls, match="does not use the kernel's TLS for both directions"):
        find_kernel_tls(context)


def test_a_kernel_without_tls_is_told_of_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tls, "_TCP_ULP", socket.TCP_CONGESTION)  # it knows no algorithm "tls" either
    with pytest.raises(NoKernelTls, match="has no TLS, or its module is not loaded") as caught:
        find_kernel_tls(context)
    assert "modprobe tls" in caught.value.to_do


def test_an_older_openssl_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "OPENSSL_VERSION_INFO", (1, 1, 1, 23, 15))
    with pytest.raises(NoKernelTls, match=r"OpenSSL 3\.0 and later can"):
        find_kernel_tls(context)


def test_a_connection_without_tls_and_one_without_tcp_are_not_in_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        assert not is_in_kernel(sock)
    near, far = socket.socketpair()
    with near, far:
        assert not is_in_kernel(near)


def test_the_doctor_says_whether_sessions_outlive_the_tls_process(
    takes: Callable[[Callable[[ssl.SSLSocket], bool]], None],
) -> None:
    settings = load(None, {}, {"tls_cert": str(SERVER), "tls_key": str(SERVER)}).settings
    takes(lambda sock: sock.version() == "TLSv1.2")
    assert [each.found for each in doctor_checks._tls(settings)][1:] == ["in the kernel, up to TLS 1.2"]
    takes(lambda _sock: False)
    (_, found) = doctor_checks._tls(settings)
    assert found.level == "warn"
    assert "TLS sessions end with the TLS process" in found.found
    off = settings.model_copy(update={"tls_kernel": "off"})
    assert [each.level for each in doctor_checks._tls(off)] == ["good", "good"]
