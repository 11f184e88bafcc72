"""What the control link asks of the loop that it runs on; the master's is the one that there is."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final, Protocol

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT


class Loop(Protocol):
    """Calls handlers for descriptors that are ready."""

    def now(self) -> float:
        """Monotonic seconds."""

    def add(self, fd: int, handler: Callable[[], None], events: int = READ) -> None:
        """Call `handler` whenever `fd` is ready; replaces what was there for this descriptor."""

    def want(self, fd: int, events: int) -> None:
        """Change what is waited for on `fd`."""

    def remove(self, fd: int) -> None:
        """Forget `fd`; call it before the descriptor is closed. Idempotent."""
