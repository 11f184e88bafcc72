"""The pipes of sessions that move much are larger, and few: over real sockets, without a process."""

from __future__ import annotations

import fcntl
import os
import socket
import threading

import pytest

from pwgrid.control.parked_session import ParkedSession
from pwgrid.forwarder import large_pipes
from pwgrid.forwarder.large_pipes import LARGE_BYTES, LargePipes
from pwgrid.forwarder.loop import Loop
from pwgrid.forwarder.spliced_session import ForwardedSession, new_pipes
from tests.unit.test_forwarder_take_over import tcp_pair


class Joined:
    """A session with its client and its host."""

    def __init__(self, pipes: LargePipes) -> None:
        (self.client, accepted), (connected, self.host) = tcp_pair(), tcp_pair()
        self.loop = Loop()
        fds = (accepted.detach(), connected.detach(), *new_pipes())
        parked = ParkedSession("s", 0.0, 0.0, "client", "host:1")
        self.session = ForwardedSession(self.loop, parked, fds, pipes, lambda _session: self.loop.stop())
        self.session.start()

    def sizes(self) -> list[int]:
        """Of the pipes, that to the host first."""
        _, _, up, _, down, _ = self.session.fds
        return [fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) for pipe in (up, down)]

    def sends(self, size: int) -> None:
        """From the client, until the host has it."""

        def read() -> None:
            left = size
            while left:
                left -= len(self.host.recv(left))
            self.loop.call_soon(self.loop.stop)
            self.client.sendall(b"")
            self.host.sendall(b".")  # wakes the loop

        reader = threading.Thread(target=read)
        writer = threading.Thread(target=self.client.sendall, args=(os.urandom(size),))
        reader.start()
        writer.start()
        self.loop.run()
        reader.join()
        writer.join()

    def close(self) -> None:
        self.session.end("the test is over")
        self.loop.close()
        for sock in (self.client, self.host):
            sock.close()


def test_a_pipe_is_enlarged_by_a_large_message_alone_and_counts_until_its_session_ends() -> None:
    pipes = LargePipes()
    joined = Joined(pipes)
    usual = joined.sizes()
    joined.sends(100)
    assert (joined.sizes(), pipes.count) == (usual, 0)
    joined.sends(4 << 20)
    assert joined.sizes() == [LARGE_BYTES, usual[1]]
    joined.sends(4 << 20)
    assert pipes.count == 1
    joined.close()
    joined.session.close()
    assert pipes.count == 0


def test_no_more_than_a_few_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pipes, "MOST_LARGE", 1)
    pipes = LargePipes()
    first, second = Joined(pipes), Joined(pipes)
    usual = second.sizes()
    for each in (first, second):
        each.sends(4 << 20)
    assert (second.sizes(), pipes.count) == (usual, 1)
    first.close()
    second.sends(4 << 20)
    assert (second.sizes()[0], pipes.count) == (LARGE_BYTES, 1)
    second.close()


def test_a_pipe_that_the_kernel_does_not_enlarge_stays_as_it_is() -> None:
    pipes = LargePipes()
    one, other = socket.socketpair()  # no pipe
    with one, other:
        assert not pipes.enlarge(one.fileno())
    assert pipes.count == 0
