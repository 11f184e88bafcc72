"""Where clients wait for a slot: in turns between runs, woken by events and never by polling. Owns no socket."""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.fair_line import FairLine, Party
from pwgrid.registry.records import LEASE

Slot = TypeVar("Slot")
Key = TypeVar("Key", bound=Hashable)

UNBOUNDED: Final = 1_000_000_000


class NoPlace(Exception):
    """The client gets no slot. `length`: how many wait in its line; `position`: where it stood, or would stand."""

    def __init__(self, length: int, position: int) -> None:
        super().__init__(f"{length} wait, at {position}")
        self.length = length
        self.position = position


class QueueFull(NoPlace):
    """As many clients wait as may. `limit` says of whom there are so many: of all ("grid"), of those who borrow from
    this pool ("pool"), of those among them that have the client's run ("run"). `most`: how many that is."""

    def __init__(self, length: int, position: int, limit: str = "grid", most: int = 0) -> None:
        super().__init__(length, position)
        self.limit = limit
        self.most = most


class WaitedTooLong(NoPlace):
    """No slot came free before the ticket's deadline."""


class ClientGone(Exception):
    """The client went away before it was served."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[Slot]):
    """What one client asks for: a slot. `excluded` are workers that have refused or lost it already."""

    session_id: str
    browser_type: BrowserType
    playwright_version: str | None
    client: str
    deadline: float
    """Seconds of the event loop's clock."""
    worker_id: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """What else the session's record is to have."""
    excluded: set[str] = field(default_factory=set)
    run: str = ""
    """The run that the client names; "" for none."""
    token: str = ""
    """The name of its token; "" where none is asked for."""
    borrows: bool = False
    """It asks for a lease: BORROW_QUEUE_MAX and BORROW_QUEUE_MAX_PER_RUN are for these."""
    pool: str = ""
    """In whose line it stands; by default that of the pool that is named like the browser type."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """Of whom only so many may live at once, say {"run:nightly": 5}; while there are as many, it waits."""
    granted: "asyncio.Future[Slot] | None" = None
    abandoned: bool = False
    selection_s: float = 0.0
    """How long the registry took for its last answer."""

    def __post_init__(self) -> None:
        self.pool = self.pool or self.browser_type

    @property
    def party(self) -> Party:
        """With whom it shares its turns."""
        return Party(self.token, self.run)

    def take_another_id(self) -> None:
        """Gives the session a new id; nobody knows it by the old one any more."""
        self.session_id = (LEASE if self.borrows else "") + secrets.token_hex(8)

    def looks_like(self) -> Hashable:
        """Tickets that look alike get the same answer from the registry at the same moment."""
        return self.playwright_version, self.worker_id, frozenset(self.excluded), frozenset(self.caps)


class Queue(Generic[Slot]):
    """A line for each pool before the same two functions of the registry.

    `select` leases a slot for a ticket or returns None; `give_back` takes a lease back whose client has gone meanwhile.
    `max_waiting` bounds all lines together. Of those who borrow, `max_borrowing` may wait in one line, and
    `max_borrowing_of_run` with the same run. `on_change` is called whenever somebody has joined a line or left it.
    """

    def __init__(
        self,
        select: Callable[[Ticket[Slot]], Awaitable[Slot | None]],
        give_back: Callable[[Ticket[Slot]], Awaitable[None]],
        max_waiting: int,
        *,
        max_borrowing: int = UNBOUNDED,
        max_borrowing_of_run: int = UNBOUNDED,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._select = select
        self.give_back = give_back
        self._max_waiting = max_waiting
        self._max_borrowing = max_borrowing
        self._max_borrowing_of_run = max_borrowing_of_run
        self.on_change = on_change
        self._lines: defaultdict[str, FairLine[Ticket[Slot]]] = defaultdict(FairLine)
        self._waiting = 0
        self._borrowing: Counter[tuple[str, Party | None]] = Counter()
        """Of those who borrow, how many wait in the line of a pool, and of each party there."""
        self._capped: Counter[str] = Counter()
        """How many of those that wait for a pool have caps."""
        self._wakes: Counter[str] = Counter()
        self._wakes_of_all = 0
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._refusal: Exception | None = None
        self._paused = False

    def __repr__(self) -> str:
        return f"<Queue waiting={self.waiting()} paused={self._paused} refusal={self._refusal!r}>"

    def waiting(self, pool: str | None = None) -> int:
        """How many clients wait, for one pool or for all."""
        if pool is None:
            return self._waiting
        return len(self._lines[pool]) if pool in self._lines else 0

    def waiting_by_run(self, pool: str) -> list[tuple[str, str, int]]:
        """Who waits for a slot of this pool: run, token and how many, in the order of their turns."""
        line = self._lines.get(pool)
        return [(party.run, party.token, number) for party, number in line.by_party().items()] if line else []

    def pools(self) -> list[str]:
        """Those for which somebody waits."""
        return [pool for pool, line in self._lines.items() if line]

    def is_free(self, pool: str) -> bool:
        """Whether the registry may be asked at once: nobody waits, and nothing keeps everybody waiting."""
        return self._refusal is None and not self._paused and not self._lines.get(pool)

    async def acquire(self, ticket: Ticket[Slot]) -> Slot:
        """A slot for this ticket. Raises QueueFull, WaitedTooLong, or what the queue was closed with."""
        pool, wakes = ticket.pool, -1
        # A slot may come free between the registry's answer and our standing in line: then ask again.
        while wakes != self._wakes_for(pool) and self.is_free(pool):
            wakes = self._wakes_for(pool)
            slot = await self._select(ticket)
            if slot is not None:
                return slot
        return await self._wait(ticket)

    def abandon(self, ticket: Ticket[Slot]) -> None:
        """The client of this ticket has gone: it waits no longer. A lease that is on its way is given back."""
        ticket.abandoned = True
        self._leave(ticket)
        if ticket.granted is not None and not ticket.granted.done():
            ticket.granted.set_exception(ClientGone())

    def wake(self, pool: str | None = None) -> None:
        """A slot may have come free: serve who waits. Cheap when nobody does."""
        self._wakes_of_all += pool is None
        # Who waits for a session of its own run to end may get a slot here when that one ends in another pool.
        for each in [*self._lines] if pool is None else {pool, *self._capped}:
            self._wakes[each] += 1
            if self._lines.get(each) and not self._paused and each not in self._serving:
                self._serving[each] = asyncio.create_task(self._serve(each), name=f"serve {each} queue")

    def pause(self, paused: bool) -> None:
        """While paused (memory floor of the host) everyone waits; ending the pause serves the line."""
        if self._paused and not paused:
            self._paused = False
            self.wake()
        self._paused = paused

    def close(self, refusal: Exception) -> None:
        """Ends everyone's wait with `refusal`, and refuses who comes later."""
        self._refusal = refusal
        for pool in self.pools():
            self.refuse(pool, refusal)

    def refuse(self, pool: str, refusal: Exception) -> None:
        """Ends the wait of all in the line of this pool with `refusal`."""
        for ticket in list(self._lines[pool]):
            self._leave(ticket)
            if ticket.granted is not None and not ticket.granted.done():
                ticket.granted.set_exception(refusal)

    def reopen(self) -> None:
        """Clients may come again."""
        self._refusal = None

    async def _wait(self, ticket: Ticket[Slot]) -> Slot:
        if self._refusal is not None:
            raise self._refusal
        if ticket.abandoned:  # while the registry was asked
            raise ClientGone
        self._join(ticket)
        granted: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        ticket.granted = granted
        # The registry tells of slots that come free only while it knows of somebody who wants one: ask for this
        # ticket, too, although others wait before it.
        self.wake(ticket.pool)
        try:
            async with asyncio.timeout_at(ticket.deadline):
                return await granted
        except TimeoutError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                return granted.result()  # in the very turn of the deadline: the slot is ours
            if (line := self._lines[ticket.pool]) and ticket in line:
                raise WaitedTooLong(len(line), line.position(ticket)) from None
            raise self._refusal or ClientGone from None  # in this turn, too
        finally:
            self._leave(ticket)

    def _join(self, ticket: Ticket[Slot]) -> None:
        """Raises QueueFull."""
        line, pool, party = self._lines[ticket.pool], ticket.pool, ticket.party
        bounds = [("grid", self._waiting, self._max_waiting)]
        if ticket.borrows:
            bounds.append(("pool", self._borrowing[pool, None], self._max_borrowing))
            if ticket.run:
                bounds.append(("run", self._borrowing[pool, party], self._max_borrowing_of_run))
        for limit, waiting, most in bounds:
            if waiting >= most:
                raise QueueFull(len(line), line.position_of_next(party), limit, most)
        line.join(ticket, party, ticket.looks_like())
        self._count(ticket, 1)

    def _leave(self, ticket: Ticket[Slot]) -> None:
        """Idempotent."""
        if self._lines[ticket.pool].leave(ticket):
            self._count(ticket, -1)

    def _count(self, ticket: Ticket[Slot], by: int) -> None:
        self._waiting += by
        self.on_change()
        if ticket.caps:
            _add(self._capped, ticket.pool, by)
        if ticket.borrows:
            _add(self._borrowing, (ticket.pool, None), by)
            _add(self._borrowing, (ticket.pool, ticket.party), by)

    def _wakes_for(self, pool: str) -> int:
        return self._wakes_of_all + self._wakes[pool]

    async def _serve(self, pool: str) -> None:
        wakes = -1
        try:
            while wakes != self._wakes_for(pool) and not self._paused:
                wakes = self._wakes_for(pool)
                await self._serve_once(self._lines[pool])
        finally:
            del self._serving[pool]

    async def _serve_once(self, line: FairLine[Ticket[Slot]]) -> None:
        hopeless: set[Hashable] = set()
        while (ticket := line.first(hopeless)) is not None:
            kind = line.kind(ticket)
            slot = await self._select(ticket)
            if slot is None:
                hopeless.add(kind)
            elif ticket.granted is None or ticket.granted.done():  # the client gave up while the registry leased
                await self.give_back(ticket)
            else:
                line.serve(ticket)
                self._count(ticket, -1)
                ticket.granted.set_result(slot)
                await asyncio.sleep(0)  # its handoff comes before our question for the next one


def _add(counter: Counter[Key], key: Key, by: int) -> None:
    """Counts. An entry that gets to 0 is removed, since new runs come without end."""
    counter[key] += by
    if not counter[key]:
        del counter[key]
