"""The worker's slots: who is admitted, and who has them. The authority for them; Redis only mirrors it."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.policy.admission import Offer, RefusalReason, Room, refusal

NAMES: Final = ("name", "run", "labels")
"""Fields of `told` that come from the client itself."""

MOST_RUNS: Final = 20
"""How many entries of `runs` the master gets at most: a frame of the control link is bounded."""


@dataclass(slots=True)
class LiveSession:
    """A session in one of this worker's slots. `client` is empty where this worker's predecessor admitted it."""

    session_id: str
    client: str = ""
    started_at: float | None = None
    """Unix seconds; None during the handoff, and where only this worker's predecessor knew it."""
    is_served: bool = False
    """Whether the browser server has its socket; until then the handoff may still fail."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What the proxy told of its client: fields of its record, and `caps`."""
    lease_id: str = ""
    """The lease that it came with: it uses the lease's slot and takes none of its own."""
    trace: str = ""
    """As in its offer."""


class Slots:
    """The live sessions and the leases of one worker.

    `held` has the leases by their keys in Redis, each as a session that keeps its slot. `max_lifetime` is a number of
    sessions; a lease counts as one, however many clients come with it. Calls `on_freed` when a slot comes free after an
    offer was refused for want of one.
    """

    def __init__(self, slots: int, max_lifetime: float = math.inf, on_freed: Callable[[], None] = lambda: None) -> None:
        self.slots = slots
        self.max_lifetime = max_lifetime
        self._on_freed = on_freed
        self.live: dict[str, LiveSession] = {}
        self.held: dict[str, LiveSession] = {}
        self._within_leases = 0
        self.lifetime = 0
        self._expected: set[str] = set()
        self._has_refused = True
        """Whether an offer was refused for want of a slot, and no slot has come free since. At the start this worker's
        predecessor may have refused one."""
        self._fewer = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Slots {self.taken}/{self.slots} held={len(self.held)} lifetime={self.lifetime}>"

    @property
    def taken(self) -> int:
        return len(self.live) - self._within_leases + len(self.held)

    def runs(self) -> list[dict[str, str | int]]:
        """Returns who has how many slots, by names and label key as far as clients gave them; the MOST_RUNS largest."""
        holders = [*self.held.values(), *(each for each in self.live.values() if not each.lease_id)]
        counts = Counter(tuple(each.told.get(name, "") for name in NAMES) for each in holders if each.told)
        del counts[("",) * len(NAMES)]
        return [{**dict(zip(NAMES, key, strict=True)), "slots": slots} for key, slots in counts.most_common(MOST_RUNS)]

    def admit(self, offer: Offer, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Takes the session into a slot, or returns why not."""
        return self._take(self.live, offer, status, now)

    def hold(self, offer: Offer, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Keeps a slot for a lease, or returns why not."""
        return self._take(self.held, offer, status, now)

    def admit_with_lease(self, offer: Offer) -> None:
        """Admits the session of a client with a lease of this worker, into the lease's slot."""
        self.live[offer.session_id] = _session_of(offer)
        self._within_leases += 1

    def expect(self, leases: Mapping[str, float]) -> None:
        """Called when a drain begins. `leases` maps sessions that are on their way to the seconds that their leases
        still run: these are admitted all the same, and `empty` waits for them."""
        for session_id in leases.keys() - self.live.keys() - self.held.keys():
            self._expected.add(session_id)
            asyncio.get_running_loop().call_later(leases[session_id], self._expect_no_more, session_id)

    def adopt(self, session_id: str, lease_id: str = "", told: Mapping[str, str] | None = None) -> None:
        """Takes over a session that this worker's predecessor admitted. With `lease_id` it uses that lease's slot."""
        self.live[session_id] = LiveSession(session_id, is_served=True, told=told or {}, lease_id=lease_id)
        if lease_id:
            self._within_leases += 1
        else:
            self.lifetime += 1

    def adopt_held(self, held: LiveSession) -> None:
        """Takes over the slot of a lease of this worker's predecessor."""
        self.held[held.session_id] = held
        self.lifetime += 1

    def take_back(self, session_id: str) -> None:
        """Undoes the admission of a session that the browser server did not get, or of a lease that no proxy kept, also
        in `lifetime`."""
        session = self.free(session_id)
        if session is not None and not session.lease_id:
            self.lifetime -= 1

    def free(self, session_id: str) -> LiveSession | None:
        """Frees the slot of the session or lease, and returns it; None if it is not here (any more)."""
        session = self.live.pop(session_id, None) or self.held.pop(session_id, None)
        if session is not None and session.lease_id:
            self._within_leases -= 1
        elif session is not None and self._has_refused:
            self._has_refused = False
            self._on_freed()
        self._expect_no_more(session_id)  # it has come and gone
        return session

    async def empty(self) -> None:
        """Returns once no session is live or expected and no lease is held."""
        while self.live or self.held or self._expected:
            self._fewer.clear()
            await self._fewer.wait()

    def _take(
        self, into: dict[str, LiveSession], offer: Offer, status: WorkerStatus, now: float
    ) -> RefusalReason | None:
        room = Room(self.taken, self.slots, self.lifetime, self.max_lifetime)
        reason = refusal(offer, status, room, now, is_expected=offer.session_id in self._expected)
        if reason is None:
            into[offer.session_id] = _session_of(offer)
            self.lifetime += 1
        self._has_refused |= reason == "full"
        return reason

    def _expect_no_more(self, session_id: str) -> None:
        self._expected.discard(session_id)
        self._fewer.set()


def _session_of(offer: Offer) -> LiveSession:
    return LiveSession(offer.session_id, offer.client, told=offer.told, lease_id=offer.lease_id, trace=offer.trace)
