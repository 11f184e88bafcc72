"""The worker's slots: which sessions live here, and what is written of them. The authority; Redis only mirrors it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from grid.core.admission import Offer, RefusalReason, refusal
from grid.core.lifecycle import WorkerStatus
from grid.errors import RegistryUnavailable
from grid.registry.resp import RegistryError

log = structlog.get_logger()

Write = Callable[[], Awaitable[object]]


def _nothing() -> None:
    pass


MAX_UNWRITTEN: Final = 10_000
"""Registry writes kept while Redis is away; past it the oldest go, and the next heartbeat repairs what they meant."""


@dataclass(slots=True)
class LiveSession:
    """A session in one of this worker's slots."""

    session_id: str
    client: str
    started_at: float
    """Seconds of the monotonic clock."""


class Slots:
    """The live sessions of one worker. Synchronous: admission and end are decided here at once.

    `on_freed` is called whenever a full worker gets a slot back.
    """

    def __init__(self, slots: int, on_freed: Callable[[], None] = lambda: None) -> None:
        self.slots = slots
        self._on_freed = on_freed
        self.live: dict[str, LiveSession] = {}
        self.lifetime = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Slots {len(self.live)}/{self.slots} lifetime={self.lifetime}>"

    def admit(self, offer: Offer, client: str, status: WorkerStatus, now: float) -> RefusalReason | None:
        """Takes the session into a slot, or says why not."""
        reason = refusal(offer, status, len(self.live), self.slots, now)
        if reason is None:
            self.live[offer.session_id] = LiveSession(offer.session_id, client, now)
            self.lifetime += 1
            self._empty.clear()
        return reason

    def adopt(self, session_id: str, now: float) -> None:
        """A session that a worker before us admitted; its client's address is in Redis only."""
        self.live[session_id] = LiveSession(session_id, "", now)
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
        if not self.live:
            self._empty.set()
        return session

    async def empty(self) -> None:
        """Returns once no session is live."""
        await self._empty.wait()


class Journal:
    """Registry writes in their order. While Redis is away they are kept, and replayed before anything newer."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Write, Callable[[], None]]] = deque(maxlen=MAX_UNWRITTEN)
        self._under_way: set[asyncio.Task[None]] = set()
        self._replaying = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Journal kept={len(self._kept)} under_way={len(self._under_way)}>"

    def write(self, write: Write, on_done: Callable[[], None] = _nothing) -> None:
        """Starts the write now, or keeps it behind those that could not be made yet. `on_done` is called once it is
        made, or refused for good."""
        if self._kept or self._replaying.locked():
            self._kept.append((write, on_done))
            return
        task = asyncio.create_task(self._attempt(write, on_done))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def replay(self) -> bool:
        """Makes the kept writes. True when none is left, so that what Redis says is true again."""
        async with self._replaying:
            while self._kept:
                first = self._kept[0]
                write, on_done = first
                try:
                    await write()
                except RegistryError as error:
                    log.error("registry_write_dropped", error=str(error))  # it would block the line for ever
                except RegistryUnavailable:
                    return False
                if self._kept and self._kept[0] is first:  # else it went meanwhile, as the oldest of too many
                    self._kept.popleft()
                on_done()
        return True

    async def settle(self) -> None:
        """Returns once every write that was started has been made or kept."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _attempt(self, write: Write, on_done: Callable[[], None]) -> None:
        try:
            await write()
        except RegistryError as error:
            log.error("registry_write_dropped", error=str(error))
        except RegistryUnavailable as error:
            log.warning("registry_write_kept", error=str(error))
            self._kept.append((write, on_done))
            return
        on_done()
