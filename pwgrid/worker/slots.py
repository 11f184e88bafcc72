"""The worker's slots: which sessions and leases have them, and who may come. The authority; Redis only mirrors it."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.policy.admission import Offer, RefusalReason, Room, refusal

SAID: Final = ("name", "run", "labels")
"""What clients may say of themselves."""

MOST_RUNS: Final = 20
"""At most so many are told to the master: a frame has its limit."""


@dataclass(slots=True)
class LiveSession:
    """A session in one of this worker's slots. `client` is empty where a worker before us admitted it."""

    session_id: str
    client: str = ""
    started_at: float | None = None
    """Unix seconds; None while it is handed over, and where only a worker before us knows it."""
    is_served: bool = False
    """Whether the browser server has it; until then it may still come to nothing."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What the proxy said of its client: fields of its record, and `caps`."""
    lease_id: str = ""
    """The lease that it came with, whose slot it has: it takes none of its own."""


class Slots:
    """The live sessions and the leases of one worker. Synchronous: admission and end are decided here at once.

    `held` has the leases by their names in Redis, each as a session for whose client a slot is kept. `max_lifetime` is
    a number of sessions; a lease counts as one, however many clients come with it. `on_freed` is called whenever a full
    worker gets a slot back.
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
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Slots {self.taken}/{self.slots} held={len(self.held)} lifetime={self.lifetime}>"

    @property
    def taken(self) -> int:
        """How many slots are taken now, by sessions and leases."""
        return len(self.live) - self._within_leases + len(self.held)

    def runs(self) -> list[dict[str, str | int]]:
        """Who has the slots, as far as clients have said so: names, label key, how many; the MOST_RUNS with most."""
        holders = [*self.held.values(), *(each for each in self.live.values() if not each.lease_id)]
        said = Counter(tuple(each.told.get(what, "") for what in SAID) for each in holders if each.told)
        del said[("",) * len(SAID)]
        return [{**dict(zip(SAID, words, strict=True)), "slots": slots} for words, slots in said.most_common(MOST_RUNS)]

    def admit(self, offer: Offer, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Takes the session into a slot, or says why not."""
        return self._take(self.live, offer, status, now)

    def hold(self, offer: Offer, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Keeps a slot for a lease, or says why not."""
        return self._take(self.held, offer, status, now)

    def admit_with_lease(self, offer: Offer) -> None:
        """The session of a client that comes with a lease of this worker, which has a slot for it."""
        self.live[offer.session_id] = LiveSession(
            offer.session_id, offer.client, told=offer.told, lease_id=offer.lease_id
        )
        self._within_leases += 1
        self._empty.clear()

    def expect(self, leases: Mapping[str, float]) -> None:
        """A drain begins while these sessions, leased for so many seconds more, are on their way: they are admitted all
        the same, and `empty` waits for them."""
        for session_id in leases.keys() - self.live.keys() - self.held.keys():
            self._expected.add(session_id)
            asyncio.get_running_loop().call_later(leases[session_id], self._expect_no_more, session_id)
        self._tell_if_empty()

    def adopt(self, session_id: str, lease_id: str = "", told: Mapping[str, str] | None = None) -> None:
        """A session that a worker before us admitted; it has the slot of that lease, if we know it."""
        self.live[session_id] = LiveSession(session_id, is_served=True, told=told or {}, lease_id=lease_id)
        if lease_id:
            self._within_leases += 1
        else:
            self.lifetime += 1
        self._empty.clear()

    def adopt_held(self, held: LiveSession) -> None:
        """The slot of a lease that a worker before us gave."""
        self.held[held.session_id] = held
        self.lifetime += 1
        self._empty.clear()

    def take_back(self, session_id: str) -> None:
        """An admitted session that the browser server did not get, or a lease that nobody was told of: as if it had
        never been."""
        session = self.end(session_id)
        if session is not None and not session.lease_id:
            self.lifetime -= 1

    def end(self, session_id: str) -> LiveSession | None:
        """Frees the slot of the session or lease. None if it is not here (any more)."""
        was_full = self.taken >= self.slots
        session = self.live.pop(session_id, None) or self.held.pop(session_id, None)
        if session is not None and session.lease_id:
            self._within_leases -= 1
        elif was_full and session is not None:
            self._on_freed()
        self._expected.discard(session_id)  # it has come and gone
        self._tell_if_empty()
        return session

    async def empty(self) -> None:
        """Returns once no session is live and no lease held, and none expected."""
        await self._empty.wait()

    def _take(
        self, into: dict[str, LiveSession], offer: Offer, status: WorkerStatus, now: float
    ) -> RefusalReason | None:
        room = Room(self.taken, self.slots, self.lifetime, self.max_lifetime)
        reason = refusal(offer, status, room, now, is_expected=offer.session_id in self._expected)
        if reason is None:
            into[offer.session_id] = LiveSession(offer.session_id, offer.client, told=offer.told)
            self.lifetime += 1
            self._empty.clear()
        return reason

    def _expect_no_more(self, session_id: str) -> None:
        self._expected.discard(session_id)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self.live or self.held or self._expected:
            self._empty.clear()
        else:
            self._empty.set()
