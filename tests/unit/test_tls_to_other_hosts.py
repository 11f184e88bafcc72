"""What the forwarder hears of a host that speaks TLS, or should."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pwgrid.common.certificate import client_context, server_context
from pwgrid.common.connect_tcp import connect_tcp
from pwgrid.common.tls_process_lines import target_line
from pwgrid.tls import to_other_hosts as to_other_hosts_module
from pwgrid.tls.to_other_hosts import ToOtherHosts
from tests.support.tls import AUTHORITY, SERVER

BOUND_S = 20.0


@contextlib.asynccontextmanager
async def opened(
    directory: Path, authority: Path = AUTHORITY, kernel_context: ssl.SSLContext | None = None
) -> AsyncIterator[Path]:
    path = directory / "out.sock"
    to_other_hosts = ToOtherHosts(path, client_context(str(authority)), lambda: None, kernel_context=kernel_context)
    to_other_hosts.open()
    try:
        async with asyncio.timeout(BOUND_S):
            yield path
            while not to_other_hosts.is_idle:
                await asyncio.sleep(0)
    finally:
        to_other_hosts.close()
        to_other_hosts.abort()


async def answer(path: Path, first: bytes, then: bytes = b"") -> bytes:
    """All that comes back, if what is to come then is said after the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(first)
    found = await reader.readline()
    if then:
        writer.write(then)
    found += await reader.read()
    writer.close()
    return found


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the first line in capitals."""
    writer.write((await reader.readline()).upper())
    writer.close()


@contextlib.asynccontextmanager
async def host(*, is_encrypted: bool, address: str = "127.0.0.1") -> AsyncIterator[int]:
    tls = server_context(str(SERVER), str(SERVER)) if is_encrypted else None
    async with await asyncio.start_server(greet, address, 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def test_what_is_said_after_the_answer_is_for_the_host(tmp_path: Path) -> None:
    async with host(is_encrypted=True) as port, opened(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert await answer(path, target_line("127.0.0.1", port), b"hello\n") == b"CONNECTED\r\nHELLO\n"


async def test_a_host_of_another_name_is_not_trusted(tmp_path: Path) -> None:
    async with host(is_encrypted=True, address="127.0.0.2") as port, opened(tmp_path) as path:
        found = await answer(path, target_line("127.0.0.2", port))
        assert found.startswith(b"REFUSED its certificate is not trusted (TLS_CA): IP address mismatch")


async def test_a_host_of_an_unknown_authority_is_not_trusted(tmp_path: Path) -> None:
    async with host(is_encrypted=True) as port, opened(tmp_path, SERVER.with_name("client.pem")) as path:
        found = await answer(path, target_line("127.0.0.1", port))
        assert found.startswith(b"REFUSED its certificate is not trusted (TLS_CA): ")


async def test_a_host_that_speaks_no_tls_is_said_to(tmp_path: Path) -> None:
    async with host(is_encrypted=False) as port, opened(tmp_path) as path:
        found = await answer(path, target_line("127.0.0.1", port))
        assert found.startswith(b"REFUSED ")


async def test_a_host_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_other_hosts_module, "CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with opened(tmp_path) as path:
            found = await answer(path, target_line("127.0.0.1", listener.getsockname()[1]))
            assert found == b"REFUSED no connection within 0.05 s\r\n"


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"\r\n", b"HOST 127.0.0.1 none\r\n", b"x" * 600])
async def test_who_names_no_host_gets_nowhere(line: bytes, tmp_path: Path) -> None:
    async with opened(tmp_path) as path:
        assert (await answer(path, line)).startswith(b"REFUSED ")


# With the kernel's TLS, which a test without such a kernel only says that a connection has

SECURE = "ECDHE+AESGCM"


def kernel_context(ciphers: str = SECURE, authority: Path = AUTHORITY) -> ssl.SSLContext:
    context = client_context(str(authority))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    return context


async def test_a_connection_that_the_kernel_has_is_the_forwarders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_other_hosts_module, "is_in_kernel", lambda _sock: True)
    async with host(is_encrypted=True) as port, opened(tmp_path, kernel_context=kernel_context()) as path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as way:
            way.settimeout(BOUND_S)
            way.connect(str(path))
            way.sendall(target_line("127.0.0.1", port))
            answered, (fd,), _, _ = await asyncio.to_thread(socket.recv_fds, way, 100, 1)
            assert answered == b"CONNECTED\r\n"
            with socket.socket(fileno=fd) as sock:
                assert sock.getpeername() == ("127.0.0.1", port)
                assert way.recv(1) == b""  # nothing of it is left with the TLS process


@pytest.mark.parametrize("ciphers", [SECURE, "ECDHE+ARIA256"])
async def test_what_the_kernel_does_not_take_is_copied(ciphers: str, tmp_path: Path) -> None:
    """The second are ciphers that the host does not speak."""
    async with host(is_encrypted=True) as port, opened(tmp_path, kernel_context=kernel_context(ciphers)) as path:
        assert await answer(path, target_line("127.0.0.1", port), b"hello\n") == b"CONNECTED\r\nHELLO\n"


async def test_a_host_that_is_not_trusted_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connects = 0

    async def connect(*target: Any) -> socket.socket:
        nonlocal connects
        connects += 1
        return await connect_tcp(*target)

    monkeypatch.setattr(to_other_hosts_module, "connect_tcp", connect)
    stranger = kernel_context(authority=SERVER.with_name("client.pem"))
    async with host(is_encrypted=True) as port, opened(tmp_path, kernel_context=stranger) as path:
        found = await answer(path, target_line("127.0.0.1", port))
        assert found.startswith(b"REFUSED its certificate is not trusted (TLS_CA): ")
    assert connects == 1
