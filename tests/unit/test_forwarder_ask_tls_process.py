"""What the forwarder gets from a TLS process: a connection to a host, or why there is none. The TLS process is a Unix
socket of this test."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pwgrid.common.reasons import OfferRefusal
from pwgrid.forwarder.ask_tls_process import AskedTlsProcess, Connected
from pwgrid.forwarder.loop import Loop

LINE: Final = b"HOST there 443\r\n"


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def tls_process(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "tls.sock"))
        listener.listen()
        yield listener


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection to a host, and the host's end of it."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


class Asked:
    """One connection that was asked for, and what came of it."""

    def __init__(self, loop: Loop, path: str) -> None:
        self.loop = loop
        self.connected: Connected | None = None
        self.asks = AskedTlsProcess(loop, path, "there", 443, self._on_connected)
        self.asks.start()

    def answered(self) -> Connected:
        if self.connected is None:
            self.loop.run()
        assert self.connected is not None
        return self.connected

    def _on_connected(self, connected: Connected) -> None:
        assert self.connected is None, "it has been answered"
        self.connected = connected
        self.loop.stop()


def accepted(tls_process: socket.socket) -> socket.socket:
    way, _ = tls_process.accept()
    assert way.recv(100) == LINE
    return way


def test_it_gets_the_socket_of_the_host(
    loop: Loop, tls_process: socket.socket, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    asked = Asked(loop, tls_process.getsockname())
    with accepted(tls_process) as way:
        socket.send_fds(way, [b"CONNECTED\r\n"], [near.fileno()])
        with asked.answered() as host:
            assert not os.get_blocking(host.fileno())
            host.send(b"hello")
            assert far.recv(100) == b"hello"
            assert way.recv(1) == b""  # the TLS process is not needed any more


def test_it_gets_the_line_to_the_tls_process_where_that_copies(loop: Loop, tls_process: socket.socket) -> None:
    asked = Asked(loop, tls_process.getsockname())
    with accepted(tls_process) as way:
        way.send(b"CONNECTED\r\n")
        with asked.answered() as host:
            host.send(b"hello")
            assert way.recv(100) == b"hello"


def test_an_answer_may_come_in_two_pieces(loop: Loop, tls_process: socket.socket) -> None:
    asked = Asked(loop, tls_process.getsockname())
    with accepted(tls_process) as way:
        way.send(b"REFUSED its certi")
        loop.call_later(0, lambda: way.send(b"ficate is not trusted\r\n"))
        assert asked.answered() == (OfferRefusal.UNREACHABLE, "its certificate is not trusted")
        assert way.recv(1) == b""


@pytest.mark.parametrize("said", [b"", b"CONN"])
def test_a_tls_process_that_ends_has_not_answered_which_is_not_the_other_host_s_fault(
    said: bytes, loop: Loop, tls_process: socket.socket
) -> None:
    asked = Asked(loop, tls_process.getsockname())
    with accepted(tls_process) as way:
        way.send(said)
    assert asked.answered() == (OfferRefusal.NO_WAY, "the TLS process has not answered")


def test_a_tls_process_that_does_not_listen_has_a_successor_in_a_moment(loop: Loop, tmp_path: Path) -> None:
    asked = Asked(loop, str(tmp_path / "none.sock"))
    assert asked.answered() == (OfferRefusal.NO_WAY, "the TLS process is gone (No such file or directory)")


def test_who_has_asked_and_goes_hears_nothing_and_keeps_nothing(loop: Loop, tls_process: socket.socket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    asked = Asked(loop, tls_process.getsockname())
    with accepted(tls_process) as way:
        asked.asks.cancel()
        assert way.recv(1) == b""
        loop.call_later(0, loop.stop)
        loop.run()
    assert asked.connected is None
    assert len(os.listdir("/proc/self/fd")) == before
