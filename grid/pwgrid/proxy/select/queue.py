"""The lines in which clients wait for slots. Runs take turns; events wake the lines, nothing polls. Owns no socket."""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.common.types import BrowserType
from pwgrid.proxy.policy.fair_line import FairLine, Party, Waiting
from pwgrid.proxy.policy.refusal import line_full, waited_in_vain
from pwgrid.registry.records import CAPS
from pwgrid.settings.model import Settings

Key = TypeVar("Key", bound=Hashable)


class ClientGone(Exception):
    """The client left before it was served."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One client's request for a slot. `excluded` are the ids of workers that have refused it for good, or lost it."""

    session_id: str
    browser_type: BrowserType
    pool: str
    playwright_version: str | None
    client: str
    deadline: float
    """Seconds of the event loop's clock."""
    worker_id: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    """Optional fields of the session's record."""
    excluded: set[str] = field(default_factory=set)
    run: str = ""
    """The client's name for its run; "" for none."""
    token: str = ""
    """The name of the client's token; "" for none."""
    token_id: str = ""
    borrows: bool = False
    """Whether it asks for a lease: BORROW_QUEUE_MAX and BORROW_QUEUE_MAX_PER_RUN bound these."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """How many sessions may live at once, like {"run:nightly": 5}; while a cap is reached, the client waits."""
    refusal: Callable[[], Exception | None] = lambda: None
    """Returns why the client may not have a slot any more. The queue asks when it is the client's turn."""
    granted: asyncio.Future[str] | None = None
    abandoned: bool = False
    selection_s: float = 0.0
    """How long the registry took for its last answer; 0 where the worker was chosen without it."""
    chosen_locally: bool = False
    """Whether its worker was chosen without Redis, which has no slot to take back then."""

    @property
    def party(self) -> Party:
        return Party(self.token, self.run)

    def told(self) -> dict[str, str]:
        """Returns what the worker is told: owner, names and caps, for a record that Redis does not have."""
        return {**self.fields, CAPS: ",".join(self.caps)} if self.caps else {**self.fields}

    @property
    def kind(self) -> HeldAs:
        return HeldAs.LEASE if self.borrows else HeldAs.SESSION

    def take_another_id(self) -> None:
        self.session_id = secrets.token_hex(8)

    def eligible_as(self) -> Hashable:
        """At one moment the registry has the same answer for all tickets for which this is equal."""
        return self.playwright_version, self.worker_id, frozenset(self.excluded), frozenset(self.caps)


class Queue:
    """A line for each pool.

    `select` leases a slot for a ticket and returns its worker's id, or None; `give_back` takes back the lease of a
    client that has left. Of the settings MAX_QUEUE bounds all lines together; BORROW_QUEUE_MAX bounds clients that
    borrow in one line, and BORROW_QUEUE_MAX_PER_RUN those of the same run there. Calls `on_change` whenever a client
    joins or leaves a line.
    """

    def __init__(
        self,
        select: Callable[[Ticket], Awaitable[str | None]],
        give_back: Callable[[Ticket], Awaitable[None]],
        settings: Settings,
    ) -> None:
        self._select = select
        self.give_back = give_back
        self._settings = settings
        self.on_change: Callable[[], None] = lambda: None
        self._lines: defaultdict[str, FairLine[Ticket]] = defaultdict(FairLine)
        self._borrowing: Counter[tuple[str, Party | None]] = Counter()
        """How many clients that borrow wait in a pool's line: all (None), and of each party."""
        self._capped: Counter[str] = Counter()
        """How many clients with caps wait, by pool."""
        self._wakes = 0
        self._woken: set[str] = set()
        """Pools whose lines are to be served (again)."""
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._refusal: Exception | None = None
        self._paused = False

    def __repr__(self) -> str:
        return f"<Queue waiting={self.waiting()} paused={self._paused} refusal={self._refusal!r}>"

    def waiting(self, pool: str | None = None) -> int:
        """Returns how many clients wait, for one pool or for all."""
        return sum(map(len, self._lines.values())) if pool is None else len(self._lines.get(pool, ()))

    def waiting_by_run(self) -> list[Waiting]:
        """Returns how many clients wait by pool, run and token; in each line in the order of their turns."""
        return [
            Waiting(pool, party.run, party.token, number)
            for pool, line in self._lines.items()
            for party, number in line.by_party().items()
        ]

    def pools(self) -> list[str]:
        """Returns the pools for which clients wait."""
        return [pool for pool, line in self._lines.items() if line]

    async def acquire(self, ticket: Ticket) -> str:
        """Waits for a slot, and returns its worker's id. Raises Refusal or ClientGone."""
        ticket.granted, ticket.selection_s, ticket.chosen_locally = None, 0.0, False  # it may be its second try
        has_asked = False
        if self._refusal is None and not self._paused and not self._lines.get(ticket.pool):
            wakes = self._wakes
            slot = await self._select(ticket)
            if slot is not None:
                return slot
            # A slot, or room under a cap, may come free between the registry's answer and the place in line.
            has_asked = wakes == self._wakes
        return await self._wait(ticket, has_asked=has_asked)

    def abandon(self, ticket: Ticket) -> None:
        """Ends the wait of a client that has left. A lease that is on its way is given back."""
        ticket.abandoned = True
        self._end_wait(ticket, ClientGone())

    def wake(self, pool: str | None = None) -> None:
        """Serves a line, or all, since a slot may have come free. Cheap when nobody waits."""
        self._wakes += 1
        # The session that ended may be of another pool, and have made room under a cap for clients that wait here.
        for each in [*self._lines] if pool is None else {pool, *self._capped}:
            if self._lines.get(each) and not self._paused:
                self._woken.add(each)
                if each not in self._serving:
                    self._serving[each] = asyncio.create_task(self._serve(each), name=f"serve {each} queue")

    def pause(self, paused: bool) -> None:
        """While paused (the host is short of memory) everyone waits. Ending the pause serves the lines."""
        if self._paused and not paused:
            self._paused = False
            self.wake()
        self._paused = paused

    def close(self, refusal: Exception) -> None:
        """Ends all waits with `refusal`, and refuses those who come later."""
        self._refusal = refusal
        for pool in self.pools():
            self.refuse(pool, refusal)

    def refuse(self, pool: str, refusal: Exception) -> None:
        """Ends all waits in the line of this pool with `refusal`."""
        for ticket in list(self._lines[pool]):
            self._end_wait(ticket, refusal)

    def reopen(self) -> None:
        """Undoes `close`."""
        self._refusal = None

    async def _wait(self, ticket: Ticket, *, has_asked: bool) -> str:
        if self._refusal is not None:
            raise self._refusal
        if ticket.abandoned:  # while the registry was asked
            raise ClientGone
        self._join(ticket)
        granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ticket.granted = granted
        if not has_asked:
            # Redis tells of a free slot only after a selection that found none: ask once for this ticket, too, although
            # others wait before it.
            self.wake(ticket.pool)
        try:
            async with asyncio.timeout_at(ticket.deadline):
                return await granted
        except TimeoutError:
            if not granted.cancelled():
                return granted.result()  # granted, or refused, in the very turn of the deadline
            if (line := self._lines[ticket.pool]) and ticket in line:
                length, position = len(line), line.position(ticket)
                raise waited_in_vain(self._settings, ticket.pool, length, position, borrows=ticket.borrows) from None
            raise self._refusal or ClientGone from None  # refused or abandoned right behind it
        finally:
            self._leave(ticket)

    def _join(self, ticket: Ticket) -> None:
        """Raises Refusal if as many clients wait as may."""
        line, pool, party, settings = self._lines[ticket.pool], ticket.pool, ticket.party, self._settings
        bounds = [("grid", self.waiting(), settings.max_queue)]
        if ticket.borrows:
            bounds.append(("pool", self._borrowing[pool, None], settings.borrow_queue_max))
            if ticket.run:
                bounds.append(("run", self._borrowing[pool, party], settings.borrow_queue_max_per_run))
        for limit, waiting, most in bounds:
            if waiting >= most:
                raise line_full(pool, ticket.run, limit, most, len(line), line.position_of_next(party))
        line.join(ticket, party, ticket.eligible_as())
        self._count(ticket, 1)

    def _leave(self, ticket: Ticket) -> None:
        if self._lines[ticket.pool].leave(ticket):
            self._count(ticket, -1)

    def _end_wait(self, ticket: Ticket, why: Exception) -> None:
        self._leave(ticket)
        if ticket.granted is not None and not ticket.granted.done():
            ticket.granted.set_exception(why)

    def _count(self, ticket: Ticket, by: int) -> None:
        self.on_change()
        if ticket.caps:
            _add(self._capped, ticket.pool, by)
        if ticket.borrows:
            _add(self._borrowing, (ticket.pool, None), by)
            _add(self._borrowing, (ticket.pool, ticket.party), by)

    async def _serve(self, pool: str) -> None:
        try:
            while pool in self._woken and not self._paused:
                self._woken.remove(pool)
                await self._serve_once(self._lines[pool])
        finally:
            del self._serving[pool]

    async def _serve_once(self, line: FairLine[Ticket]) -> None:
        hopeless: set[Hashable] = set()
        while not self._paused and (ticket := line.first(hopeless)) is not None:
            if (refusal := ticket.refusal()) is not None:
                self._end_wait(ticket, refusal)
                continue
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
                await asyncio.sleep(0)  # so that its handoff comes before the next selection


def _add(counter: Counter[Key], key: Key, by: int) -> None:
    """Removes an entry that gets to 0, since there are always new runs."""
    counter[key] += by
    if not counter[key]:
        del counter[key]
