"""The master's side of the control link on real sockets, with a child that ends."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.exactly_once import Link
from pwgrid.control.frames import MAX_FRAME_BYTES, Frame
from pwgrid.control.master_side import MasterSide

HEARS: dict[str, Callable[[Loop, MasterSide], object]] = {
    "its loop sees the end": lambda loop, _: loop.wait(),
    "it has seen the process end": lambda _, side: side.read_what_is_left(),
}


def write(link: Link, sock: socket.socket) -> None:
    while (packet := link.next_packet()) is not None:
        sock.send(packet)
        link.sent()


@pytest.mark.parametrize("hears", HEARS.values(), ids=HEARS)
def test_what_a_child_has_said_last_is_heard_though_it_did_not_read_all_before_its_end(
    hears: Callable[[Loop, MasterSide], object],
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loop, child = Loop(), Link("child", "a1b2c3d4")
    heard: list[Frame] = []
    side = MasterSide(loop, "a1b2c3d4", 30, heard.append, lambda: None)
    with theirs:
        child.connect({"name": "a1b2c3d4"})
        write(child, theirs)
        side.attach(ours)
        loop.wait()
        child.receive(theirs.recv(MAX_FRAME_BYTES))
        child.send("stopped", {"cut": 0})
        write(child, theirs)
        side.send("drain", {})
    hears(loop, side)
    assert {"t": "event", "idx": 1, "name": "stopped", "data": {"cut": 0}} in heard
    side.close("ended")
