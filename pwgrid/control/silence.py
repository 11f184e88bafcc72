"""Decides whether the other end of a control link has been silent for too long. No I/O."""

from __future__ import annotations

from typing import Final

LATE_S: Final = 1.0
"""A process that looks later than planned by more than this has been frozen itself."""


class Silence:
    """Judges one peer, which sends something every few seconds as long as it lives. Times are monotonic seconds.

    A process that was frozen itself cannot judge its peer: the peer's frames may be unread, or it took this process for
    lost and will reconnect. So a look that comes late gives the peer its whole time once more.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self._heard_at = now

    @property
    def look_at(self) -> float:
        """When to ask next whether it is over."""
        return self._heard_at + self.limit_s

    def heard(self, now: float) -> None:
        self._heard_at = now

    def is_over(self, now: float) -> bool:
        late_s = now - self.look_at
        if late_s > LATE_S:
            self._heard_at = now
        return 0.0 <= late_s <= LATE_S
