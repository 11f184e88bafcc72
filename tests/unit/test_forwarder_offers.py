"""What the forwarder does with an offer until it has a connection to the other host: over real sockets, without a
process."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from pwgrid.common.reasons import OfferRefusal
from pwgrid.forwarder.ask_tls_process import NO_TLS
from pwgrid.forwarder.main import Forwarder
from pwgrid.forwarder.offers import Offer
from pwgrid.forwarder.resolve import Address, Found
from pwgrid.runtime.child_arguments import ForwarderArguments
from pwgrid.settings.model import Settings

BOUND_S: Final = 20.0
HEAD: Final = b"GET /forwarded/1 HTTP/1.1\r\n\r\n"


class Offered:
    """A forwarder that is offered a client, for a host with the addresses that are said here."""

    def __init__(self, directory: Path, held: ExitStack, *addresses: socket.socket, **settings: str) -> None:
        self.forwarder = Forwarder(ForwarderArguments(Settings(**settings), directory))  # type: ignore[arg-type]
        held.callback(self.forwarder.close)
        self._addresses: list[Address] = [(socket.AF_INET, each.getsockname()) for each in addresses]
        self.forwarder._resolver.resolve = self._resolve  # type: ignore[method-assign]
        self._front = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.client = held.enter_context(socket.create_connection(self._front.getsockname(), BOUND_S))
        self.said: list[dict[str, Any]] = []

    def _resolve(self, _host: str, _port: int, then: Callable[[Found], None]) -> None:
        then([*self._addresses])

    def answer(self, *, connect_s: float = BOUND_S, through: str = "") -> dict[str, Any]:
        """What the forwarder says of it in the end."""
        accepted, _ = self._front.accept()
        until = time.monotonic() + 2 * BOUND_S
        offer = Offer("s1", until, until, "there", 1, HEAD, connect_s, accepted, self._hear, through)
        self.forwarder._on_offer(offer)
        while not self.said:
            self.forwarder.loop.run()
        return self.said[-1]

    def _hear(self, packet: bytes) -> None:
        told = json.loads(packet)
        if "refused" in told:
            self.said.append(told)
            self.forwarder.loop.call_later(0, self.forwarder.loop.stop)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def black_hole(held: ExitStack) -> socket.socket:
    """A port that answers no SYN: its queue is full."""
    full = held.enter_context(socket.socket())
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    for _ in range(4):
        waiting = held.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    return full


def test_an_address_that_does_not_answer_keeps_nobody_from_the_next_one(
    tmp_path: Path, held: ExitStack, black_hole: socket.socket
) -> None:
    host = held.enter_context(socket.create_server(("127.0.0.1", 0)))
    offered = Offered(tmp_path, held, black_hole, black_hole, host)

    def refuse() -> None:
        offered.forwarder.loop.remove(host)
        served = held.enter_context(host.accept()[0])
        served.sendall(b"HTTP/1.1 503 no\r\n\r\n")

    offered.forwarder.loop.add_reader(host, refuse)
    answer = offered.answer()
    assert (answer["refused"], answer["detail"]) == (OfferRefusal.NOT_TAKEN, "there:1: HTTP/1.1 503 no")


def test_where_no_address_answers_all_have_their_share_of_the_time(
    tmp_path: Path, held: ExitStack, black_hole: socket.socket
) -> None:
    offered = Offered(tmp_path, held, *[black_hole] * 5)
    answer = offered.answer(connect_s=0.1)
    assert (answer["refused"], answer["detail"]) == (OfferRefusal.UNREACHABLE, "there:1: no connection within 0.1 s")


def test_a_host_that_speaks_tls_cannot_be_reached_by_one_that_has_no_tls_process(
    tmp_path: Path, held: ExitStack
) -> None:
    answer = Offered(tmp_path, held).answer(through=str(tmp_path / "tls-out.sock"))
    assert (answer["refused"], answer["detail"]) == (OfferRefusal.UNREACHABLE, f"there:1: {NO_TLS}")


def test_a_tls_process_that_has_died_says_nothing_of_the_other_host(tmp_path: Path, held: ExitStack) -> None:
    answer = Offered(tmp_path, held, tls_ca="/etc/hostname").answer(through=str(tmp_path / "tls-out.sock"))
    assert answer["refused"] == OfferRefusal.NO_WAY


def test_a_forwarder_without_a_free_descriptor_says_nothing_of_the_other_host(
    tmp_path: Path, held: ExitStack, black_hole: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    offered = Offered(tmp_path, held, black_hole)

    def resolve(_host: str, _port: int, then: Callable[[Found], None]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("pwgrid.forwarder.offers.socket.socket", no_socket)
            then([(socket.AF_INET, black_hole.getsockname())])

    offered.forwarder._resolver.resolve = resolve  # type: ignore[method-assign]
    answer = offered.answer()
    assert (answer["refused"], answer["detail"]) == (OfferRefusal.NO_WAY, "Too many open files")
