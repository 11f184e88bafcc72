"""Decides what to do next with the bytes that go one way through a forwarded session: from a socket into a pipe, from
the pipe into the other socket. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Step(Enum):
    FILL = auto()  # move bytes from the source into the pipe
    DRAIN = auto()  # move bytes from the pipe into the target
    END = auto()  # tell the target that no more comes
    WAIT = auto()  # for an event of the source or the target, or for nothing any more


@dataclass(slots=True)
class Direction:
    """One way. Bytes go into the pipe only while that is empty: so "would block" means an empty source while the pipe
    is empty, and a full target while it is not. What comes meanwhile waits in the source, whose sender has to wait,
    too, once that is full.

    `held`: bytes in the pipe. `passed`: bytes that the target has taken. `is_readable` and `is_writable`: not known to
    be otherwise since the last event. `is_over`: the source has ended. `is_finished`: its end was passed on, or the
    target takes nothing more.
    """

    held: int = 0
    passed: int = 0
    is_readable: bool = True
    is_writable: bool = True
    is_over: bool = False
    is_finished: bool = False

    def next(self) -> Step:
        """What to do now."""
        if self.is_finished:
            return Step.WAIT
        if self.held:
            return Step.DRAIN if self.is_writable else Step.WAIT
        if self.is_over:
            return Step.END
        return Step.FILL if self.is_readable else Step.WAIT

    def filled(self, size: int) -> None:
        """The source gave so many bytes; none are its end."""
        if size:
            self.held = size
        else:
            self.is_over = True

    def drained(self, size: int) -> None:
        """The target took so many bytes."""
        self.held -= size
        self.passed += size

    def blocked(self) -> None:
        """The last step would have had to wait."""
        if self.held:
            self.is_writable = False
        else:
            self.is_readable = False

    def source_is_empty(self) -> None:
        """The source has nothing now, and has not ended."""
        self.is_readable = False

    def source_failed(self) -> None:
        """The source was reset: what it gave before is still passed on."""
        self.is_over = True

    def finish(self) -> None:
        """The end was passed on, or there is nobody to pass anything on to."""
        self.is_finished = True
