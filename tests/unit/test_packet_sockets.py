"""What a process said last is taken by each side of a link, although it left something unread: over real sockets."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pwgrid.common.packet_sockets import despite_reset
from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import Frame, encode
from pwgrid.control.master_side import MasterSide
from pwgrid.control.server import ControlServer

PATIENCE_S = 10.0
"""Bounds a failure; nothing waits for it to pass."""

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_what_is_queued_comes_before_the_end(pair: Pair) -> None:
    ours, theirs = pair
    ours.send(b"unread")
    for said in (b"one", b"two"):
        theirs.send(said)
    theirs.close()
    assert [despite_reset(ours.recv, 100) for _ in range(3)] == [b"one", b"two", b""]


def test_other_errors_are_raised(pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(BlockingIOError):
        despite_reset(ours.recv, 100)

    def is_always_reset() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        despite_reset(is_always_reset)


@pytest.fixture
def master_side(pair: Pair) -> Iterator[tuple[MasterSide, list[Frame]]]:
    """A master's side that has been greeted over the pair's second socket, and what it has received since then."""
    received: list[Frame] = []
    side = MasterSide(Loop(), "a1b2c3d4", 30.0, received.append, lambda: None)
    ours, child = pair
    child.send(encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0}))
    side.attach(ours)
    side.read_what_is_left()
    received.clear()
    yield side, received
    side.close("the test is over")


THE_LAST: list[Frame] = [
    {"t": "event", "idx": 1, "name": "stopped", "data": {"cut": 0}},
    {"t": "close", "reason": "stopped"},
]


def say_the_last(child: socket.socket) -> None:
    for frame in THE_LAST:
        child.send(encode(frame))


def test_a_master_hears_of_the_end_of_a_child_that_has_not_read_its_last_command(
    pair: Pair, master_side: tuple[MasterSide, list[Frame]]
) -> None:
    side, received = master_side
    _, child = pair
    side.send("drain", {"reason": "memory"})
    say_the_last(child)
    child.close()
    side.read_what_is_left()
    assert received == THE_LAST


def test_a_master_that_writes_to_a_dead_child_hears_of_its_end_all_the_same(
    pair: Pair, master_side: tuple[MasterSide, list[Frame]]
) -> None:
    side, received = master_side
    _, child = pair
    say_the_last(child)
    child.close()
    side.send("drain", {"reason": "memory"})
    side.read_what_is_left()
    assert received == THE_LAST


def test_the_request_of_a_visitor_who_does_not_wait_for_answers_is_heard(tmp_path: Path) -> None:
    heard: list[Frame] = []

    def hears(data: Frame) -> Frame:
        heard.append(data)
        return {}

    loop = Loop()
    server = ControlServer(loop, tmp_path / "s", {"drain": hears}, lambda _reconnect: False)
    server.open()
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        given_up = True

    loop.call_at(loop.now() + PATIENCE_S, give_up)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
            visitor.connect(str(tmp_path / "s"))
            for number in range(3):
                visitor.send(encode({"t": "request", "name": "drain", "data": {"number": number}}))
            while not heard and not given_up:
                loop.wait()
        while len(heard) < 3 and not given_up:
            loop.wait()
    finally:
        server.close()
    assert heard == [{"number": number} for number in range(3)]
