"""Chooses workers while Redis is away, from the master's roster and the workers' own answers. Holds no lease."""

from collections import deque
from collections.abc import Collection
from typing import Final

from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Ticket
from pwgrid.registry.registry import Selection

CHOSEN_LOCALLY: Final = ""
"""The endpoint of a selection that Redis knows nothing of."""


class LocalSelection:
    """Offers a session to one worker after the other; each admits by its own slots, as it always does.

    A worker that said it is full is left alone until it says that a slot came free.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._full: set[str] = set()
        """Workers that are gone leave this set at the next choice."""
        self._turn: deque[str] = deque()

    def choose(self, ticket: Ticket[Selection], lost: Collection[str]) -> Selection | None:
        """The next worker that may have a slot; None when all have said that they are full."""
        self._full &= self._roster.workers.keys()
        fit = {
            worker.worker_id
            for worker in self._roster.workers.values()
            if (worker.pool, worker.browser_type) == (ticket.pool, ticket.browser_type)
            and worker.status == "available"
            and worker.worker_id not in self._full
            and worker.worker_id not in ticket.excluded
            and worker.worker_id not in lost
            and ticket.worker_id in (None, worker.worker_id)
            and ticket.playwright_version in (None, worker.playwright_version)
        }
        if not fit:
            return None
        self._turn = deque([*(each for each in self._turn if each in fit), *sorted(fit - set(self._turn))])
        chosen = self._turn[0]
        self._turn.rotate(-1)
        # A selection that Redis makes late, after we gave up on it, must not meet this session under the same name.
        ticket.take_another_id()
        return Selection(CHOSEN_LOCALLY, chosen)

    def refused(self, selection: Selection, reason: str) -> bool:
        """The worker did not take a session. True if we chose it, and it is only full: it may be chosen again later."""
        if reason != "full" or selection.endpoint != CHOSEN_LOCALLY:
            return False
        self._full.add(selection.worker_id)
        return True

    def freed(self, worker_id: str) -> None:
        """The worker has a slot again."""
        self._full.discard(worker_id)
