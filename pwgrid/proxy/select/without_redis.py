"""Chooses workers while Redis is away, by the master's roster and the workers' own answers. Takes no lease.

A session that begins so gets its record, with owner and names, once Redis is back, from what its worker was told."""

from collections import deque
from collections.abc import Collection
from typing import Final

from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Ticket
from pwgrid.registry.records import Selection

CHOSEN_LOCALLY: Final = ""
"""The endpoint of a selection that Redis knows nothing of."""


class LocalSelection:
    """Chooses workers in turn; each admits by its own slots, as always.

    A worker that refused as full is not chosen until it reports a free slot.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._full: set[str] = set()
        """Ids of full workers; `choose` removes those that are gone."""
        self._turn: deque[str] = deque()

    def choose(self, ticket: Ticket, lost: Collection[str]) -> Selection | None:
        """Returns the next worker that may have a slot, or None. Gives the ticket another session id."""
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
        # Redis may still lease a slot for the old id after the caller gave up: this session needs another id.
        ticket.take_another_id()
        ticket.chosen_locally, ticket.selection_s = True, 0.0
        return Selection(CHOSEN_LOCALLY, chosen)

    def refused(self, selection: Selection, reason: str) -> bool:
        """Notes that a worker is full. Returns False if it refused for another reason, or Redis had chosen it."""
        if reason != "full" or selection.endpoint != CHOSEN_LOCALLY:
            return False
        self._full.add(selection.worker_id)
        return True

    def freed(self, worker_id: str) -> None:
        self._full.discard(worker_id)
