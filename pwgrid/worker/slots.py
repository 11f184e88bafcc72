"""The worker's slots: which sessions live here, and which may come. The authority; Redis only mirrors it."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.worker.policy.admission import Offer, RefusalReason, Room, refusal


@dataclass(slots=True)
class LiveSession:
    """A session in one of this worker's slots. `client` is empty where a worker before us admitted it."""

    session_id: str
    client: str = ""
    started_at: float | None = None
    """Unix seconds; None where a worker before us was told, and while it is handed over."""
    is_served: bool = False
    """Whether the browser server has it; until then it may still come to nothing."""


class Slots:
    """The live sessions of one worker. Synchronous: admission and end are decided here at once.

    `max_lifetime` counts sessions, too. `on_freed` is called whenever a full worker gets a slot back.
    """

    def __init__(self, slots: int, max_lifetime: float = math.inf, on_freed: Callable[[], None] = lambda: None) -> None:
        self.slots = slots
        self.max_lifetime = max_lifetime
        self._on_freed = on_freed
        self.live: dict[str, LiveSession] = {}
        self.lifetime = 0
        self._expected: set[str] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Slots {len(self.live)}/{self.slots} lifetime={self.lifetime}>"

    def admit(self, offer: Offer, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Takes the session into a slot, or says why not."""
        room = Room(len(self.live), self.slots, self.lifetime, self.max_lifetime)
        reason = refusal(offer, status, room, now, is_expected=offer.session_id in self._expected)
        if reason is None:
            self.live[offer.session_id] = LiveSession(offer.session_id, offer.client)
            self.lifetime += 1
            self._empty.clear()
        return reason

    def expect(self, leases: Mapping[str, float]) -> None:
        """A drain begins while these sessions, leased for so many seconds more, are on their way: they are admitted all
        the same, and `empty` waits for them."""
        for session_id in leases.keys() - self.live.keys():
            self._expected.add(session_id)
            asyncio.get_running_loop().call_later(leases[session_id], self._expect_no_more, session_id)
        self._tell_if_empty()

    def adopt(self, session_id: str) -> None:
        """A session that a worker before us admitted."""
        self.live[session_id] = LiveSession(session_id, is_served=True)
        self.lifetime += 1
        self._empty.clear()

    def take_back(self, session_id: str) -> None:
        """The browser server did not get an admitted session: as if it had never been."""
        if self.end(session_id) is not None:
            self.lifetime -= 1

    def end(self, session_id: str) -> LiveSession | None:
        """Frees the session's slot. None if it is not here (any more)."""
        was_full = len(self.live) >= self.slots
        session = self.live.pop(session_id, None)
        if was_full and session is not None:
            self._on_freed()
        self._expected.discard(session_id)  # it has come and gone
        self._tell_if_empty()
        return session

    async def empty(self) -> None:
        """Returns once no session is live, and none expected."""
        await self._empty.wait()

    def _expect_no_more(self, session_id: str) -> None:
        self._expected.discard(session_id)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self.live or self._expected:
            self._empty.clear()
        else:
            self._empty.set()
