"""The worker's slots: who is admitted, and who has them. Redis mirrors what is decided here."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from pwgrid.common.reasons import OfferRefusal
from pwgrid.common.types import GIVEN_BY_CLIENTS
from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.registry.records import LIFETIME_TAKEN
from pwgrid.worker.holders import Holder, Lease, LiveSession

MOST_RUNS: Final = 20
"""How many entries of `runs` the master gets at most: a frame of the control link is bounded."""

REPORTS_PER_LIFE: Final = 10
"""Reports at equal steps of a worker's life: together they cost far less than the start of its browser."""


class Slots:
    """The live sessions and the leases of one worker, whose `status` says whether it admits any.

    `live` has the sessions and `held` the leases, by their ids; each lease keeps its slot. `max_lifetime` is a number
    of sessions; a lease counts as one, however many clients come with it. What takes none of the lifetime has its own
    browser, and counts among `launches`. Calls `on_freed` when a slot comes free after
    an offer was refused for want of one, or when a suspicion is over for which one was refused.
    """

    def __init__(self, slots: int, max_lifetime: float = math.inf, on_freed: Callable[[], None] = lambda: None) -> None:
        self.slots = slots
        self.max_lifetime = max_lifetime
        self._on_freed = on_freed
        self.status = WorkerStatus.STARTING
        self.live: dict[str, LiveSession] = {}
        self.held: dict[str, Lease] = {}
        self.lifetime = 0
        self.launches = 0
        """Own browsers that sessions have got, but for those sessions that the lifetime counts."""
        self._suspicion: str | None = None
        self._expected: set[str] = set()
        self._has_refused = True
        """Whether an offer was refused for want of a slot, or for a suspicion, and proxies have not heard of a slot
        since. At the start this worker's predecessor may have refused one."""
        self._fewer = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Slots {self.taken}/{self.slots} held={len(self.held)} lifetime={self.lifetime}>"

    @property
    def taken(self) -> int:
        return len(self._holders())

    @property
    def own_browsers(self) -> int:
        """How many sessions have, or wait for, browsers of their own."""
        return sum(session.own is not None for session in self.live.values())

    def kept(self) -> list[LiveSession]:
        """The sessions that wait for a client to come back, the one that has waited longest first."""
        kept = [(session.kept.since, session) for session in self.live.values() if session.kept is not None]
        return [session for _, session in sorted(kept, key=lambda each: each[0])]

    @property
    def is_used_up(self) -> bool:
        """Whether the worker has admitted its last session; live ones go on."""
        return self.lifetime >= self.max_lifetime

    def runs(self) -> list[dict[str, str | int]]:
        """Returns who has how many slots, by names and label key as far as clients gave them; the MOST_RUNS largest."""
        counts = Counter(
            tuple(each.client_fields.get(name, "") for name in GIVEN_BY_CLIENTS)
            for each in self._holders()
            if each.client_fields
        )
        del counts[("",) * len(GIVEN_BY_CLIENTS)]
        return [
            {**dict(zip(GIVEN_BY_CLIENTS, key, strict=True)), "slots": slots}
            for key, slots in counts.most_common(MOST_RUNS)
        ]

    def refusal(self, holder_id: str, deadline: float, now: float) -> OfferRefusal | None:
        """Returns why the worker refuses the session or lease, or None when it has a slot for it.

        A spare admits: a selection offers it a session when it takes the place of a worker that is used up. A late
        offer is refused because the proxy has given the client to another worker by then.
        """
        if self.status not in (WorkerStatus.SPARE, WorkerStatus.AVAILABLE) and not (
            self.status is WorkerStatus.DRAINING and holder_id in self._expected
        ):
            return OfferRefusal.DRAINING
        if now >= deadline:
            return OfferRefusal.LATE
        if self._suspicion is not None:
            self._has_refused = True
            return OfferRefusal.SUSPECT
        if self.is_used_up:
            return OfferRefusal.USED_UP
        # Not all of these take a slot: to count those who do is for a worker that may be full.
        if len(self.live) + len(self.held) >= self.slots and self.taken >= self.slots:
            self._has_refused = True
            return OfferRefusal.FULL
        return None

    def suspect(self, why: str | None) -> None:
        """Admits nobody while there is a reason to think that the browser is sick. Clients of leases are bound to this
        worker, and come all the same."""
        self._suspicion = why
        if why is None and self._has_refused and self.taken < self.slots:
            self._has_refused = False
            self._on_freed()

    def admit(self, session: LiveSession) -> None:
        """Takes a session into a slot of its own, or into that of its lease."""
        self.live[session.id] = session
        self.lifetime += session.takes_lifetime

    def hold(self, lease: Lease) -> None:
        """Keeps a slot for a lease."""
        self.held[lease.id] = lease
        self.lifetime += lease.takes_lifetime

    def takes(self, lease: Lease, taken: str) -> None:
        """Changes what a lease takes of the lifetime: `taken` is what its record says from now on (LIFETIME_TAKEN)."""
        self.lifetime -= lease.takes_lifetime
        lease.client_fields = {**lease.client_fields, LIFETIME_TAKEN: taken}
        self.lifetime += lease.takes_lifetime

    def launched(self, session: LiveSession) -> None:
        """Counts the own browser that a session has got."""
        self.launches += not session.takes_lifetime

    def expect(self, leases: Mapping[str, float]) -> None:
        """Called when a drain begins. `leases` maps sessions and leases that are on their way to the seconds for which
        Redis keeps their slots: these are admitted all the same, and `empty` waits for them."""
        for holder_id in leases.keys() - self.live.keys() - self.held.keys():
            self._expected.add(holder_id)
            asyncio.get_running_loop().call_later(leases[holder_id], self._expect_no_more, holder_id)

    def take_back(self, holder_id: str) -> None:
        """Undoes the admission of a session that the browser server did not get, or of a lease that no proxy kept, also
        in `lifetime`."""
        holder = self.free(holder_id)
        if holder is not None:
            self.lifetime -= holder.takes_lifetime

    def free(self, holder_id: str) -> Holder | None:
        """Frees the slot of the session or lease, and returns it; None if it is not here (any more)."""
        holder = self.live.pop(holder_id, None) or self.held.pop(holder_id, None)
        if holder is not None and holder.takes_slot and self._has_refused:
            self._has_refused = False
            self._on_freed()
        self._expect_no_more(holder_id)  # it has come and gone
        return holder

    async def empty(self) -> None:
        """Returns once no session is live or expected and no lease is held."""
        while self.live or self.held or self._expected:
            self._fewer.clear()
            await self._fewer.wait()

    def _holders(self) -> list[Holder]:
        return [*self.held.values(), *(each for each in self.live.values() if each.takes_slot)]

    def _expect_no_more(self, holder_id: str) -> None:
        self._expected.discard(holder_id)
        self._fewer.set()


def should_report(lifetime: int, told: int, max_lifetime: int) -> bool:
    """Whether the master should hear this count at once: at each tenth of a life, and at every session of the last.
    `told` is the count that it heard last; several sessions may have come since."""
    step = max(1, max_lifetime // REPORTS_PER_LIFE)
    return lifetime // step > told // step or max_lifetime - lifetime < step
