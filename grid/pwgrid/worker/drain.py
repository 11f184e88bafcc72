"""The worker's drain: why it was asked for, how long sessions may go on, why the rest is cut."""

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Any

from pwgrid.common.reasons import EndReason, Reason, WorkerEnd
from pwgrid.common.tasks import first_of
from pwgrid.common.worker_lifecycle import DrainTime
from pwgrid.worker.slots import Slots


@dataclass(frozen=True, slots=True)
class Drain:
    """Why the worker ends, and for how many seconds live sessions may go on; `within` says what has set these. `cut` is
    the end reason of sessions that are left then."""

    reason: Reason[WorkerEnd]
    timeout_s: float
    planned: bool = True
    within: DrainTime = DrainTime.END
    cut: EndReason = EndReason.DRAIN_TIMEOUT

    @property
    def waits_for_kept(self) -> bool:
        """Whether kept sessions last on as those with clients do: where nobody waits for the worker's end, or where
        something has died. Other drains end them at once: nobody may ever come back to them."""
        return self.within is DrainTime.RECYCLE or self.reason.kind in (WorkerEnd.TAKEN_OVER, WorkerEnd.NO_MASTER)


class DrainRequest:
    """Whether a drain was asked for, and by when its sessions have to end. A later request may leave them less time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Drain] = self._loop.create_future()
        self.limit = Drain(Reason(WorkerEnd.NOT_SAID), math.inf)
        """The request that leaves the sessions least time."""
        self._until = math.inf
        self._wait: asyncio.Timeout | None = None
        self._now = asyncio.Event()
        self._cut = 0
        self.took_s: float | None = None
        """How long the sessions went on; None until `sessions_end` returns."""

    @property
    def is_asked(self) -> bool:
        return self._first.done()

    def ask(self, drain: Drain) -> bool:
        """Takes a request. Returns False if it changes nothing, since an earlier one leaves the sessions less time."""
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
        """Stops waiting for sessions."""
        self._now.set()

    async def asked(self) -> Drain:
        """Waits for the first request, and returns it."""
        return await asyncio.shield(self._first)

    async def sessions_end(self, slots: Slots) -> EndReason | None:
        """Waits until no session is live or expected and no lease is held. Returns None, or the end reason for the rest
        if time has run out."""
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
        """Returns how many sessions were cut, and whether time had run out; the `stopped` event has both."""
        return {"cut": self._cut, "timedOut": bool(self._cut) and not self._now.is_set()}
