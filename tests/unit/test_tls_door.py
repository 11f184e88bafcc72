"""Clients of the TLS process's door that say nothing, too much, or go away, and a proxy that is not there."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pwgrid.common.proxy_protocol import line_of
from pwgrid.tls import door as door_module
from pwgrid.tls.door import TlsDoor
from pwgrid.tls.files import CertificateFiles
from tests.support.descriptors import no_descriptor_is_free
from tests.support.https_server import CERTIFICATES
from tests.support.tls import SERVER, trusting

BOUND_S = 20.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Opened:
    """A door, and who accepts behind it."""

    def __init__(self, door: TlsDoor, port: int) -> None:
        self.door = door
        self.port = port
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def encrypted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting(), server_hostname="localhost")

    async def idle(self) -> None:
        while not self.door.is_idle:
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def opened(
    directory: Path, most: int = 100, serve: Serve | None = None, *, by_kernel: bool = False
) -> AsyncIterator[Opened]:
    listener = socket.create_server(("127.0.0.1", 0))
    files = CertificateFiles(str(SERVER), str(SERVER))
    path = directory / "tls.sock"
    door = TlsDoor((listener,), path, files, most, lambda: None, by_kernel=by_kernel)
    found = Opened(door, listener.getsockname()[1])
    server = await asyncio.start_unix_server(serve, path) if serve else None
    door.open()
    try:
        async with asyncio.timeout(BOUND_S):
            yield found
            await found.idle()
    finally:
        door.close()
        door.abort()
        if server is not None:
            server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says the line of the PROXY protocol back, and what comes after it."""
    while content := await reader.read(65536):
        writer.write(content)
    writer.close()


def test_a_pair_that_does_not_fit_is_told_of_once(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for each in (certificate, key):
        each.write_bytes(SERVER.read_bytes())
    files = CertificateFiles(str(certificate), str(key))
    before = files.context
    with capture_logs() as told:
        certificate.write_bytes((CERTIFICATES / "client.pem").read_bytes())
        files.look()
        assert not told  # the other file may come a moment later
        for _ in range(3):
            files.look()
        assert [each["event"] for each in told] == ["certificate_not_taken"]
        assert files.problem is not None
        assert "does not belong to the certificate" in files.problem
        assert files.context is before
        key.write_bytes((CERTIFICATES / "client.pem").read_bytes())
        files.look()
        assert files.problem is None
        assert files.context is not before
        assert [each["event"] for each in told] == ["certificate_not_taken", "certificate_taken"]


def test_a_pair_that_could_not_be_read_when_it_came_is_taken_later(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(SERVER.read_bytes())
    files = CertificateFiles(str(both), str(both))
    before = files.context
    both.write_bytes((CERTIFICATES / "client.pem").read_bytes())
    with no_descriptor_is_free():
        files.look()
    assert files.context is before
    assert "Too many open files" in (files.problem or "")
    files.look()
    assert files.problem is None
    assert files.context is not before


async def test_who_says_nothing_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.05)
    async with opened(tmp_path) as there:
        reader, writer = await there.plain()
        assert await reader.read() == b""
        writer.close()


async def test_who_does_not_end_its_handshake_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.05)
    async with opened(tmp_path) as there:
        reader, writer = await there.plain()
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()


async def test_the_one_that_has_been_silent_for_longest_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 10 * BOUND_S)
    async with opened(tmp_path, most=2, serve=echo) as there:
        silent = [await there.plain() for _ in range(2)]
        reader, writer = await there.encrypted()
        assert (await reader.readline()).startswith(b"PROXY TCP4 127.0.0.1 127.0.0.1 ")
        assert await silent[0][0].read() == b""
        for each in (*(other for _, other in silent), writer):
            each.close()


async def test_where_nobody_is_silent_who_has_taken_longest_for_its_handshake_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 10 * BOUND_S)
    async with opened(tmp_path, most=2, serve=echo) as there:
        slow = []
        for number in range(2):
            slow.append(await there.plain())
            slow[-1][1].write(b"\x16\x03\x01")  # how a handshake begins
            while len(there.door._shaking) == number:
                await asyncio.sleep(0)
        reader, writer = await there.encrypted()
        assert (await reader.readline()).startswith(b"PROXY TCP4 127.0.0.1 127.0.0.1 ")
        assert await slow[0][0].read() == b""
        for each in (*(other for _, other in slow), writer):
            each.close()


async def test_a_client_is_told_where_nobody_accepts_behind_the_door(tmp_path: Path) -> None:
    async with opened(tmp_path) as there:
        reader, writer = await there.encrypted()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        writer.close()


async def test_a_client_without_trust_is_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path, serve=echo) as there:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", there.port, ssl=ssl.create_default_context())


async def test_what_the_other_side_says_before_its_end_is_delivered(tmp_path: Path) -> None:
    """Also to a client that reads slowly: much of it waits in the door when the end comes."""
    size = 8_000_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(bytes(size))
        writer.write_eof()
        await reader.read()
        writer.close()

    async with opened(tmp_path, serve=answer) as there:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", there.port))
        reader, writer = await asyncio.open_connection(sock=slow, ssl=trusting(), server_hostname="localhost")
        assert len(await reader.read()) == size
        writer.close()


async def test_what_a_client_says_before_its_end_is_delivered(tmp_path: Path) -> None:
    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        received.set_result(len(await reader.read()))
        writer.close()

    async with opened(tmp_path, serve=take) as there:
        _, writer = await there.encrypted()
        writer.write(bytes(3_000_000))
        writer.close()
        assert await received == 3_000_000


# With the kernel's TLS. The context here asks for none, so that OpenSSL keeps the keys


async def test_a_client_that_the_kernel_does_not_take_is_told(tmp_path: Path) -> None:
    with capture_logs() as told:
        async with opened(tmp_path, serve=echo, by_kernel=True) as there:
            reader, writer = await there.encrypted()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"TLS_KERNEL=off" in answer
            writer.close()
    assert "client_not_in_kernel" in [each["event"] for each in told]


async def test_a_client_s_own_socket_is_handed_over_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "is_in_kernel", lambda _sock: True)
    path = tmp_path / "tls.sock"
    with socket.socket(socket.AF_UNIX) as proxy:
        proxy.bind(str(path))
        proxy.listen()
        proxy.setblocking(False)
        async with opened(tmp_path, by_kernel=True) as there:
            reader, writer = await there.encrypted()
            way, _ = await asyncio.get_running_loop().sock_accept(proxy)
            await there.idle()
            with way:
                line, fds, _, _ = socket.recv_fds(way, 4096, 2)
                assert way.recv(1) == b""
            address = writer.get_extra_info("sockname")
            assert line == line_of(address, ("127.0.0.1", there.port))
            with socket.socket(fileno=fds[0]) as client:
                assert client.getpeername() == address
            # This was the last copy; the end comes without TLS' own.
            assert await reader.read() == b""
            writer.close()


async def test_a_client_is_told_where_nobody_takes_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "is_in_kernel", lambda _sock: True)
    async with opened(tmp_path, by_kernel=True) as there:
        reader, writer = await there.encrypted()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
async def test_who_does_not_end_its_handshake_with_openssl_is_disconnected(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.05)
    async with opened(tmp_path, by_kernel=True) as there:
        reader, writer = await there.plain()
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_a_client_without_trust_is_forgotten_by_openssl(tmp_path: Path) -> None:
    async with opened(tmp_path, by_kernel=True) as there:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", there.port, ssl=ssl.create_default_context())
