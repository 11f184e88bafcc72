"""The master's only wait: which descriptors are ready; knows nothing of what they mean."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable

from pwgrid.control.poll import READ

Handler = Callable[[], None]


class Loop:
    """poll(2) with one handler for each descriptor, called when any of its events is there."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def add(self, fd: int, handler: Handler, events: int = READ) -> None:
        """Call `handler` whenever `fd` is ready; replaces what was there for this descriptor."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def want(self, fd: int, events: int) -> None:
        """Change what is waited for on `fd`."""
        self._poll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forget `fd`; call it before the descriptor is closed. Idempotent."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, until: float) -> None:
        """Wait for descriptors until the monotonic time `until`, then call the handlers of those that are ready."""
        timeout_ms = None if math.isinf(until) else max(0, math.ceil((until - self.now()) * 1000))
        ready = [(fd, self._handlers.get(fd)) for fd, _ in self._poll.poll(timeout_ms)]
        for fd, handler in ready:
            # An earlier handler of this round may have closed the descriptor, and its number may be in use again.
            if handler is not None and self._handlers.get(fd) is handler:
                handler()
