"""Chooses workers by what the master tells of them, while Redis is away. Does no I/O.

It takes no lease: each worker admits by its own slots, as always. A session that begins so gets its record, with owner
and names, once Redis is back, from what its worker was told.
"""

from collections.abc import Collection

from pwgrid.proxy.roster import Roster
from pwgrid.proxy.select.claim import Claim


class SelectionWithoutRedis:
    """Chooses the workers of each pool by turns."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._turn: list[str] = []
        """Workers of all pools, those whose turn it is first; the one that was chosen last is at the end."""

    def choose(self, claim: Claim, excluded: Collection[str]) -> str | None:
        """Returns the id of the next worker that may have a slot, or None."""
        fit = {
            worker.worker_id
            for worker in self._roster.workers.values()
            if (worker.pool, worker.browser_type) == (claim.pool, claim.browser_type)
            and worker.status == "available"
            and worker.worker_id not in excluded
            and claim.worker_id in (None, worker.worker_id)
            and claim.playwright_version in (None, worker.playwright_version)
        }
        if not fit:
            return None
        known = [each for each in self._turn if each in self._roster.workers]
        order = [*known, *sorted(fit - set(known))]
        chosen = next(each for each in order if each in fit)
        order.remove(chosen)
        self._turn = [*order, chosen]
        return chosen
