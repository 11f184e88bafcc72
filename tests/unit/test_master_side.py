"""The master's side of a control link, over real sockets."""

import socket

from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.control.exactly_once import Link
from pwgrid.control.frames import MAX_FRAME_BYTES, MAX_PARTS, decode, encode
from pwgrid.control.master_side import MasterSide


def test_a_child_that_was_silent_and_wakes_may_be_silent_again() -> None:
    ours, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loop, silences = Loop(), 0

    def is_silent() -> None:
        nonlocal silences
        silences += 1

    side = MasterSide(loop, "proxy", 0.05, lambda _frame: None, is_silent)
    with child:
        side.attach(ours)
        while silences < 1:
            loop.wait()
        child.send(encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0}))
        while silences < 2:
            loop.wait()
        side.close("the test is over")


def test_a_state_of_more_workers_than_a_frame_holds_arrives_whole() -> None:
    """5,000 workers, as the master tells its proxy of them, over a socket with room for two frames or so."""
    like = {"browserType": "chromium", "status": "available", "playwrightVersion": "1.65.1", "protocols": ["cdp"]}
    state = {"workers": [{"id": f"{number:08x}", "pool": "größer", **like} for number in range(5000)]}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(10)
    loop, child = Loop(), Link("child", "proxy")
    child.connect({})
    side = MasterSide(loop, "proxy", 30.0, lambda _frame: None, lambda: None)
    told = []
    with theirs:
        while (packet := child.next_packet()) is not None:
            theirs.send(packet)
            child.sent()
        side.attach(ours)
        side.read_what_is_left()
        side.push_state({"workers": []})
        side.push_state(state)
        while not told or told[-1] != state:
            if (frame := child.receive(theirs.recv(MAX_FRAME_BYTES))) is not None and frame["t"] == "state":
                told.append(frame["data"])
            loop.call_at(loop.now(), lambda: None)  # so that it waits for nothing
            loop.wait()
        side.close("the test is over")
    assert told in ([state], [{"workers": []}, state])


def test_a_state_that_fits_into_no_frames_is_left_out_and_said_once() -> None:
    ours, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child.settimeout(10)
    with child, capture_logs() as logs:
        side = MasterSide(Loop(), "proxy", 30.0, lambda _frame: None, lambda: None)
        child.send(encode({"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0}))
        side.attach(ours)
        side.read_what_is_left()
        for state in ("x" * MAX_FRAME_BYTES * MAX_PARTS, "y" * MAX_FRAME_BYTES * MAX_PARTS, "short"):
            side.push_state({"reason": state})
        side.close("the test is over")
        frames = [decode(child.recv(MAX_FRAME_BYTES)) for _ in range(3)]
    assert [frame["t"] for frame in frames] == ["init", "state", "close"]
    assert frames[1]["data"] == {"reason": "short"}
    assert [line["event"] for line in logs].count("state_dropped") == 1
