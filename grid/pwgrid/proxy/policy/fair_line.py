"""Decides who in line is next: parties take turns, and within a party the first to come is first.

A party is all clients with the same token and run. Parties take turns, not clients: a run with forty clients is served
as often as one with four.

- A party that has just come, or was just served, has its next turn after all others that wait.
- If none of its clients may have the free slot, a party is passed over, and keeps its turn.
- A client that got none after all (its worker was full, say) comes back to its place, and its party to its turn.
- So while a client waits, each other party gets at most one slot that the client could have had, before its own party
  has its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from itertools import count
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class Party(NamedTuple):
    """Clients that share a turn, by the names of their token and run; "" for none."""

    token: str
    run: str


class Place(NamedTuple):
    """A place in a line. The numbers are those of one clock that ticks with each event."""

    arrival: int
    """Who came earlier is before others of its party."""
    turn: int
    """Since when its party has had no turn: for whom this is longest is next."""


class Head(NamedTuple, Generic[Waiter]):
    """A party in a line, as other hosts' lines need it: its first waiter, and the first that may ask for a slot."""

    party: Party
    first: Waiter
    asking: Waiter | None


class Turn(NamedTuple):
    """Whose turn it is in a line, as it is one line with those of other hosts."""

    party: Party | None
    """Whose first waiter is to ask for a slot now; None: nobody here is."""
    is_held: bool = False
    """Whether somebody here may ask once another host's party has had its turn."""
    is_new_round: bool = False
    """Whether a slot has come free since, so that also those may ask who have asked in vain."""


class Waiting(NamedTuple):
    """How many clients of one party wait in a pool's line; `run` and `token` are "" for none."""

    pool: str
    run: str
    token: str
    waiting: int


class FairLine(Generic[Waiter]):
    """One line. A waiter is in it once. Waiters of the same `kind` may have the same slots.

    Joining, leaving and being served take constant time; coming back takes time for each that waits.
    """

    def __init__(self) -> None:
        self._clock = count()
        self._of: dict[Waiter, tuple[Party, Hashable]] = {}
        self._parties: dict[Party, dict[Hashable, dict[Waiter, int]]] = {}
        """Parties in the order of their turns; for each, by kind, its waiters in the order of their arrivals."""
        self._turns: dict[Party, int] = {}

    def __repr__(self) -> str:
        waiting = ", ".join(f"{party.token}/{party.run}: {number}" for party, number in self.by_party().items())
        return f"<FairLine {waiting or 'empty'}>"

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._of

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._of)

    def arrive(self) -> Place:
        """Returns the place of one who comes now, behind all others."""
        now = next(self._clock)
        return Place(now, now)

    def join(self, waiter: Waiter, party: Party, kind: Hashable = None, place: Place | None = None) -> None:
        """Adds a waiter at the end of its party; a new party takes its turn after all others. One that comes back is
        added at the `place` that it had."""
        if waiter in self._of:
            raise ValueError(f"{waiter!r} is in line already")
        arrival, turn = place or self.arrive()
        self._of[waiter] = party, kind
        alike = self._parties.setdefault(party, {}).setdefault(kind, {})
        alike[waiter] = arrival
        self._turns[party] = min(turn, self._turns.get(party, turn))
        if place is not None:
            self._parties[party][kind] = dict(sorted(alike.items(), key=itemgetter(1)))
            self._parties = dict(sorted(self._parties.items(), key=lambda item: self._turns[item[0]]))

    def leave(self, waiter: Waiter) -> bool:
        """Removes a waiter that got no slot. Returns False if it is not in line (any more)."""
        if waiter not in self._of:
            return False
        party, kind = self._of.pop(waiter)
        kinds = self._parties[party]
        del kinds[kind][waiter]
        if not kinds[kind]:
            del kinds[kind]
        if not kinds:
            del self._parties[party], self._turns[party]
        return True

    def first(self, without: Collection[Hashable] = ()) -> Waiter | None:
        """Returns who gets a free slot, or None if nobody waits for it. `without` are kinds that may not have it."""
        for party in self._parties:
            if (waiter := self.first_of(party, without)) is not None:
                return waiter
        return None

    def first_of(self, party: Party, without: Collection[Hashable] = ()) -> Waiter | None:
        """As `first`, in this party."""
        kinds = self._parties.get(party, {})
        firsts = [next(iter(alike.items())) for kind, alike in kinds.items() if kind not in without]
        return min(firsts, key=lambda first: first[1])[0] if firsts else None

    def heads(self, without: Collection[Hashable], most: int) -> list[Head[Waiter]]:
        """Returns up to `most` parties in the order of their turns, first those that have a waiter for a free slot.
        `without` is as for `first`."""
        asking, others = list[Head[Waiter]](), list[Head[Waiter]]()
        for party in self._parties:
            if len(asking) == most:
                break
            waiter, first = self.first_of(party, without), self.first_of(party)
            if first is not None:
                (others if waiter is None else asking).append(Head(party, first, waiter))
        return [*asking, *others][:most]

    def has_party(self, party: Party) -> bool:
        return party in self._parties

    def serve(self, waiter: Waiter) -> Place:
        """Removes a waiter that got its slot; its party's next turn is after all others'. Returns the place that it
        had. Raises KeyError if it is not in line."""
        party, kind = self._of[waiter]
        had = Place(self._parties[party][kind][waiter], self._turns[party])
        self.leave(waiter)
        if (kinds := self._parties.pop(party, None)) is not None:
            self._parties[party] = kinds
            self._turns[party] = next(self._clock)
        return had

    def kind(self, waiter: Waiter) -> Hashable:
        """Returns the kind that it joined with. Raises KeyError if it is not in line."""
        return self._of[waiter][1]

    def by_party(self) -> dict[Party, int]:
        """Returns how many of each party wait, in the order of their turns."""
        return {party: sum(map(len, kinds.values())) for party, kinds in self._parties.items()}

    def position(self, waiter: Waiter) -> int:
        """Returns its place if everybody may have every slot: 1 is next. Raises KeyError if it is not in line."""
        party, kind = self._of[waiter]
        kinds = self._parties[party]
        arrival = kinds[kind][waiter]
        before = sum(each < arrival for alike in kinds.values() for each in alike.values())
        return self._position(party, before)

    def position_of_next(self, party: Party) -> int:
        """Returns the place that another waiter of this party would have."""
        return self._position(party, self.by_party().get(party, 0))

    def _position(self, party: Party, before: int) -> int:
        """`before` counts waiters of its own party before it, each of whom takes a turn first. Parties before its own
        have one turn more until then than parties after it."""
        position, is_before = before + 1, True
        for other, waiting in self.by_party().items():
            if other == party:
                is_before = False
            else:
                position += min(waiting, before + is_before)
        return position
