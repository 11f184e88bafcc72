"""The forwarder's end of its link to the master, over a real socket: what it gets of the sessions that another one has
left."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pwgrid.common.selectors_loop import Loop as MasterLoop
from pwgrid.control.parked_session import FDS, ParkedSession
from pwgrid.forwarder.loop import Loop
from pwgrid.forwarder.parking import Parking
from pwgrid.forwarder.spliced_session import close_all
from pwgrid.master.parked_sessions import ParkedSessions

BOUND_S = 20.0


class Ends:
    """A forwarder without sessions, and the master, which the forwarder finds on a socket."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(BOUND_S)
        self.loop, self.master_loop = Loop(), MasterLoop()
        self.master = ParkedSessions(self.master_loop, lambda: BOUND_S, lambda: None)
        self.left: list[str] = []
        self.parking = Parking(self.loop, path, BOUND_S, {}, self._on_left)
        self.parking.connect()

    def _on_left(self, parked: ParkedSession, fds: list[int]) -> None:
        self.left.append(parked.session)
        close_all(fds)

    def accept(self) -> dict[str, object]:
        """The master takes the forwarder's connection. Returns what that has said first."""
        link, _ = self.listener.accept()
        link.settimeout(BOUND_S)
        init = link.recv(65536)
        self.master.attach(link, init)
        found: dict[str, object] = json.loads(init)
        return found

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        self.parking.close()
        self.master.close()
        self.loop.close()
        self.listener.close()


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64 + len(os.listdir("/proc/self/fd")), hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        close_all(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path / "control.sock")
    yield ends
    ends.close()


def test_a_session_whose_descriptors_found_no_room_comes_again(ends: Ends) -> None:
    for name in ("s1", "s2"):
        parked = ParkedSession(name, 1.5, 2.5, "127.0.0.1:1", "127.0.0.1:2")
        ends.master._park(parked, tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(FDS)))
    assert ends.accept()["isFresh"] is True
    with no_free_descriptor():
        ends.turn()
    assert ends.left == []
    while not ends.parking._link:
        ends.turn(0.01)
    assert ends.accept()["isFresh"] is True
    assert len(ends.master) == 2  # it still has them
    ends.turn()
    assert ends.left == ["s1", "s2"]


def test_a_forwarder_that_has_all_does_not_ask_for_them_again(ends: Ends) -> None:
    assert ends.accept()["isFresh"] is True
    ends.turn()
    ends.master.drop_link()
    ends.turn()
    while not ends.parking._link:
        ends.turn(0.01)
    assert ends.accept()["isFresh"] is False
