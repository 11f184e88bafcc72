"""What a forwarder does next with one way of a session, against a model of a source, a pipe and a target that give and
take any number of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pwgrid.forwarder.splice_steps import Direction, Step


@dataclass
class Kernel:
    """`source`: what has arrived and is unread; `room`: how much the target takes now. It says "would block" for an
    empty source, a full pipe and a full target alike, as the kernel does, and tells of changes by edges."""

    pipe_size: int
    source: list[int] = field(default_factory=list)
    pipe: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    room: int = 0
    has_ended: bool = False
    ends_passed_on: int = 0

    def fill(self, most: int) -> int:
        size = min(most, len(self.source), self.pipe_size - len(self.pipe))
        if not size:
            if self.has_ended and not self.source:
                return 0
            raise BlockingIOError
        self.pipe += self.source[:size]
        del self.source[:size]
        return size

    def drain(self, most: int) -> int:
        size = min(most, len(self.pipe), self.room)
        if not size:
            raise BlockingIOError
        self.target += self.pipe[:size]
        del self.pipe[:size]
        self.room -= size
        return size


def run(direction: Direction, kernel: Kernel, most: int, *, asks: bool = True) -> None:
    """As forwarder/spliced_session.py does: steps, until one has to wait. `asks`: the last event has not told of an
    end, so the source is asked whether it has more."""
    for _ in range(10_000):
        step = direction.next()
        if step is Step.WAIT:
            return
        try:
            if step is Step.FILL:
                direction.filled(kernel.fill(most))
            elif step is Step.DRAIN:
                direction.drained(kernel.drain(min(most, direction.held)))
                if asks and not direction.held and not kernel.source and not kernel.has_ended:
                    direction.source_is_empty()
            else:
                kernel.ends_passed_on += 1
                direction.finish()
        except BlockingIOError:
            direction.blocked()
    raise AssertionError("it never waits")


class AnyOrder(RuleBasedStateMachine):
    """Bytes arrive, room appears, the process is replaced by another one, in any order."""

    @initialize(pipe_size=st.integers(1, 8), most=st.integers(1, 16), asks=st.booleans())
    def begin(self, pipe_size: int, most: int, asks: bool) -> None:
        self.asks = asks
        self.kernel, self.direction, self.most = Kernel(pipe_size), Direction(), most
        self.given = 0
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @precondition(lambda self: not self.kernel.has_ended)
    @rule(size=st.integers(1, 20))
    def bytes_arrive(self, size: int) -> None:
        self.kernel.source += range(self.given, self.given + size)
        self.given += size
        self.direction.is_readable = True
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @rule(size=st.integers(1, 20))
    def the_target_has_room(self, size: int) -> None:
        was_full, self.kernel.room = self.kernel.room == 0, self.kernel.room + size
        if was_full:  # an edge
            self.direction.is_writable = True
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @precondition(lambda self: not self.kernel.has_ended)
    @rule()
    def the_source_ends(self) -> None:
        self.kernel.has_ended = True
        self.direction.is_readable = True
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @rule()
    def an_event_tells_nothing_new(self) -> None:
        self.direction.is_readable = self.direction.is_writable = True
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @rule()
    def a_successor_takes_over(self) -> None:
        """It knows what the kernel says of the pipe, and nothing else."""
        self.direction = Direction(len(self.kernel.pipe))
        run(self.direction, self.kernel, self.most, asks=self.asks)

    @invariant()
    def what_has_arrived_is_passed_on_in_order(self) -> None:
        if not hasattr(self, "kernel"):
            return
        kernel, direction = self.kernel, self.direction
        assert direction.held == len(kernel.pipe)
        assert [*kernel.target, *kernel.pipe, *kernel.source] == [*range(self.given)]

    @invariant()
    def it_waits_only_for_what_has_to_come(self) -> None:
        if not hasattr(self, "kernel"):
            return
        kernel, direction = self.kernel, self.direction
        if kernel.pipe:
            assert kernel.room == 0
            assert not direction.is_writable
        elif kernel.has_ended:
            assert direction.is_finished
            assert kernel.ends_passed_on
        else:
            assert not kernel.source
            assert not kernel.ends_passed_on

    def teardown(self) -> None:
        if not hasattr(self, "kernel"):
            return
        self.kernel.has_ended = True
        self.kernel.room += 10_000
        self.an_event_tells_nothing_new()
        assert self.kernel.target == [*range(self.given)]
        assert self.kernel.ends_passed_on >= 1
        assert self.direction.next() is Step.WAIT


TestAnyOrder = AnyOrder.TestCase


@given(held=st.integers(1, 1 << 20), taken=st.integers(1, 1 << 20))
def test_what_is_in_the_pipe_goes_before_anything_else(held: int, taken: int) -> None:
    direction = Direction(held)
    assert direction.next() is Step.DRAIN
    direction.drained(min(held, taken))
    assert direction.next() is (Step.DRAIN if taken < held else Step.FILL)
    assert direction.passed == min(held, taken)


def test_would_block_means_the_side_that_is_meant() -> None:
    direction = Direction()
    direction.blocked()
    assert (direction.is_readable, direction.is_writable, direction.next()) == (False, True, Step.WAIT)
    direction.is_readable = True
    direction.filled(5)
    direction.blocked()
    assert (direction.is_readable, direction.is_writable, direction.next()) == (True, False, Step.WAIT)


def test_a_source_that_was_reset_still_has_its_bytes_passed_on() -> None:
    direction = Direction()
    direction.filled(5)
    direction.source_failed()
    assert direction.next() is Step.DRAIN
    direction.drained(5)
    assert direction.next() is Step.END


def test_nothing_goes_to_a_target_that_takes_nothing_more() -> None:
    direction = Direction(5)
    direction.finish()
    assert direction.next() is Step.WAIT
