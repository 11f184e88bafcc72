"""The lines in which clients wait for slots. Runs take turns, and events wake the lines."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

from pwgrid.common.session_lifecycle import HeldAs
from pwgrid.proxy.policy.fair_line import FairLine, Party, Waiting
from pwgrid.proxy.policy.refusal import line_full, waited_in_vain
from pwgrid.proxy.select.claim import Claim, ClientGone
from pwgrid.proxy.select.turns_over_hosts import LINE_PATIENCE_S, Turns
from pwgrid.settings.model import Settings

Key = TypeVar("Key", bound=Hashable)

MOST_HEADS: Final = 32
"""So many parties of a line take turns with those of other hosts at a time; the others follow when these are served."""


class Queue:
    """A line for each pool.

    `select` leases a slot for a claim and returns its worker's id, or None; `give_back` takes back the lease of a
    client that has left. Of the settings MAX_QUEUE bounds all lines together; BORROW_QUEUE_MAX bounds clients that
    borrow in one line, and BORROW_QUEUE_MAX_PER_RUN those of the same run there. Calls `on_change` whenever a client
    joins or leaves a line. With `turns` the line of a pool is one with those of other hosts.
    """

    def __init__(
        self,
        select: Callable[[Claim], Awaitable[str | None]],
        give_back: Callable[[Claim], Awaitable[None]],
        settings: Settings,
        turns: Turns | None = None,
    ) -> None:
        self._select = select
        self.give_back = give_back
        self._settings = settings
        self._turns = turns
        self._held: dict[str, asyncio.TimerHandle] = {}
        """Pools whose lines wait for another host's turn: when they ask again, if they do not hear before."""
        self.on_change: Callable[[], None] = lambda: None
        self._lines: defaultdict[str, FairLine[Claim]] = defaultdict(FairLine)
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

    async def acquire(self, claim: Claim) -> str:
        """Waits for a slot, and returns its worker's id. Raises Refusal or ClientGone. A claim that comes again, since
        that worker has not taken it, has the place in line that it had."""
        claim.granted, claim.selection_s, claim.chosen_locally = None, 0.0, False  # it may be its second try
        has_asked = False
        if self._refusal is None and not self._paused and not self._lines.get(claim.pool):
            wakes = self._wakes
            slot = await self._select(claim)
            if slot is not None:
                claim.place = claim.place or self._lines[claim.pool].arrive()
                return slot
            # A slot, or room under a cap, may come free between the registry's answer and the place in line.
            has_asked = wakes == self._wakes
        return await self._wait(claim, has_asked=has_asked)

    def abandon(self, claim: Claim) -> None:
        """Ends the wait of a client that has left. A lease that is on its way is given back."""
        claim.abandoned = True
        self.end_wait(claim, ClientGone())

    def wake(self, pool: str | None = None) -> None:
        """Serves a line, or all, since a slot may have come free. Cheap when nobody waits."""
        self._wakes += 1
        # The session that ended may be of another pool, and have made room under a cap for clients that wait here.
        for each in [*self._lines] if pool is None else {pool, *self._capped}:
            if self._lines.get(each):
                self._serve_soon(each)

    def _serve_soon(self, pool: str) -> None:
        if not self._paused:
            self._woken.add(pool)
            if pool not in self._serving:
                self._serving[pool] = asyncio.create_task(self._serve(pool), name=f"serve {pool} queue")

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
        for claim in self.waiting_in(pool):
            self.end_wait(claim, refusal)

    def waiting_in(self, pool: str) -> list[Claim]:
        """Returns who waits in the line of this pool."""
        return list(self._lines[pool])

    def reopen(self) -> None:
        """Undoes `close`."""
        self._refusal = None

    async def _wait(self, claim: Claim, *, has_asked: bool) -> str:
        if self._refusal is not None:
            raise self._refusal
        if claim.abandoned:  # while the registry was asked
            raise ClientGone
        self._join(claim)
        granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        claim.granted = granted
        if not has_asked or self._are_turns_shared():
            # Redis tells of a free slot only after a selection that found none: ask once for this claim, too, although
            # others wait before it. Other hosts hear of it, too.
            self.wake(claim.pool)
        try:
            async with asyncio.timeout_at(claim.deadline):
                return await granted
        except TimeoutError:
            if not granted.cancelled():
                return granted.result()  # granted, or refused, in the very turn of the deadline
            if (line := self._lines[claim.pool]) and claim in line:
                length, position = len(line), line.position(claim)
                borrows = claim.kind is HeldAs.LEASE
                raise waited_in_vain(self._settings, claim.pool, length, position, borrows=borrows) from None
            raise self._refusal or ClientGone from None  # refused or abandoned right behind it
        finally:
            self._leave(claim)

    def _join(self, claim: Claim) -> None:
        """Raises Refusal if as many clients wait as may."""
        line, pool, party, settings = self._lines[claim.pool], claim.pool, claim.party, self._settings
        bounds = [("grid", self.waiting(), settings.max_queue)]
        if claim.kind is HeldAs.LEASE:
            bounds.append(("pool", self._borrowing[pool, None], settings.borrow_queue_max))
            if claim.run:
                bounds.append(("run", self._borrowing[pool, party], settings.borrow_queue_max_per_run))
        for limit, waiting, most in bounds:
            if waiting >= most:
                raise line_full(pool, claim.run, limit, most, len(line), line.position_of_next(party))
        claim.waits_since = claim.waits_since or asyncio.get_running_loop().time()
        line.join(claim, party, claim.eligible_as(), claim.place)
        self._count(claim, 1)

    def _leave(self, claim: Claim) -> None:
        line = self._lines[claim.pool]
        if line.leave(claim):
            self._count(claim, -1)
            if not line.has_party(claim.party) and self._are_turns_shared():
                self._serve_soon(claim.pool)  # so that no other host waits for its turn

    def _are_turns_shared(self) -> bool:
        return self._turns is not None and self._turns.are_shared

    def end_wait(self, claim: Claim, why: Exception) -> None:
        """Ends the wait of one client with `why`."""
        self._leave(claim)
        if claim.granted is not None and not claim.granted.done():
            claim.granted.set_exception(why)

    def _count(self, claim: Claim, by: int) -> None:
        self.on_change()
        if claim.caps:
            _add(self._capped, claim.pool, by)
        if claim.kind is HeldAs.LEASE:
            _add(self._borrowing, (claim.pool, None), by)
            _add(self._borrowing, (claim.pool, claim.party), by)

    async def _serve(self, pool: str) -> None:
        try:
            while pool in self._woken and not self._paused:
                self._woken.remove(pool)
                await self._serve_once(pool, self._lines[pool])
        finally:
            del self._serving[pool]

    async def _serve_once(self, pool: str, line: FairLine[Claim]) -> None:
        hopeless: set[Hashable] = set()
        served: Party | None = None
        while not self._paused and (claim := await self._next(pool, line, hopeless, served)) is not None:
            served = None
            if (refusal := claim.refusal()) is not None:
                self.end_wait(claim, refusal)
                continue
            kind = line.kind(claim)
            slot = await self._select(claim)
            if slot is None:
                hopeless.add(kind)
            elif claim.granted is None or claim.granted.done():  # the client gave up while the registry leased
                await self.give_back(claim)
            else:
                claim.place = line.serve(claim)
                served = claim.party
                self._count(claim, -1)
                claim.granted.set_result(slot)
                await asyncio.sleep(0)  # so that its handoff comes before the next selection

    async def _next(
        self, pool: str, line: FairLine[Claim], hopeless: set[Hashable], served: Party | None
    ) -> Claim | None:
        """Returns whose turn it is, also among the clients of other hosts, which hear which party was `served` here.
        None if nobody here may have a slot now."""
        if (handle := self._held.pop(pool, None)) is not None:
            handle.cancel()
        while self._turns is not None and self._turns.are_shared:
            heads = line.heads(hopeless, MOST_HEADS)
            turn = await self._turns.take(pool, heads, served, has_caps=bool(self._capped[pool]))
            if turn is None:  # Redis is away
                break
            served = None
            if turn.is_new_round:
                hopeless.clear()
            if turn.is_held:
                self._held[pool] = asyncio.get_running_loop().call_later(LINE_PATIENCE_S, self.wake, pool)
            if turn.party is None:
                return None
            if (claim := line.first_of(turn.party, hopeless)) is not None:  # else it has left meanwhile
                return claim
        return line.first(hopeless)


def _add(counter: Counter[Key], key: Key, by: int) -> None:
    """Removes an entry that gets to 0, since there are always new runs."""
    counter[key] += by
    if not counter[key]:
        del counter[key]
