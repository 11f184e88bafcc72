"""The loop of a process without asyncio: waits for ready descriptors (`selectors`) and due timers (`sched`)."""

from __future__ import annotations

import math
import sched
import selectors
import time
from collections.abc import Callable
from typing import Final

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

Callback = Callable[[], object]


class Timer:
    """Calls `callback` once, at the time (monotonic seconds) that `arm` set last."""

    def __init__(self, loop: Loop, callback: Callback) -> None:
        self.when = math.inf
        self._loop = loop
        self._callback = callback
        self._event: sched.Event | None = None

    def arm(self, when: float) -> None:
        """Set or change the time; infinity cancels."""
        if when == self.when:
            return
        self.cancel()
        if when < math.inf:
            self.when = when
            self._event = self._loop.scheduler.enterabs(when, 0, self._fire)

    def cancel(self) -> None:
        """Idempotent."""
        event, self._event = self._event, None
        self.when = math.inf
        if event is not None:
            self._loop.scheduler.cancel(event)

    def _fire(self) -> None:
        self._event = None
        self.when = math.inf
        self._loop.has_fired = True
        self._callback()


class Loop:
    """One handler for each descriptor, called when it is ready or has hung up, and any number of timers."""

    def __init__(self) -> None:
        self.scheduler = sched.scheduler(self.now, lambda _delay: None)
        self.has_fired = False
        self._selector = selectors.PollSelector()

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def timer(self, callback: Callback) -> Timer:
        """A timer that is not armed yet."""
        return Timer(self, callback)

    def call_at(self, when: float, callback: Callback) -> Timer:
        """Call `callback` at `when`, unless the timer is cancelled or armed anew."""
        timer = Timer(self, callback)
        timer.arm(when)
        return timer

    def add(self, fd: int, handler: Callback) -> None:
        """Call `handler` whenever there is something to read from `fd`."""
        self._selector.register(fd, READ, handler)

    def want(self, fd: int, events: int) -> None:
        """Change what is waited for on `fd`: READ, WRITE or both."""
        self._selector.modify(fd, events, self._selector.get_key(fd).data)

    def remove(self, fd: int) -> None:
        """Forget `fd`; call it before the descriptor is closed. Idempotent."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def wait(self) -> None:
        """Call the handlers of ready descriptors and the due timers; wait only if there was neither.

        Handlers come first: a process that was frozen for a while learns what has happened before its timers say that
        time is up. It returns after one round, so that the caller can act on what changed before the next wait.
        """
        self.has_fired = False
        was_ready = self._handle(0)
        next_s = self.scheduler.run(blocking=False)
        if not was_ready and not self.has_fired:
            self._handle(next_s)

    def _handle(self, within_s: float | None) -> bool:
        ready = self._selector.select(within_s)
        for key, _ in ready:
            # An earlier handler of this round may have closed the descriptor, and its number may be in use again.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        return bool(ready)
