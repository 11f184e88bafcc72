"""What the forwarder hears of a host that speaks TLS, or should."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pwgrid.common.certificate import client_context, server_context
from pwgrid.common.tls_way_out import target_line
from pwgrid.tls import way_out as way_out_module
from pwgrid.tls.way_out import WayOut
from tests.support.tls import AUTHORITY, SERVER

BOUND_S = 20.0


@contextlib.asynccontextmanager
async def opened(directory: Path, authority: Path = AUTHORITY) -> AsyncIterator[Path]:
    path = directory / "out.sock"
    way_out = WayOut(path, client_context(str(authority)), lambda: None)
    await way_out.open()
    try:
        async with asyncio.timeout(BOUND_S):
            yield path
            while not way_out.is_idle:
                await asyncio.sleep(0)
    finally:
        way_out.close()
        way_out.abort()


async def answer(path: Path, first: bytes) -> bytes:
    """All that comes back."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(first)
    found = await reader.read()
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


async def test_what_comes_behind_the_line_is_for_the_host(tmp_path: Path) -> None:
    async with host(is_encrypted=True) as port, opened(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert await answer(path, target_line("127.0.0.1", port) + b"hello\n") == b"HELLO\n"


async def test_a_host_of_another_name_is_not_trusted(tmp_path: Path) -> None:
    async with host(is_encrypted=True, address="127.0.0.2") as port, opened(tmp_path) as path:
        found = await answer(path, target_line("127.0.0.2", port) + b"hello\n")
        assert found.startswith(b"HTTP/1.1 502 its certificate is not trusted (TLS_CA): IP address mismatch")


async def test_a_host_of_an_unknown_authority_is_not_trusted(tmp_path: Path) -> None:
    async with host(is_encrypted=True) as port, opened(tmp_path, SERVER.with_name("client.pem")) as path:
        found = await answer(path, target_line("127.0.0.1", port) + b"hello\n")
        assert found.startswith(b"HTTP/1.1 502 its certificate is not trusted (TLS_CA): ")


async def test_a_host_that_speaks_no_tls_is_said_to(tmp_path: Path) -> None:
    async with host(is_encrypted=False) as port, opened(tmp_path) as path:
        found = await answer(path, target_line("127.0.0.1", port) + b"hello\n")
        assert found.startswith(b"HTTP/1.1 502 ")


async def test_a_host_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way_out_module, "CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with opened(tmp_path) as path:
            found = await answer(path, target_line("127.0.0.1", listener.getsockname()[1]))
            assert found == b"HTTP/1.1 502 no connection within 0.05 s\r\n\r\n"


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"\r\n", b"HOST 127.0.0.1 none\r\n"])
async def test_who_names_no_host_gets_nowhere(line: bytes, tmp_path: Path) -> None:
    async with opened(tmp_path) as path:
        assert (await answer(path, line)).startswith(b"HTTP/1.1 502 ")
