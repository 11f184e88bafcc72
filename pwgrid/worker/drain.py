"""The worker's drain: who asked for it first, how long sessions may go on, and why the rest is cut. Ends no session."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from pwgrid.common.session_lifecycle import EndReason
from pwgrid.common.waiting import first_of
from pwgrid.worker.slots import Slots


@dataclass(frozen=True, slots=True)
class Drain:
    """Why the worker ends, and how long live sessions may go on (seconds). `cut`: why those end that are left then."""

    reason: str
    timeout_s: float
    planned: bool = True
    cut: EndReason = EndReason.DRAIN_TIMEOUT


class DrainRequest:
    """Whether a drain was asked for. It comes over the link and through Redis, and is one drain all the same."""

    def __init__(self) -> None:
        self._first: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._now = asyncio.Event()
        self._cut = 0

    @property
    def is_asked(self) -> bool:
        """Whether anybody has asked."""
        return self._first.done()

    def ask(self, drain: Drain) -> None:
        """Who asks first says how it is done."""
        if not self._first.done():
            self._first.set_result(drain)

    def hurry(self) -> None:
        """No session shall be waited for any more."""
        self._now.set()

    async def asked(self) -> Drain:
        """Returns once there is to be a drain."""
        return await asyncio.shield(self._first)

    async def sessions_end(self, slots: Slots) -> EndReason | None:
        """Returns when no session is live any more: None; or when no more time is left: why the others are to end."""
        drain = await self.asked()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain.timeout_s):
                await first_of(slots.empty(), self._now.wait())
        self._cut = len(slots.live)
        if not self._cut:
            return None
        return EndReason.DRAINED_NOW if self._now.is_set() else drain.cut

    def outcome(self) -> dict[str, Any]:
        """How many sessions were cut, and whether that was because time ran out."""
        return {"cut": self._cut, "timedOut": bool(self._cut) and not self._now.is_set()}
