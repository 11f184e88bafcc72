"""The worker's drain: who asked for it, how long sessions may go on, and why the rest is cut. Ends no session."""

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Any

from pwgrid.common.session_lifecycle import EndReason
from pwgrid.common.waiting import first_of
from pwgrid.worker.slots import Slots


@dataclass(frozen=True, slots=True)
class Drain:
    """Why the worker ends, and how long live sessions may go on (seconds; RECYCLE_DRAIN_TIMEOUT if it `is_recycle`).
    `cut`: the end reason of sessions that are left then."""

    reason: str
    timeout_s: float
    planned: bool = True
    is_recycle: bool = False
    cut: EndReason = EndReason.DRAIN_TIMEOUT


class DrainRequest:
    """Whether a drain was asked for, and by when its sessions have to end: who asks later may leave them less time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Drain] = self._loop.create_future()
        self.limit = Drain("", math.inf)
        """The drain that leaves the sessions least time."""
        self._until = math.inf
        self._wait: asyncio.Timeout | None = None
        self._now = asyncio.Event()
        self._cut = 0
        self.took_s: float | None = None
        """How long the sessions went on; None before their end."""

    @property
    def is_asked(self) -> bool:
        """Whether anybody has asked."""
        return self._first.done()

    def ask(self, drain: Drain) -> bool:
        """Take a request; whether it changes anything: it is the first, or leaves the sessions less time."""
        until = self._loop.time() + drain.timeout_s
        if until >= self._until:
            return False
        self._until, self.limit = until, drain
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(until)
        if not self._first.done():
            self._first.set_result(drain)
        return True

    def hurry(self) -> None:
        """Wait for no session any more."""
        self._now.set()

    async def asked(self) -> Drain:
        """Returns once there is to be a drain."""
        return await asyncio.shield(self._first)

    async def sessions_end(self, slots: Slots) -> EndReason | None:
        """Waits until no session is live and no lease held; then returns None. If time runs out before: the reason for
        which the rest is to end."""
        await self.asked()
        since = self._loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until) as self._wait:
                await first_of(slots.empty(), self._now.wait())
        self._wait = None
        self.took_s = round(self._loop.time() - since, 3)
        self._cut = slots.taken
        if not self._cut:
            return None
        return EndReason.DRAINED_NOW if self._now.is_set() else self.limit.cut

    def outcome(self) -> dict[str, Any]:
        """How many sessions were cut, and whether that was because time ran out."""
        return {"cut": self._cut, "timedOut": bool(self._cut) and not self._now.is_set()}
