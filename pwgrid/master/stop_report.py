"""Says what the stop of the grid waits for, on the terminal that started it. Stops nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from pwgrid.common.wording import counted
from pwgrid.master.workers.one_worker import ManagedWorker

ANSWER_S: Final = 1.0
"""How long to wait for workers to say how many sessions they have: what they said last is up to a ping old."""
COUNT_S: Final = 1.0


class StopReport:
    """`say(text)` prints a line that stays, `count_down(text)` one that the next one replaces; None: no terminal."""

    def __init__(self, say: Callable[[str], None], count_down: Callable[[str], None] | None) -> None:
        self._say = say
        self._count_down = count_down
        self._told_at = -math.inf
        self._is_told = self._is_hurried = False
        self._asked_at = math.inf

    def tell(self, records: Collection[ManagedWorker], now: float, drain_s: float, *, hurried: bool) -> float:
        """Say what is new. Returns when to call it again at the latest (monotonic seconds)."""
        self._asked_at = min(self._asked_at, now)
        if not self._is_told and not hurried:
            answered = all(record.has_told_drain for record in records)
            if not answered and now < self._asked_at + ANSWER_S:
                return self._asked_at + ANSWER_S
        live = sum(record.active for record in records)
        sessions = counted(live, "live session")
        if hurried and not self._is_hurried:
            self._is_hurried = self._is_told = True
            self._say(f"stopping: ending {sessions} now")
        elif not self._is_told:
            self._is_told = True
            if live:
                self._say(f"stopping: {sessions} may go on for {drain_s:g} s; Ctrl-C again (or SIGTERM) ends them now")
            else:
                self._say("stopping: no live session")
        if self._count_down is None or self._is_hurried or not live:
            return math.inf
        if now >= self._told_at + COUNT_S:
            self._told_at = now
            left_s = max((record.life.sessions_until - now for record in records if record.active), default=0.0)
            left = f"{max(0, math.ceil(min(left_s, drain_s)))} s left"
            self._count_down(f"stopping: {sessions}, {left}, Ctrl-C ends them now")
        return self._told_at + COUNT_S
