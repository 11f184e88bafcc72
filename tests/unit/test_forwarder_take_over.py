"""What a forwarder does with the session of another one that was killed between two of the steps with which a client is
served: over real sockets, without a process."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from pwgrid.common.client_marks import mark_passed_on, mark_served
from pwgrid.common.reasons import OfferRefusal
from pwgrid.control.parked_session import ParkedSession
from pwgrid.forwarder.main import Forwarder, is_marked_served
from pwgrid.forwarder.spliced_session import ForwardedSession, new_pipes
from pwgrid.runtime.child_arguments import ForwarderArguments
from pwgrid.settings.model import Settings

BOUND_S = 10.0


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), timeout=BOUND_S)
        other, _ = listener.accept()
    other.settimeout(BOUND_S)
    return one, other


@dataclass
class Left:
    """A session as a forwarder has left it: the ends of its client and its host, and copies of its descriptors."""

    client: socket.socket
    host: socket.socket
    sockets: tuple[socket.socket, socket.socket]
    pipes: tuple[int, ...]

    def fds(self) -> list[int]:
        """Copies, as the master sends them."""
        return [os.dup(fd) for fd in (*(each.fileno() for each in self.sockets), *self.pipes)]

    def is_joined(self, forwarder: Forwarder) -> bool:
        """Whether bytes go through."""
        self.client.sendall(b"x")
        forwarder.loop.call_later(0.05, forwarder.loop.stop)
        forwarder.loop.run()
        self.host.setblocking(False)
        try:
            return self.host.recv(100).endswith(b"x")
        except BlockingIOError:
            return False


@pytest.fixture
def left() -> Iterator[Left]:
    (client, accepted), (connected, host) = tcp_pair(), tcp_pair()
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    left = Left(client, host, (accepted, connected), new_pipes())
    yield left
    for each in (client, host, accepted, connected):
        each.close()
    for fd in left.pipes:
        os.close(fd)


@pytest.fixture
def forwarder(tmp_path: Path) -> Iterator[Forwarder]:
    before = set(os.listdir("/proc/self/fd"))
    forwarder = Forwarder(ForwarderArguments(Settings(), tmp_path))
    yield forwarder
    for session in list(forwarder.sessions.values()):
        session.end("the test is over")
    forwarder.close()
    assert set(os.listdir("/proc/self/fd")) == before


def parked(until: float) -> ParkedSession:
    return ParkedSession("s1", time.time(), until, "127.0.0.1:1", "127.0.0.1:2")


def test_a_client_whose_proxy_still_waits_is_served(left: Left, forwarder: Forwarder) -> None:
    mark_passed_on(left.sockets[0])
    forwarder._take_over(parked(time.monotonic() + 60), left.fds())
    assert is_marked_served(left.sockets[0])
    assert left.is_joined(forwarder)


def test_a_client_that_another_worker_may_have_by_now_is_dropped_untouched(left: Left, forwarder: Forwarder) -> None:
    mark_passed_on(left.sockets[0])
    forwarder._take_over(parked(time.monotonic()), left.fds())
    assert forwarder.sessions == {}
    assert not is_marked_served(left.sockets[0])
    assert not left.is_joined(forwarder)
    left.sockets[0].sendall(b"another worker's")
    assert left.client.recv(100) == b"another worker's"


def test_a_client_that_is_served_already_is_taken_over_however_late(left: Left, forwarder: Forwarder) -> None:
    mark_served(left.sockets[0])
    forwarder._take_over(parked(time.monotonic() - 3600), left.fds())
    assert left.is_joined(forwarder)


def test_what_the_pipes_hold_comes_first(left: Left, forwarder: Forwarder) -> None:
    mark_served(left.sockets[0])
    os.write(left.pipes[1], b"to the host, ")
    os.write(left.pipes[3], b"to the client")
    forwarder._take_over(parked(0), left.fds())
    assert left.client.recv(100) == b"to the client"
    assert left.host.recv(100) == b"to the host, "
    assert left.is_joined(forwarder)


def test_a_forwarder_that_drains_ends_also_after_a_client_for_whom_there_is_no_pipe(
    left: Left, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pipes() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("pwgrid.forwarder.main.new_pipes", no_pipes)
    said: list[object] = []
    client, host = (each.dup() for each in left.sockets)
    offer = mock.Mock(client=client, answer=lambda **told: said.append(told["refused"]))
    pending = mock.Mock(offer=offer)
    forwarder.pending.add(pending)
    forwarder._drains = True
    forwarder._join(pending, host)
    assert said == [OfferRefusal.NO_WAY]
    forwarder.loop.call_later(BOUND_S, lambda: pytest.fail("it goes on"))
    forwarder.loop.run()


def test_a_session_that_it_has_is_not_taken_twice(left: Left, forwarder: Forwarder) -> None:
    mark_served(left.sockets[0])
    for _ in range(2):
        forwarder._take_over(parked(0), left.fds())
    assert left.is_joined(forwarder)


def test_a_session_of_which_one_side_has_ended_does_not_stay_for_ever(
    left: Left, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwgrid.forwarder.spliced_session.HALF_ENDED_S", 0.02)
    mark_served(left.sockets[0])
    forwarder._take_over(parked(0), left.fds())
    (session,) = forwarder.sessions.values()
    assert isinstance(session, ForwardedSession)
    left.client.shutdown(socket.SHUT_WR)
    said = 0

    def goes_on() -> None:
        nonlocal said
        if said < 5 and not session.is_over:
            said += 1
            left.host.sendall(b"x")
            forwarder.loop.call_later(0.005, goes_on)
        elif session.is_over:
            forwarder.loop.stop()
        else:
            forwarder.loop.call_later(0.005, goes_on)

    goes_on()
    forwarder.loop.run()
    assert forwarder.sessions == {}
    assert left.client.recv(100) == b"xxxxx"
    assert left.host.recv(100) == b""
