"""A grid with a certificate, where the kernel has TLS: no killed process ends a session."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pwgrid.cli.status import status_text
from pwgrid.common.kernel_tls import KernelTls
from tests.support import raw, tls
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, kill_and_await_successor, running_grid, wait_for_end
from tests.support.hosts import Host, host, hosts_of_sessions, know_each_other
from tests.support.leases import CHROMIUM
from tests.support.raw import GOODBYE, frame, goes_on, head
from tests.support.redis import RedisServer

MIB: Final = 1 << 20


@pytest.fixture(scope="module")
def kernel() -> KernelTls:
    return tls.needed_kernel_tls()


@contextlib.contextmanager
def tls_grid(**settings: str) -> Iterator[Grid]:
    with tempfile.TemporaryDirectory(prefix="pgtls-") as directory:
        environment = {**WITHOUT_SPARES, **tls.copies(Path(directory)), "PWGRID_LOG_LEVEL": "debug", **settings}
        with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
            yield grid


@pytest.fixture(scope="module")
def shared(kernel: KernelTls) -> Iterator[Grid]:
    with tls_grid(PWGRID_POOL_CONFIG=f"{CHROMIUM}=1") as grid:
        yield grid


@pytest.fixture
def grid(shared: Grid) -> Iterator[Grid]:
    yield shared
    eventually(lambda: shared.active() == 0, "no slot is taken")


def tls_pid(grid: Grid) -> int:
    pid: int = eventually(lambda: grid.ask("status")["tls"]["pid"], "the TLS process runs")
    return pid


def sockets_of(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(link).startswith("socket:")
    return count


def ask(grid: Grid, path: str) -> Any:
    asks = http.client.HTTPSConnection("localhost", grid.port, timeout=raw.STALL_S, context=tls.trusting())
    with contextlib.closing(asks):
        asks.request("GET", path)
        return json.loads(asks.getresponse().read())


def ended(grid: Grid, port: int) -> dict[str, Any] | None:
    """The record of the session that came from this port, once it has ended."""
    for each in ask(grid, "/v1/sessions")["sessions"]:
        if each["client"].endswith(f":{port}") and each["status"] not in ("pending", "running"):
            found: dict[str, Any] = each
            return found
    return None


def test_a_session_is_the_kernel_s_and_the_tls_process_keeps_nothing_of_it(grid: Grid, kernel: KernelTls) -> None:
    before = sockets_of(tls_pid(grid))
    with tls.session(grid.port, source="127.0.0.7") as sock:
        assert goes_on(sock)
        (found,) = eventually(lambda: ask(grid, "/v1/sessions?status=running")["sessions"], "its record says so")
        assert found["client"] == f"127.0.0.7:{sock.getsockname()[1]}"
        eventually(lambda: grid.ask("status")["tls"]["kernel"] == kernel.named, "the status says so")
        status = grid.ask("status")["tls"]
        assert (status["sessions"], status["whyNotKernel"]) == (0, None)
        assert f"in the kernel, up to {kernel.named}" in status_text(grid.ask("status"))
        eventually(lambda: sockets_of(status["pid"]) == before, "it has none of the session's")
        sock.sendall(GOODBYE)
        raw.read_all(sock)


@pytest.mark.parametrize("ciphers", ["ECDHE+AESGCM", "ECDHE+CHACHA20"])
def test_each_cipher_that_is_spoken_is_the_kernel_s(grid: Grid, kernel: KernelTls, ciphers: str) -> None:
    if ciphers not in kernel.ciphers:
        pytest.skip(f"{ciphers} in the kernel")
    context = tls.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    with raw.upgraded(tls.connect(grid.port, context=context), head()) as sock:
        assert goes_on(sock)
        sock.sendall(GOODBYE)
        raw.read_all(sock)


def test_a_head_that_comes_with_the_end_of_the_handshake_is_read(grid: Grid) -> None:
    to_client, to_grid = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.trusting().wrap_bio(to_client, to_grid, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", grid.port), raw.STALL_S) as sock:

        def repeated(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    sock.sendall(to_grid.read())
                    to_client.write(sock.recv(65536))

        repeated(client.do_handshake)
        client.write(head() + raw.PING)  # with TLS 1.3 this goes out together with the handshake's last message
        sock.sendall(to_grid.read())
        received = b""
        while not received.endswith(raw.PONG):
            received += repeated(lambda: client.read(65536))
        assert received.startswith(b"HTTP/1.1 101 ")
        client.write(GOODBYE)
        sock.sendall(to_grid.read())
        while sock.recv(65536):
            pass


def test_a_client_that_ends_its_tls_without_a_goodbye_has_left(grid: Grid) -> None:
    with tls.session(grid.port) as sock:
        port = sock.getsockname()[1]
        assert grid.active() == 1
        sock.settimeout(0)
        with contextlib.suppress(ssl.SSLWantReadError):
            sock.unwrap()  # says that it ends, and the connection stays
        eventually(lambda: grid.active() == 0, "its slot is free")
    found = eventually(lambda: ended(grid, port), "its record says so")
    assert (found["status"], found["reason"]) == ("completed", "client disconnected")


def test_an_api_client_that_ends_its_tls_properly_is_no_error(grid: Grid) -> None:
    asks = http.client.HTTPSConnection("localhost", grid.port, timeout=raw.STALL_S, context=tls.trusting())
    with contextlib.closing(asks):
        for _ in range(2):
            asks.request("GET", "/health")
            answer = asks.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
        sock = asks.sock
        sock.settimeout(0)
        with contextlib.suppress(ssl.SSLWantReadError):
            sock.unwrap()
        sock.settimeout(raw.STALL_S)
        with contextlib.suppress(ConnectionError):  # a reset is an end
            assert socket.socket.recv(sock, 1) == b""
    assert "Traceback" not in grid.output()


class Stream:
    """Sends random messages in a session until `stop`, and compares what the browser server sends back."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self._stop = threading.Event()
        self._sent, self._received = hashlib.sha256(), hashlib.sha256()
        self._messages = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def goes_on(self) -> None:
        """Returns when a message has come back that was sent after now."""
        seen = self._messages + 2
        eventually(lambda: self._error is not None or self._messages >= seen, "the stream goes on")
        assert self._error is None, self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._error is None, self._error
        assert self._sent.digest() == self._received.digest()

    def _run(self) -> None:
        source = random.Random(7)
        try:
            while not self._stop.is_set():
                content = source.randbytes(MIB // 4)
                self._sent.update(content)
                self.sock.sendall(frame(content))
                assert self._exactly(10) == b"\x82\x7f" + len(content).to_bytes(8)
                self._received.update(self._exactly(len(content)))
                self._messages += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self._error = error

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            chunk = self.sock.recv(size - len(content))
            assert chunk, "it has ended"
            content += chunk
        return bytes(content)


def encrypted(sock: socket.socket) -> ssl.SSLSocket:
    assert isinstance(sock, ssl.SSLSocket)
    return sock


@contextlib.contextmanager
def streaming(sock: ssl.SSLSocket) -> Iterator[Stream]:
    with sock:
        stream = Stream(sock)
        try:
            stream.goes_on()
            yield stream
        finally:
            stream.stop()


def test_no_session_ends_when_any_process_is_killed_in_the_middle_of_a_stream(kernel: KernelTls) -> None:
    with tls_grid() as grid, streaming(tls.session(grid.port)) as stream:
        status = grid.ask("status")
        victims = [status["tls"]["pid"], status["proxy"]["pid"], *(each["pid"] for each in status["workers"])]
        for victim in victims:
            kill_and_await_successor(grid, victim)
            stream.goes_on()
        grid.kill_master()
        stream.goes_on()
        grid.start_again()
        stream.goes_on()
        with tls.session(grid.port) as other:  # all are replaced
            assert goes_on(other)
            os.kill(tls_pid(grid), signal.SIGKILL)
            assert goes_on(other)
            other.sendall(GOODBYE)
            raw.read_all(other)


def until_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is by now
        wait_for_end(pid)


def test_no_session_ends_with_a_frozen_tls_process_and_new_ones_are_served(kernel: KernelTls) -> None:
    with tls_grid(WORKER_LOST_THRESHOLD="5") as grid, tls.session(grid.port) as sock:
        frozen = tls_pid(grid)
        os.kill(frozen, signal.SIGSTOP)
        assert goes_on(sock)
        with tls.session(grid.port) as other:  # it waits until another one accepts
            assert goes_on(other)
        until_gone(frozen)
        assert goes_on(sock)


def test_an_upgrade_ends_no_session_and_the_old_process_does_not_wait_for_it(kernel: KernelTls) -> None:
    with tls_grid() as grid, tls.session(grid.port) as sock:
        old = tls_pid(grid)
        assert grid.command("upgrade", "--force").returncode == 0
        until_gone(old)
        assert goes_on(sock)
        with tls.session(grid.port) as other:
            assert goes_on(other)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["in clear", "encrypted"])
def test_a_session_on_another_host_outlives_the_tls_processes_and_the_forwarder(
    is_encrypted: bool, kernel: KernelTls, tmp_path: Path
) -> None:
    """The line to the other host is encrypted if that one has a certificate, too."""
    with contextlib.closing(RedisServer()) as redis:
        pair = tls.own_pair(tmp_path, "IP:127.0.0.1,IP:127.0.0.2")
        files = {"PWGRID_TLS_CERT": str(pair), "PWGRID_TLS_KEY": str(pair), "PWGRID_TLS_CA": str(pair)}
        with (
            host(redis.url, "127.0.0.1", f"{CHROMIUM}=1", MAX_CONCURRENT_SESSIONS="1", **files) as first_grid,
            host(
                *(redis.url, "127.0.0.2", f"{CHROMIUM}=1"),
                MAX_CONCURRENT_SESSIONS="1",
                **(files if is_encrypted else {}),
            ) as second_grid,
        ):
            trusted = tls.trusting(pair)
            first = Host(first_grid, "127.0.0.1", trusted=trusted)
            second = Host(second_grid, "127.0.0.2", trusted=trusted if is_encrypted else None)
            know_each_other(first, second)
            with first.session(), streaming(encrypted(first.session())) as stream:
                eventually(lambda: hosts_of_sessions(first) == [first.name, second.name], "both are on record")
                victims = [
                    (first_grid, tls_pid(first_grid)),
                    (first_grid, first_grid.ask("status")["forwarder"]["pid"]),
                ]
                if is_encrypted:
                    victims.append((second_grid, tls_pid(second_grid)))
                for grid, victim in victims:
                    kill_and_await_successor(grid, victim)
                    stream.goes_on()
                stream.stop()
                sock = stream.sock
                sock.settimeout(0)
                with contextlib.suppress(ssl.SSLWantReadError):
                    sock.unwrap()  # its TLS says that it ends, and the connection stays
                eventually(lambda: hosts_of_sessions(first) == [first.name], "it has ended")
