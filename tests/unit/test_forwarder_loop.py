"""The forwarder's loop: timers, handlers that close other descriptors, and what is called soon."""

import os
import socket
from collections.abc import Iterator

import pytest

from pwgrid.forwarder.loop import ENDED, READABLE, WRITABLE, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_timers_come_in_their_order_and_a_cancelled_one_does_not(loop: Loop) -> None:
    called: list[str] = []
    loop.call_later(0.003, loop.stop)
    loop.call_later(0.002, called.append, "second")
    loop.call_later(0.001, called.append, "first")
    loop.call_later(0.0, called.append, "never").cancel()
    loop.run()
    assert called == ["first", "second"]


def test_a_timer_may_arm_another_one_that_is_due_and_readers_still_have_their_turn(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        loop.add_reader(ours, loop.stop)

        def again() -> None:
            loop.call_later(0.0, again)

        again()
        loop.run()


def test_edges_come_once_for_each_change(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    seen: list[int] = []

    def note(events: int) -> None:
        seen.append(events)
        loop.call_soon(loop.stop)

    with ours, theirs:
        loop.add_edges(ours, note)
        loop.run()
        assert seen[-1] & WRITABLE
        assert not seen[-1] & READABLE
        theirs.send(b"x")
        loop.run()
        assert seen[-1] & READABLE
        assert not seen[-1] & ENDED
        loop.call_later(0.01, loop.stop)
        loop.run()
        assert len(seen) == 2  # nothing new, although the byte is unread
        theirs.shutdown(socket.SHUT_WR)
        loop.run()
        assert seen[-1] & ENDED


def test_a_handler_may_end_another_one_of_the_same_turn(loop: Loop) -> None:
    one, other = socket.socketpair()
    called: list[int] = []

    def ends(mine: socket.socket, its: socket.socket) -> None:
        called.append(mine.fileno())
        loop.remove(its)
        loop.call_soon(loop.stop)

    with one, other:
        for mine, its in ((one, other), (other, one)):
            mine.send(b"x")
            loop.add_reader(mine, ends, mine, its)
        loop.run()
        assert len(called) == 1


def test_nothing_is_told_of_a_descriptor_that_another_process_still_has_open(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        copy = os.dup(ours.fileno())  # as the master's
        loop.add_edges(ours, lambda _events: pytest.fail("it was removed"))
        loop.remove(ours)
        loop.remove(ours)
        ours.close()
        theirs.send(b"x")
        loop.call_later(0.01, loop.stop)
        loop.run()
        os.close(copy)


def test_what_was_said_of_a_descriptor_is_not_told_to_the_next_one_of_its_number(loop: Loop) -> None:
    first, second = socket.socketpair(), []
    called: list[str] = []

    def replace_both() -> None:
        """Called for whichever comes first; the other one is ready, too."""
        numbers = {each.fileno() for each in first}
        for each in first:
            loop.remove(each)
            each.close()
        second.extend(socket.socketpair())
        assert {each.fileno() for each in second} == numbers
        for each in second:
            loop.add_reader(each, called.append, "nothing has come for it")
        loop.call_later(0.01, loop.stop)

    for each in first:
        each.send(b"x")
        loop.add_reader(each, replace_both)
    loop.run()
    assert called == []
    for each in second:
        each.close()
