"""Timers and descriptors of the loop, on real pipes and a real clock; a timer that is due needs no waiting."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from pwgrid.common.selectors_loop import READ, WRITE, Loop


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_timers_that_are_due_are_called_in_order_before_anything_is_waited_for(loop: Loop) -> None:
    called: list[str] = []
    now = loop.now()
    loop.call_at(now - 1, lambda: called.append("second"))
    loop.call_at(now - 2, lambda: called.append("first"))
    loop.call_at(now + 3600, lambda: called.append("never"))
    loop.wait()
    assert called == ["first", "second"]


def test_what_is_ready_is_handled_before_the_timers_that_are_due(loop: Loop, pipe: tuple[int, int]) -> None:
    """After a freeze both are: whether somebody was silent is known once what he said is read."""
    called: list[str] = []
    read_fd, write_fd = pipe
    loop.add(read_fd, lambda: called.append(os.read(read_fd, 10).decode()))
    loop.call_at(loop.now() - 1, lambda: called.append("timer"))
    os.write(write_fd, b"handler")
    loop.wait()
    assert called == ["handler", "timer"]


def test_a_timer_is_called_once(loop: Loop) -> None:
    called: list[float] = []
    timer = loop.call_at(loop.now(), lambda: called.append(timer.when))
    loop.wait()
    loop.call_at(loop.now(), lambda: None)
    loop.wait()
    assert called == [math.inf]


def test_a_timer_that_is_armed_anew_has_only_its_last_time(loop: Loop) -> None:
    called: list[str] = []
    timer = loop.call_at(loop.now() - 1, lambda: called.append("moved"))
    timer.arm(loop.now() + 3600)
    loop.call_at(loop.now(), lambda: None)
    loop.wait()
    assert (called, timer.when > loop.now()) == ([], True)
    timer.arm(loop.now())
    loop.wait()
    assert called == ["moved"]


@pytest.mark.parametrize("how", ["cancel", "infinity"])
def test_a_timer_that_is_cancelled_is_not_called(loop: Loop, how: str) -> None:
    called: list[str] = []
    timer = loop.call_at(loop.now(), lambda: called.append("called"))
    for _ in range(2):
        timer.cancel() if how == "cancel" else timer.arm(math.inf)
    loop.call_at(loop.now(), lambda: None)
    loop.wait()
    assert (called, loop.scheduler.empty()) == ([], True)


def test_a_timer_may_arm_itself_and_cancel_another_one_that_is_due(loop: Loop) -> None:
    called: list[str] = []
    now = loop.now()

    def first() -> None:
        called.append("first")
        other.cancel()
        again.arm(now + 3600)

    again = loop.call_at(now - 2, first)
    other = loop.call_at(now - 1, lambda: called.append("other"))
    loop.wait()
    assert (called, again.when) == (["first"], now + 3600)


def test_a_handler_is_called_when_there_is_something_to_read_or_no_writer_any_more(loop: Loop) -> None:
    read_fd, write_fd = os.pipe()
    read: list[bytes] = []
    loop.add(read_fd, lambda: read.append(os.read(read_fd, 10)))
    os.write(write_fd, b"x")
    loop.wait()
    os.close(write_fd)
    loop.wait()
    assert read == [b"x", b""]
    loop.remove(read_fd)
    loop.remove(read_fd)
    os.close(read_fd)


def test_a_handler_that_another_one_has_removed_in_this_round_is_not_called(loop: Loop) -> None:
    pipes = [os.pipe(), os.pipe()]
    called: list[int] = []

    def handle(mine: int, other: int) -> None:
        called.append(mine)
        loop.remove(other)

    (first, _), (second, _) = pipes
    loop.add(first, lambda: handle(first, second))
    loop.add(second, lambda: handle(second, first))
    for _, write_fd in pipes:
        os.write(write_fd, b"x")
    loop.wait()
    assert len(called) == 1
    for ends in pipes:
        for fd in ends:
            os.close(fd)


def test_room_to_write_is_waited_for_only_where_it_is_wanted(loop: Loop, pipe: tuple[int, int]) -> None:
    _, write_fd = pipe
    called: list[str] = []
    loop.add(write_fd, lambda: called.append("ready"))
    loop.call_at(loop.now(), lambda: None)
    loop.wait()
    assert called == []
    loop.want(write_fd, READ | WRITE)
    loop.wait()
    assert called == ["ready"]
