"""Chooses workers while Redis is away, by the master's roster and the workers' own answers. Takes no lease.

A session that begins so gets its record, with owner and names, once Redis is back, from what its worker was told."""

from collections.abc import Collection

from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.queue import Ticket


class LocalSelection:
    """Chooses workers in turn; each admits by its own slots, as always."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._turn: list[str] = []
        """Workers of all pools, those whose turn it is first; the one that was chosen last is at the end."""

    def choose(self, ticket: Ticket, not_to_choose: Collection[str]) -> str | None:
        """Returns the id of the next worker that may have a slot, or None. Gives the ticket another session id."""
        fit = {
            worker.worker_id
            for worker in self._roster.workers.values()
            if (worker.pool, worker.browser_type) == (ticket.pool, ticket.browser_type)
            and worker.status == "available"
            and worker.worker_id not in ticket.excluded
            and worker.worker_id not in not_to_choose
            and ticket.worker_id in (None, worker.worker_id)
            and ticket.playwright_version in (None, worker.playwright_version)
        }
        if not fit:
            return None
        known = [each for each in self._turn if each in self._roster.workers]
        order = [*known, *sorted(fit - set(known))]
        chosen = next(each for each in order if each in fit)
        order.remove(chosen)
        self._turn = [*order, chosen]
        # Redis may still lease a slot for the old id after the caller gave up: this session needs another id.
        ticket.take_another_id()
        ticket.chosen_locally, ticket.selection_s = True, 0.0
        return chosen
