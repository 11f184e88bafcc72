"""The control link's protocol, one side or both, without sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pwgrid.control.exactly_once import (
    ACK_EVERY,
    MAX_UNACKNOWLEDGED,
    Link,
    LinkFullError,
)
from pwgrid.control.frames import MAX_FRAME_BYTES, MAX_PARTS, ProtocolError, decode, encode


class Wire:
    """Both sides and what is under way between them."""

    def __init__(self) -> None:
        self.master = Link("master", "a1b2c3d4")
        self.child = Link("child", "a1b2c3d4")
        self.to_master: list[bytes] = []
        self.to_child: list[bytes] = []
        self.events: list[int] = []
        self.commands: list[int] = []

    def connect(self) -> None:
        self.cut()
        self.master.connect({"lostThresholdS": 30.0})
        self.child.connect({"name": "a1b2c3d4"})

    def cut(self) -> None:
        self.master.disconnect()
        self.child.disconnect()
        self.to_master.clear()
        self.to_child.clear()

    def write(self) -> None:
        for link, wire in ((self.master, self.to_child), (self.child, self.to_master)):
            while (packet := link.next_packet()) is not None:
                wire.append(packet)
                link.sent()

    def deliver(self, link: Link, packet: bytes) -> None:
        """What a broken frame does to a connection is part of the protocol."""
        applied = self.events if link is self.master else self.commands
        try:
            frame = link.receive(packet)
        except ProtocolError:
            self.cut()
            return
        if frame is not None and frame["t"] in ("event", "command"):
            applied.append(frame["data"]["n"])

    def pump(self) -> None:
        self.write()
        while self.to_master or self.to_child:
            if self.to_master:
                self.deliver(self.master, self.to_master.pop(0))
            if self.to_child:
                self.deliver(self.child, self.to_child.pop(0))
            self.write()


def open_wire() -> Wire:
    wire = Wire()
    wire.connect()
    wire.pump()
    return wire


OPERATIONS = st.sampled_from(
    [
        "event",
        "event",
        "command",
        "command",
        "write",
        "to master",
        "to master",
        "to child",
        "to child",
        "to master twice",
        "to child twice",
        "drop to master",
        "drop to child",
        "ping",
        "ping",
        "cut",
        "reconnect",
    ]
)


@settings(max_examples=400)
@given(st.lists(OPERATIONS, max_size=80))
def test_commands_and_events_are_applied_exactly_once_and_in_order_whatever_the_connections_do(
    operations: list[str],
) -> None:
    wire = Wire()
    sent = {"event": 0, "command": 0}
    for operation in operations:
        if operation in sent:
            link = wire.child if operation == "event" else wire.master
            link.send("n", {"n": sent[operation]})
            sent[operation] += 1
        elif operation == "write":
            wire.write()
        elif operation == "ping":
            wire.child.ping(0.0, {})
        elif operation == "cut":
            wire.cut()
        elif operation == "reconnect":
            wire.connect()
        else:
            link, queue = (wire.master, wire.to_master) if "master" in operation else (wire.child, wire.to_child)
            if not queue:
                continue
            packet = queue.pop(0)
            if not operation.startswith("drop"):
                wire.deliver(link, packet)
            if operation.endswith("twice") and link.phase != "down":
                wire.deliver(link, packet)
    wire.connect()
    wire.pump()
    assert wire.events == list(range(sent["event"]))
    assert wire.commands == list(range(sent["command"]))


def test_what_was_sent_while_there_was_no_connection_arrives_after_the_greeting() -> None:
    wire = Wire()
    wire.child.send("launched", {"n": 0})
    wire.master.send("drain", {"n": 7})
    assert wire.child.next_packet() is None
    wire.connect()
    wire.pump()
    assert (wire.events, wire.commands) == ([0], [7])


def test_a_greeting_says_where_both_sides_stand() -> None:
    wire = open_wire()
    wire.child.send("launched", {"n": 0})
    wire.pump()
    wire.cut()
    wire.child.connect({"name": "a1b2c3d4", "slots": 5})
    packet = wire.child.next_packet()
    assert packet is not None
    assert json.loads(packet) == {
        "t": "init",
        "name": "a1b2c3d4",
        "slots": 5,
        "lastCommandIdx": 0,
        "lastEventIdx": 1,
        "ackedEventIdx": 0,
    }
    wire.master.connect({"lostThresholdS": 30.0})
    init = wire.master.receive(packet)
    assert init is not None
    assert (init["t"], init["slots"]) == ("init", 5)
    reply = wire.master.next_packet()
    assert reply is not None
    assert json.loads(reply) == {
        "t": "init",
        "workerId": "a1b2c3d4",
        "lostThresholdS": 30.0,
        "lastCommandIdx": 0,
        "lastEventIdx": 1,
    }


def test_nothing_is_sent_by_the_master_before_it_was_greeted() -> None:
    master = Link("master", "a1b2c3d4")
    master.send("drain", {})
    master.connect({})
    assert master.next_packet() is None


def test_an_acknowledgement_goes_with_the_next_ping() -> None:
    wire = open_wire()
    wire.master.send("drain", {"n": 1})
    wire.pump()
    assert wire.child.next_packet() is None
    wire.child.ping(3.0, {"active": 2})
    assert wire.child.next_packet() == encode({"t": "ack", "idx": 1})
    wire.pump()
    assert wire.master.unacknowledged() == []


def test_the_master_acknowledges_when_it_is_pinged() -> None:
    wire = open_wire()
    wire.child.send("launched", {"n": 1})
    wire.pump()
    assert wire.master.next_packet() is None
    wire.child.ping(3.0, {})
    wire.write()
    wire.master.receive(wire.to_master.pop())
    assert wire.master.next_packet() == encode({"t": "ack", "idx": 1})


def test_many_frames_are_acknowledged_without_waiting() -> None:
    wire = open_wire()
    for n in range(ACK_EVERY):
        wire.child.send("drain_asked", {"n": n})
    wire.pump()
    assert wire.child.unacknowledged() == []


def test_only_the_latest_state_is_sent() -> None:
    wire = open_wire()
    wire.master.state({"stopping": False})
    wire.master.state({"stopping": True})
    wire.write()
    (packet,) = wire.to_child
    assert wire.child.receive(packet) == {"t": "state", "data": {"stopping": True}}


def test_the_latest_state_is_told_on_each_new_connection() -> None:
    wire = Wire()
    wire.master.state({"stopping": False})
    wire.master.state({"stopping": True})
    for _ in range(2):
        wire.connect()
        wire.write()
        wire.master.receive(wire.to_master.pop())
        wire.write()
        told = [wire.child.receive(packet) for packet in wire.to_child]
        assert told[1:] == [{"t": "state", "data": {"stopping": True}}]


LARGE = {"text": 'ü"\\' * MAX_FRAME_BYTES}
"""A state of several frames, whose text is longer in a frame than it is."""


def parts_of(wire: Wire) -> list[bytes]:
    wire.write()
    packets, wire.to_child = wire.to_child, []
    return packets


def test_a_state_that_is_larger_than_a_frame_comes_in_parts() -> None:
    wire = open_wire()
    wire.master.state(LARGE)
    parts = parts_of(wire)
    assert len(parts) > 5
    assert max(map(len, parts)) <= MAX_FRAME_BYTES
    assert [wire.child.receive(part) for part in parts] == [*[None] * (len(parts) - 1), {"t": "state", "data": LARGE}]


def test_a_newer_state_takes_the_place_of_the_parts_that_are_not_sent() -> None:
    wire = open_wire()
    wire.master.state(LARGE)
    first = wire.master.next_packet()
    assert first is not None
    wire.master.sent()
    wire.child.receive(first)
    wire.master.send("drain", {"n": 1})
    wire.master.state(newer := {"text": "n" * MAX_FRAME_BYTES})
    told = [wire.child.receive(packet) for packet in parts_of(wire)]
    assert [frame["data"] for frame in told if frame] == [{"n": 1}, newer]


def test_parts_of_a_connection_that_has_ended_are_not_put_together_with_those_of_the_next_one() -> None:
    wire = open_wire()
    wire.master.state(LARGE)
    before = parts_of(wire)
    for part in before[:2]:
        wire.child.receive(part)
    wire.connect()
    wire.write()
    wire.master.receive(wire.to_master.pop())
    greeting, *parts = parts_of(wire)
    wire.child.receive(greeting)
    assert [wire.child.receive(part) for part in parts][-1] == {"t": "state", "data": LARGE}
    with pytest.raises(ProtocolError):
        wire.child.receive(before[2])


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"n": 1, "of": 2, "text": "{}"},
        {"n": 0, "of": 0, "text": "{}"},
        {"n": 0, "of": MAX_PARTS + 1, "text": "{}"},
        {"n": True, "of": 2, "text": "{}"},
        {"n": 0, "of": 1, "text": 7},
        {"n": 0, "of": 1, "text": "{"},
        {"n": 0, "of": 1, "text": "[]"},
        {"n": 0, "of": 1, "text": '{"a":"\u20ac"}'},
    ],
)
def test_a_part_that_is_none_is_a_protocol_error(part: dict[str, Any]) -> None:
    wire = open_wire()
    with pytest.raises(ProtocolError):
        wire.child.receive(encode({"t": "part", "data": part}))


def test_a_ping_is_answered_and_carries_the_state() -> None:
    wire = open_wire()
    wire.child.ping(4.5, {"active": 3})
    wire.write()
    assert wire.master.receive(wire.to_master.pop()) == {"t": "state", "data": {"active": 3}}
    assert wire.master.next_packet() == encode({"t": "pong", "ts": 4.5})


def test_a_ping_that_waits_brings_back_no_older_state() -> None:
    wire = open_wire()
    wire.child.ping(4.5, {"ready": False})
    wire.child.state({"ready": True})
    wire.write()
    told = [wire.master.receive(packet) for packet in wire.to_master]
    assert told[-1] == {"t": "state", "data": {"ready": True}}
    assert wire.master.next_packet() == encode({"t": "pong", "ts": 4.5})


def test_a_closed_link_is_never_resumed() -> None:
    wire = open_wire()
    wire.child.send("stopped", {"n": 9})
    wire.child.close("stopped")
    wire.write()
    assert [wire.master.receive(packet) for packet in wire.to_master] == [
        {"t": "event", "idx": 1, "name": "stopped", "data": {"n": 9}},
        {"t": "close", "reason": "stopped"},
    ]
    for link in (wire.child, wire.master):
        assert link.phase == "closed"
        with pytest.raises(ProtocolError):
            link.connect({})


def test_another_identity_clears_the_history() -> None:
    child = Link("child", "a1b2c3d4")
    child.send("launched", {"n": 1})
    child.connect({})
    assert child.next_packet() is not None
    child.sent()
    child.receive(
        encode({"t": "init", "workerId": "ffffffff", "lastCommandIdx": 0, "lastEventIdx": 0, "lostThresholdS": 30})
    )
    assert child.ident == "ffffffff"
    assert child.unacknowledged() == []
    assert child.next_packet() is None
    child.send("available", {})
    assert child.next_packet() == encode({"t": "event", "idx": 1, "name": "available", "data": {}})


def test_a_new_master_goes_on_where_the_old_one_had_acknowledged() -> None:
    wire = open_wire()
    wire.child.send("launched", {"n": 0})
    wire.master.send("drain", {"n": 0})
    wire.pump()
    wire.child.ping(0.0, {})
    wire.pump()  # the first event and the command are acknowledged now
    wire.child.send("draining", {"n": 1})
    wire.pump()
    wire.cut()
    wire.child.connect({"name": "a1b2c3d4"})
    packet = wire.child.next_packet()
    assert packet is not None
    wire.child.sent()
    wire.master = Link("master", "a1b2c3d4", adopts=True)
    wire.master.send("drain", {"n": 1})
    wire.master.connect({})
    wire.events.clear()
    wire.deliver(wire.master, packet)
    wire.master.send("drain", {"n": 2})
    wire.pump()
    assert wire.events == [1]
    assert wire.commands == [0, 1, 2]


@pytest.mark.parametrize("told", [-1, 5, "2", True])
def test_an_adoption_with_an_impossible_history_is_refused(told: Any) -> None:
    master = Link("master", "a1b2c3d4", adopts=True)
    master.connect({})
    with pytest.raises(ProtocolError):
        master.receive(encode({"t": "init", "lastEventIdx": 4, "lastCommandIdx": 0, "ackedEventIdx": told}))


def test_an_announced_end_is_told() -> None:
    wire = open_wire()
    wire.child.stopping()
    wire.write()
    assert [wire.master.receive(packet) for packet in wire.to_master] == [{"t": "stopping"}]


def test_a_sentence_with_bytes_that_are_no_text_still_arrives() -> None:
    wire = open_wire()
    wire.child.send("failed", {"reason": "no file \udcff"})
    wire.write()
    (failed,) = [wire.master.receive(packet) for packet in wire.to_master]
    assert failed is not None
    assert failed["data"] == {"reason": "no file ?"}


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff\xfe",
        b"not json",
        b"[" * 5000,
        b'"text"',
        b"{}",
        b'{"t":7}',
        b'{"t":"shout"}',
        b'{"t":"event","idx":true,"name":"x","data":{}}',
        b'{"t":"event","idx":-1,"name":"x","data":{}}',
        b'{"t":"event","idx":1.0,"name":"x","data":{}}',
        b'{"t":"event","idx":1,"name":"x","data":[]}',
        b'{"t":"event","idx":1,"data":{}}',
        b'{"t":"ack","idx":"1"}',
        b'{"t":"close"}',
        b'{"t":"ping"}',
        b"1" * 5000,
        b" " * (MAX_FRAME_BYTES + 1),
    ],
)
def test_a_corrupt_frame_is_a_protocol_error(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(packet)


@pytest.mark.parametrize(
    "frame",
    [
        {"t": "command", "idx": 1, "name": "drain", "data": {}},
        {"t": "pong"},
        {"t": "init", "lastCommandIdx": 0, "lastEventIdx": 0},
        {"t": "request", "name": "status", "data": {}},
        {"t": "event", "idx": 2, "name": "late", "data": {}},
        {"t": "ack", "idx": 1},
    ],
)
def test_a_frame_that_an_open_master_does_not_expect_is_a_protocol_error(frame: dict[str, Any]) -> None:
    wire = open_wire()
    with pytest.raises(ProtocolError):
        wire.master.receive(encode(frame))


@pytest.mark.parametrize(
    ("last_command", "last_event"),
    [(1, 0), (0, 0)],
    ids=["applied more than was sent", "sent less than was applied"],
)
def test_a_greeting_that_contradicts_the_history_is_a_protocol_error(last_command: int, last_event: int) -> None:
    wire = open_wire()
    wire.child.send("launched", {"n": 0})
    wire.pump()
    wire.master.disconnect()
    wire.master.connect({})
    with pytest.raises(ProtocolError):
        wire.master.receive(encode({"t": "init", "lastCommandIdx": last_command, "lastEventIdx": last_event}))


def test_a_frame_before_the_greeting_is_a_protocol_error() -> None:
    master = Link("master", "a1b2c3d4")
    master.connect({})
    with pytest.raises(ProtocolError):
        master.receive(encode({"t": "ping", "data": {}}))


@given(st.binary(max_size=200))
def test_no_bytes_make_anything_but_a_frame_or_a_protocol_error(packet: bytes) -> None:
    wire = open_wire()
    try:
        wire.master.receive(packet)
    except ProtocolError:
        assert wire.master.phase == "open"


def test_a_link_that_nobody_reads_is_bounded() -> None:
    child = Link("child", "a1b2c3d4")
    for n in range(MAX_UNACKNOWLEDGED):
        child.send("drain_asked", {"n": n})
    with pytest.raises(LinkFullError):
        child.send("drain_asked", {"n": -1})
    assert len(child.unacknowledged()) == MAX_UNACKNOWLEDGED


def test_a_frame_that_is_too_large_is_refused_and_leaves_no_gap() -> None:
    wire = open_wire()
    with pytest.raises(ValueError, match="over the limit"):
        wire.child.send("launched", {"n": "x" * MAX_FRAME_BYTES})
    wire.child.send("launched", {"n": 0})
    wire.pump()
    assert wire.events == [0]
