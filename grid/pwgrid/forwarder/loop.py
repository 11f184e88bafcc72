"""The forwarder's loop: one epoll for all of its descriptors, and timers.

Sockets whose bytes it forwards are watched by edges: each is registered once, and no system call beside the splices is
needed for a message, however often one side or the other has to be waited for.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

BROKEN: Final = select.EPOLLHUP | select.EPOLLERR
"""Nothing can be written any more: the connection was reset, or has ended both ways."""

ENDED: Final = select.EPOLLRDHUP | BROKEN
READABLE: Final = select.EPOLLIN | ENDED
WRITABLE: Final = select.EPOLLOUT | BROKEN

_EDGES: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_MOST_EVENTS: Final = 64
"""How many it takes at a time: the array for them is made anew at each call."""

Handler = Callable[[int], object]
"""Gets what epoll says."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Timer:
    """One call that is to come, unless it is cancelled."""

    __slots__ = ("callback", "is_cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Idempotent; does nothing after the call."""
        self.is_cancelled = True


class Loop:
    """Calls a handler for each descriptor that is ready, from `run` to `stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, tuple[Handler, int]] = {}
        """By descriptor: whom to call, and the turn in which it was added."""
        self._turn = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()
        self._soon: list[Callable[[], object]] = []
        self._is_stopped = False

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def add_reader(self, fd: HasFileno, callback: Callable[..., object], /, *args: Any) -> None:
        """Calls `callback` as long as there is something to read."""
        self._add(fd.fileno(), select.EPOLLIN, lambda _events: callback(*args))

    def remove_reader(self, fd: HasFileno, /) -> None:
        """Forgets it; call this before it is closed. Idempotent."""
        self.remove(fd)

    def add_edges(self, fd: HasFileno, handler: Handler) -> None:
        """Calls `handler` now, if it is ready, and each time that there is something new to read or room to write."""
        self._add(fd.fileno(), _EDGES, handler)

    def remove(self, fd: HasFileno) -> None:
        """Forgets it. Call this before it is closed: another process may keep the same socket open, and epoll would
        go on telling of it. Idempotent."""
        number = fd.fileno()
        if self._handlers.pop(number, None) is not None:
            self._epoll.unregister(number)

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer:
        """Calls `callback` after so many seconds."""
        timer = Timer(partial(callback, *args))
        heapq.heappush(self._timers, (self.now() + delay, next(self._number), timer))
        return timer

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once, after what is ready now."""
        self._soon.append(callback)

    def stop(self) -> None:
        """Has `run` return after the handlers of this turn."""
        self._is_stopped = True

    def run(self) -> None:
        """Returns after `stop`; it may be called again then."""
        poll, handlers = self._epoll.poll, self._handlers
        nobody: tuple[Handler, int] = (lambda _events: None, 0)
        while not self._is_stopped:
            ready = poll(self._wait_s(), _MOST_EVENTS)
            turn = self._turn = self._turn + 1
            for fd, events in ready:
                # An earlier handler may have closed it, and its number may be another one's by now.
                handler, since = handlers.get(fd, nobody)
                if since != turn:
                    handler(events)
            if self._soon:
                soon, self._soon = self._soon, []
                for callback in soon:
                    callback()
            if self._timers and self._timers[0][0] <= self.now():
                self._call_due()
        self._is_stopped = False

    def close(self) -> None:
        self._epoll.close()

    def _add(self, fd: int, events: int, handler: Handler) -> None:
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = (handler, self._turn)

    def _wait_s(self) -> float | None:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def _call_due(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                timer.is_cancelled = True
                timer.callback()
