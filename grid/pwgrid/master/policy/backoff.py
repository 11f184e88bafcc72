"""Decides how long to wait before the next start after early deaths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Backoff:
    """The tally of early deaths. The first restart is at once, the next after `first_s`; then the delay doubles up to
    `cap_s`. A run is healthy once it served for `healthy_s` or ended `healthy_sessions` sessions."""

    first_s: float = 0.5
    cap_s: float = 30.0
    healthy_s: float = 60.0
    healthy_sessions: int = 5
    deaths: int = 0
    died_at: float = -math.inf
    not_before: float = -math.inf
    reason: str | None = None

    def is_healthy(self, served_s: float, sessions: int) -> bool:
        """Whether a run that served for so long, with so many sessions, does not count as an early death."""
        return served_s >= self.healthy_s or sessions >= self.healthy_sessions

    def died(self, now: float, reason: str, started_at: float, served_s: float = 0.0, sessions: int = 0) -> Backoff:
        """The tally after a run that ended unplanned: when it started (monotonic seconds), how long it served, and its
        sessions. Those that ran already at the last death do not count again."""
        if self.is_healthy(served_s, sessions):
            return replace(self.healthy(), reason=reason)
        if self.deaths and started_at <= self.died_at:
            return replace(self, reason=reason)
        deaths = self.deaths + 1
        return replace(self, deaths=deaths, died_at=now, not_before=now + self._delay_s(deaths), reason=reason)

    def healthy(self) -> Backoff:
        return replace(self, deaths=0, died_at=-math.inf, not_before=-math.inf, reason=None)

    def retry_s(self, now: float) -> float:
        """Seconds until the next start, for the log."""
        return round(max(0.0, self.not_before - now), 2)

    def _delay_s(self, deaths: int) -> float:
        if deaths <= 1:
            return 0.0
        # The exponent is bounded before the power is taken: a tally of thousands would overflow a float.
        return min(self.cap_s, self.first_s * 2.0 ** min(deaths - 2, 32))
