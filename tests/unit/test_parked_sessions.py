"""The parking place of the master over real sockets: what a forwarder has parked is there for the next one, and no
descriptor is left of what it has let go."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.frames import ProtocolError, encode
from pwgrid.control.parked_session import FDS, ParkedSession
from pwgrid.master import parked_sessions
from pwgrid.master.parked_sessions import ParkedSessions

FRESH = encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0, "isFresh": True})
NOT_FRESH = encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0, "isFresh": False})


def session(number: int) -> ParkedSession:
    return ParkedSession(f"s{number}", 1.5, 2.5, "127.0.0.1:1", "127.0.0.1:2")


class Master:
    """The parking place, and a forwarder's end of the link to it."""

    def __init__(self, lost_s: float = 60.0) -> None:
        self.loop = Loop()
        self.silent: list[int] = []
        self.parked = ParkedSessions(self.loop, lambda: lost_s, lambda: self.silent.append(1))

    def connect(self, init: bytes) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.parked.attach(ours, init)
        theirs.setblocking(False)
        return theirs

    def turn(self) -> None:
        """All that is ready."""
        self.loop.call_at(self.loop.now(), lambda: None)
        for _ in range(3):
            self.loop.call_at(self.loop.now(), lambda: None)
            self.loop.wait()


@pytest.fixture
def master() -> Iterator[Master]:
    before = set(os.listdir("/proc/self/fd"))
    master = Master()
    yield master
    master.parked.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)
    yield fd
    os.close(fd)


def park(link: socket.socket, number: int, fds: list[int]) -> None:
    socket.send_fds(link, [encode(session(number).frame())], fds)


def said(link: socket.socket) -> list[tuple[dict[str, Any], list[int]]]:
    """All that the master has said, and the descriptors that came along."""
    found = []
    with suppress(BlockingIOError):
        while True:
            packet, fds, _, _ = socket.recv_fds(link, 65536, FDS)
            if not packet:
                break
            found.append((json.loads(packet), fds))
    return found


def test_the_next_forwarder_gets_what_the_last_one_has_parked_and_not_released(master: Master) -> None:
    pipes = [os.pipe() for _ in range(3)]
    with master.connect(FRESH) as first:
        for number in (1, 2, 3):
            park(first, number, [fd for pipe in pipes for fd in pipe])
        first.send(encode({"t": "release", "session": "s2"}))
    master.parked.drop_link()  # its end was seen; what it had said before counts
    assert len(master.parked) == 2
    os.write(pipes[1][1], b"in flight")
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
    with master.connect(FRESH) as second:
        greeting, *left = said(second)
        assert greeting[0]["t"] == "init"
        assert [ParkedSession.read(frame["data"]) for frame, _ in left] == [session(1), session(3)]
        assert [len(fds) for _, fds in left] == [FDS, FDS]
        assert os.read(left[1][1][2], 100) == b"in flight"
        for _, fds in left:
            for fd in fds:
                os.close(fd)
        assert len(master.parked) == 2  # until it says that they have ended
        second.send(encode({"t": "release", "session": "s1"}))
        master.turn()
        assert len(master.parked) == 1


def test_one_that_has_sessions_already_knows_better(master: Master, null: int) -> None:
    with master.connect(FRESH) as link:
        park(link, 1, [null] * FDS)
        master.turn()
    with master.connect(NOT_FRESH) as again:
        assert [frame["t"] for frame, _ in said(again)] == ["init"]
        assert len(master.parked) == 0
        park(again, 2, [null] * FDS)
        park(again, 2, [null] * FDS)  # the same one, which takes the place of the first
        master.turn()
        assert len(master.parked) == 1


@pytest.mark.parametrize("count", [0, 1, FDS - 1])
def test_what_makes_no_sense_ends_the_link_and_leaves_no_descriptor(master: Master, null: int, count: int) -> None:
    with master.connect(FRESH) as link:
        said(link)
        socket.send_fds(link, [encode(session(1).frame())], [null] * count) if count else link.send(
            encode(session(1).frame())
        )
        master.turn()
        assert link.recv(1) == b""
    with master.connect(FRESH) as link:
        socket.send_fds(link, [encode({"t": "release", "session": "s1"})], [null])
        master.turn()
        said(link)
        assert link.recv(1) == b""
    with master.connect(FRESH) as link:
        socket.send_fds(link, [encode({"t": "park", "data": {"session": 1}})], [null] * FDS)
        master.turn()
        said(link)
        assert link.recv(1) == b""
    assert len(master.parked) == 0


def test_a_first_frame_that_is_none_is_refused(master: Master) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(ProtocolError):
        master.parked.attach(ours, b"{}")


def test_more_than_the_link_holds_is_sent_as_it_is_read(master: Master, null: int) -> None:
    count = 400
    with master.connect(FRESH) as first:
        for number in range(count):
            park(first, number, [null] * FDS)
            if number % 50 == 49:
                master.turn()
    master.parked.drop_link()
    assert len(master.parked) == count
    found = 0
    with master.connect(FRESH) as second:
        while found < count:
            for frame, fds in said(second):
                found += frame["t"] == "park"
                for fd in fds:
                    os.close(fd)
            master.turn()


def test_what_finds_no_room_is_not_kept_and_told_once(
    master: Master, null: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_sessions, "room", lambda: 1)
    with master.connect(FRESH) as link, capture_logs() as logs:
        for number in range(3):
            park(link, number, [null] * FDS)
        master.turn()
        assert len(master.parked) == 1
    assert [line["event"] for line in logs].count("session_not_parked") == 1


def test_a_forwarder_that_says_nothing_for_too_long_is_silent() -> None:
    master = Master(lost_s=0.05)
    master.parked.expect_within(0.05)
    while not master.silent:
        master.loop.wait()
    master.parked.expect_within(float("inf"))
    master.parked.close()
    assert master.silent == [1]


def test_the_room_leaves_descriptors_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_sessions.resource, "getrlimit", lambda _: (1024, 4096))
    assert parked_sessions.room() == (1024 - parked_sessions.OWN_FDS) // FDS
    monkeypatch.setattr(parked_sessions.resource, "getrlimit", lambda _: (64, 64))
    assert parked_sessions.room() == 0
