"""Where clients wait for a slot: first come, first served, woken by events and never by polling. Owns no socket."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pwgrid.common.types import BROWSER_TYPES, BrowserType

Slot = TypeVar("Slot")


class QueueFull(Exception):
    """As many clients wait as the grid lets wait."""


class ClientGone(Exception):
    """The client went away before it was served."""


class WaitedTooLong(Exception):
    """No slot came free before the ticket's deadline."""


@dataclass(slots=True)
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
    granted: "asyncio.Future[Slot] | None" = None
    abandoned: bool = False

    def looks_like(self) -> tuple[str | None, str | None, frozenset[str]]:
        """Tickets that look alike get the same answer from the registry at the same moment."""
        return self.playwright_version, self.worker_id, frozenset(self.excluded)


class Queue(Generic[Slot]):
    """A queue for each browser type before the same two functions of the registry.

    `select` leases a slot for a ticket or returns None; `give_back` takes a lease back whose client has gone meanwhile.
    """

    def __init__(
        self,
        select: Callable[[Ticket[Slot]], Awaitable[Slot | None]],
        give_back: Callable[[Ticket[Slot]], Awaitable[None]],
        max_waiting: int,
    ) -> None:
        self._select = select
        self.give_back = give_back
        self._max_waiting = max_waiting
        self._lines: dict[BrowserType, list[Ticket[Slot]]] = {browser_type: [] for browser_type in BROWSER_TYPES}
        self._wakes = dict.fromkeys(BROWSER_TYPES, 0)
        self._serving: dict[BrowserType, asyncio.Task[None]] = {}
        self._refusal: Exception | None = None
        self._paused = False

    def __repr__(self) -> str:
        return f"<Queue waiting={self.waiting()} paused={self._paused} refusal={self._refusal!r}>"

    def waiting(self, browser_type: BrowserType | None = None) -> int:
        """How many clients wait, for one type or for all."""
        types = BROWSER_TYPES if browser_type is None else (browser_type,)
        return sum(len(self._lines[each]) for each in types)

    def is_free(self, browser_type: BrowserType) -> bool:
        """Whether the registry may be asked at once: nobody waits, and nothing keeps everybody waiting."""
        return self._refusal is None and not self._paused and not self._lines[browser_type]

    async def acquire(self, ticket: Ticket[Slot]) -> Slot:
        """A slot for this ticket. Raises QueueFull, WaitedTooLong, or what the queue was closed with."""
        wakes = -1
        # A slot may come free between the registry's answer and our standing in line: then ask again.
        while wakes != self._wakes[ticket.browser_type] and self.is_free(ticket.browser_type):
            wakes = self._wakes[ticket.browser_type]
            slot = await self._select(ticket)
            if slot is not None:
                return slot
        return await self._wait_in(self._lines[ticket.browser_type], ticket)

    def abandon(self, ticket: Ticket[Slot]) -> None:
        """The client of this ticket has gone: it waits no longer. A lease that is on its way is given back."""
        ticket.abandoned = True
        if ticket.granted is not None and not ticket.granted.done():
            ticket.granted.set_exception(ClientGone())

    def wake(self, browser_type: BrowserType | None = None) -> None:
        """A slot may have come free: serve who waits. Cheap when nobody does."""
        for each in BROWSER_TYPES if browser_type is None else (browser_type,):
            self._wakes[each] += 1
            if self._lines[each] and not self._paused and each not in self._serving:
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
        for line in self._lines.values():
            for ticket in line:
                if ticket.granted is not None and not ticket.granted.done():
                    ticket.granted.set_exception(refusal)

    def reopen(self) -> None:
        """Clients may come again."""
        self._refusal = None

    async def _wait_in(self, line: list[Ticket[Slot]], ticket: Ticket[Slot]) -> Slot:
        if self._refusal is not None:
            raise self._refusal
        if ticket.abandoned:  # while the registry was asked
            raise ClientGone
        if self.waiting() >= self._max_waiting:
            raise QueueFull
        loop = asyncio.get_running_loop()
        ticket.granted = loop.create_future()
        line.append(ticket)
        # The registry tells of slots that come free only while it knows of somebody who wants one: ask for this
        # ticket, too, although others wait before it.
        self.wake(ticket.browser_type)
        try:
            async with asyncio.timeout_at(ticket.deadline):
                return await ticket.granted
        except TimeoutError:
            granted = ticket.granted
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                return granted.result()  # in the very turn of the deadline: the slot is ours
            raise WaitedTooLong from None
        finally:
            if ticket in line:
                line.remove(ticket)

    async def _serve(self, browser_type: BrowserType) -> None:
        wakes = -1
        try:
            while wakes != self._wakes[browser_type] and not self._paused:
                wakes = self._wakes[browser_type]
                await self._serve_once(self._lines[browser_type])
        finally:
            del self._serving[browser_type]

    async def _serve_once(self, line: list[Ticket[Slot]]) -> None:
        hopeless: set[object] = set()
        for ticket in list(line):
            if ticket.looks_like() in hopeless or ticket.granted is None or ticket.granted.done():
                continue
            slot = await self._select(ticket)
            if slot is None:
                hopeless.add(ticket.looks_like())
            elif ticket.granted.done():  # the client gave up while the registry leased
                await self.give_back(ticket)
            else:
                ticket.granted.set_result(slot)
                line.remove(ticket)
