"""Decides whether the other side of a control link has been silent for too long."""

from __future__ import annotations

from typing import Final

LATE_S: Final = 1.0
"""A process that looks later than planned by more than this has been frozen itself."""

_LOOKS: Final = 4
"""Within the limit, so that one of them comes late when this process, or the whole host, stood still meanwhile."""


class FrozenPeerDetector:
    """Judges one peer, which sends something every few seconds as long as it lives. Times are monotonic seconds.

    A process that was frozen itself cannot judge its peer: the peer's frames may be unread, or it took this process for
    lost and will reconnect; and if the whole host stood still, the peer did, too. So a look that comes late gives the
    peer its whole time once more.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self._heard_at = now
        self._looked_at = now

    @property
    def look_at(self) -> float:
        """When to ask next whether the peer's time is over."""
        return min(self._heard_at + self.limit_s, self._looked_at + self.limit_s / _LOOKS)

    def heard(self, at: float) -> None:
        self._heard_at = max(self._heard_at, at)

    def is_over(self, now: float) -> bool:
        """Whether the peer has been silent for longer than the limit."""
        if now - self.look_at > LATE_S:
            self._heard_at = now
        self._looked_at = now
        return now - self._heard_at >= self.limit_s
