"""Makes pipes larger through which large messages go, as long as there are few such pipes."""

from __future__ import annotations

import contextlib
import fcntl
from typing import Final

LARGE_BYTES: Final = 1 << 18
LARGE_FROM: Final = 1 << 15
"""A pipe gets larger when one splice has moved so much into it."""

MOST_LARGE: Final = 64
"""How many there may be. The kernel lets a user's pipes have 64 MiB together (fs.pipe-user-pages-soft), and gives those
that come after that two pages each, which would slow down all sessions."""


class LargePipes:
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def enlarge(self, pipe: int) -> bool:
        """Returns whether the pipe is large now; then `released` is called at its end."""
        if self.count < MOST_LARGE:
            with contextlib.suppress(OSError):  # the kernel's own limit
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, LARGE_BYTES)
                self.count += 1
                return True
        return False

    def released(self) -> None:
        self.count -= 1
