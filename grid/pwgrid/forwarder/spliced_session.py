"""A forwarded session: joins the client's socket and the one to the other host by splice(), through a pipe each way, so
that no byte of it comes into this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import termios
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from pwgrid.common.kernel_tls import is_read_by_kernel
from pwgrid.control.parked_session import ParkedSession
from pwgrid.forwarder.large_pipes import LARGE_FROM, LargePipes
from pwgrid.forwarder.loop import BROKEN, ENDED, READABLE, WRITABLE, Loop, Timer
from pwgrid.forwarder.splice_steps import Direction, Step

log = structlog.get_logger()

MOST_BYTES: Final = 1 << 20
"""How much one splice may move; a pipe takes less."""

MOST_STEPS: Final = 64
"""How many splices one way may take before other sessions have their turn."""

HALF_ENDED_S: Final = 60.0
"""For so long a session goes on in which one side has ended and the other one says nothing. A WebSocket that has ended
on one side is over, and the kernel, too, waits no longer for the other end of a connection that was closed."""

_FLAGS: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
_UNREAD: Final = array("i", [0])

_MESSAGE: Final = select.EPOLLIN | select.EPOLLOUT
"""The events of a socket that has got something, has not ended, and takes what it is given."""


class Way:
    """One way of a session: its state, and its descriptors. The pipe's ends are `into` and `out`. `may_end`: the source
    may have ended, as far as the last event tells. `is_decrypted`: the kernel decrypts the source, and does not count
    as unread what it has decrypted; only a splice that would block tells that there is nothing."""

    __slots__ = (
        *("direction", "into", "is_decrypted", "is_large", "large_pipes", "may_end", "out"),
        *("source", "source_fd", "target", "target_fd"),
    )

    def __init__(
        self,
        source: socket.socket,
        out: int,
        into: int,
        target: socket.socket,
        large_pipes: LargePipes,
    ) -> None:
        self.source, self.source_fd = source, source.fileno()
        self.target, self.target_fd = target, target.fileno()
        self.out = out
        self.into = into
        self.large_pipes = large_pipes
        self.is_large = False
        self.direction = Direction(_unread(out))
        self.may_end = True
        self.is_decrypted = is_read_by_kernel(source)

    def passes_on(self) -> bool:
        """Moves what the source has just got, which has not ended. Returns False if there is more to do: `take` makes
        all further steps.

        The same as FILL and DRAIN, without a call for each: a message of 100 bytes waits for this code, and is a tenth
        faster there and back by it.
        """
        direction = self.direction
        if direction.held or direction.is_over or direction.is_finished or not direction.is_writable:
            return False
        if self.is_decrypted:
            return False
        try:
            direction.filled(os.splice(self.source_fd, self.into, MOST_BYTES, None, None, _FLAGS))
            direction.drained(os.splice(self.out, self.target_fd, direction.held, None, None, _FLAGS))
        except OSError:  # it is met again, or an event tells
            return False
        self.may_end = False
        if direction.held or direction.is_over or _unread(self.source_fd):
            return False
        direction.source_is_empty()
        return True

    def _enlarge_pipe_if_much_comes(self) -> None:
        if self.direction.held >= LARGE_FROM and not self.is_large:
            self.is_large = self.large_pipes.enlarge(self.into)

    def take(self, step: Step) -> bool:
        """Makes a step, or notes why it cannot be made now. Returns False if the source was reset."""
        direction = self.direction
        if step is Step.FILL:
            try:
                direction.filled(os.splice(self.source_fd, self.into, MOST_BYTES, flags=_FLAGS))
                self._enlarge_pipe_if_much_comes()
            except BlockingIOError:
                direction.blocked()
            except OSError:  # a reset; of a source that the kernel decrypts also EINVAL: its TLS has said that it ends
                direction.source_failed()
                return False
        elif step is Step.DRAIN:
            try:
                direction.drained(os.splice(self.out, self.target.fileno(), direction.held, flags=_FLAGS))
            except BlockingIOError:
                direction.blocked()
            except OSError:  # it was reset; what it has sent before is still to be read
                direction.finish()
            else:
                # To ask costs a third of a splice that would block. If more comes later, or the end, an event tells.
                if not (direction.held or self.may_end or self.is_decrypted or _unread(self.source.fileno())):
                    direction.source_is_empty()
        elif step is Step.END:
            with contextlib.suppress(OSError):  # it is gone
                self.target.shutdown(socket.SHUT_WR)
            direction.finish()
        return True


class ForwardedSession:
    """Owns its descriptors from the start, in the order of control/parked_session.py, until it has ended: then it calls
    `on_end` once. A process that takes it over goes on where the one before it was interrupted: it asks the kernel how
    many bytes the pipes hold, and an end that was there to be read is there again."""

    def __init__(
        self,
        loop: Loop,
        parked: ParkedSession,
        fds: Sequence[int],
        large_pipes: LargePipes,
        on_end: Callable[[ForwardedSession], None],
    ) -> None:
        client, host, up_out, up_in, down_out, down_in = fds
        self.parked = parked
        self._loop = loop
        self._on_end = on_end
        self.client = _socket(client)
        self._host = _socket(host)
        self._up = Way(self.client, up_out, up_in, self._host, large_pipes)
        self._down = Way(self._host, down_out, down_in, self.client, large_pipes)
        self._half_ended: Timer | None = None
        self._goes_on_soon = False
        self.is_over = False

    def __repr__(self) -> str:
        return f"<ForwardedSession {self.parked.session} up={self._up.direction} down={self._down.direction}>"

    @property
    def fds(self) -> tuple[int, ...]:
        """Its descriptors."""
        up, down = self._up, self._down
        return self.client.fileno(), self._host.fileno(), up.out, up.into, down.out, down.into

    def start(self) -> None:
        """Moves what there is, and from now on what comes."""
        up, down = self._up, self._down
        self._loop.add_edges(self.client, partial(self._on_events, up, down.direction))
        self._loop.add_edges(self._host, partial(self._on_events, down, up.direction))
        self._go_on()

    def end(self, reason: str) -> None:
        """Closes everything. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        if self._half_ended is not None:
            self._half_ended.cancel()
        self._loop.remove(self.client)
        self._loop.remove(self._host)
        seconds = round(time.time() - self.parked.since, 3)
        up, down = self._up.direction.passed, self._down.direction.passed
        log.debug("forwarded_session_ended", session=self.parked.session, reason=reason, s=seconds, up=up, down=down)
        # The master and a proxy may have the same sockets open for a moment longer.
        for sock in (self.client, self._host):
            with contextlib.suppress(OSError):  # it is gone
                sock.shutdown(socket.SHUT_RDWR)
        self.close()
        self._on_end(self)

    def close(self) -> None:
        """Closes this process's copies of its descriptors, and nothing else. Idempotent."""
        self.client.close()
        self._host.close()
        for way in (self._up, self._down):
            for fd in (way.out, way.into):
                if fd >= 0:
                    os.close(fd)
            way.out = way.into = -1
            if way.is_large:
                way.is_large = False
                way.large_pipes.released()

    def _on_events(self, source_of: Way, target_of: Direction, events: int) -> None:
        if events != _MESSAGE or target_of.held or not source_of.passes_on():
            _note(events, source_of, target_of)
            self._go_on()

    def _go_on(self) -> None:
        self._goes_on_soon = False
        if self.is_over:
            return
        up, down = self._up.direction, self._down.direction
        self._move(self._up, self._down)
        self._move(self._down, self._up)
        if up.is_finished or down.is_finished:
            if up.is_finished and down.is_finished:
                self.end("both sides have ended")
            elif self._half_ended is None:
                self._wait_for_other_side()

    def _move(self, way: Way, other: Way) -> None:
        direction = way.direction
        for _ in range(MOST_STEPS):
            if (step := direction.next()) is Step.WAIT:
                return
            if not way.take(step):
                other.direction.finish()  # who was reset takes nothing more either
        if not self._goes_on_soon:
            self._goes_on_soon = True
            self._loop.call_soon(self._go_on)

    def _wait_for_other_side(self) -> None:
        """Ends the session if the side that has not ended sends nothing for HALF_ENDED_S."""
        passed = self._up.direction.passed + self._down.direction.passed

        def look() -> None:
            if self._up.direction.passed + self._down.direction.passed == passed:
                self.end(f"one side has ended, and the other one has sent nothing for {HALF_ENDED_S:g} s")
            elif not self.is_over:
                self._wait_for_other_side()

        self._half_ended = self._loop.call_later(HALF_ENDED_S, look)


def _note(events: int, source_of: Way, target_of: Direction) -> None:
    """Notes what epoll says of a socket, which is the source of one way and the target of the other."""
    if events & READABLE:
        source_of.direction.is_readable = True
        source_of.may_end = bool(events & ENDED)
    if events & WRITABLE:
        target_of.is_writable = True
    if events & BROKEN:
        target_of.finish()


def new_pipes() -> tuple[int, ...]:
    """The pipes of a session: its last four descriptors. Raises OSError when none is free."""
    first = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return (*first, *os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        close_all(first)
        raise


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _socket(fd: int) -> socket.socket:
    # Family, type and protocol are unused here, but Python asks the kernel for those that are not given.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
    sock.setblocking(False)
    return sock


def _unread(fd: int) -> int:
    """How many bytes there are to be read from a socket or a pipe."""
    fcntl.ioctl(fd, termios.FIONREAD, _UNREAD)
    return _UNREAD[0]
