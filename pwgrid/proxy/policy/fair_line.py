"""Decides who in line is next: parties take turns, first come first served within one. Knows no slot, no clock.

A party is a token and a run: who starts forty clients under one name is served as often as who starts four. A party
that is served has its next turn after all others that wait, and one that comes has it after all that are there. A party
of whom nobody may have a slot keeps its turn. So whoever may have the slots that come free sees every other party
served with such a slot once at most before it is its own party's turn.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from itertools import count
from typing import Generic, NamedTuple, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class Party(NamedTuple):
    """Who shares a turn. Names; "" where there is none."""

    token: str
    run: str


class FairLine(Generic[Waiter]):
    """One line. A waiter is in it once. `kind` stands for what a waiter is content with: who is of the same kind may
    have the same slots.

    Joining, leaving and being served take the same time however long the line is.
    """

    def __init__(self) -> None:
        self._arrivals = count()
        self._of: dict[Waiter, tuple[Party, Hashable]] = {}
        self._parties: dict[Party, dict[Hashable, dict[Waiter, int]]] = {}
        """In the order of their turns; of each, by kind, those who wait with the number of their arrival."""

    def __repr__(self) -> str:
        waiting = ", ".join(f"{party.token}/{party.run}: {number}" for party, number in self.by_party().items())
        return f"<FairLine {waiting or 'empty'}>"

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._of

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._of)

    def join(self, waiter: Waiter, party: Party, kind: Hashable = None) -> None:
        """Stands at the end of its party, which takes its turn after all that are there."""
        if waiter in self._of:
            raise ValueError(f"{waiter!r} is in line already")
        self._of[waiter] = party, kind
        self._parties.setdefault(party, {}).setdefault(kind, {})[waiter] = next(self._arrivals)

    def leave(self, waiter: Waiter) -> bool:
        """Goes without a slot. False if it is not in line (any more)."""
        if waiter not in self._of:
            return False
        party, kind = self._of.pop(waiter)
        kinds = self._parties[party]
        del kinds[kind][waiter]
        if not kinds[kind]:
            del kinds[kind]
        if not kinds:
            del self._parties[party]
        return True

    def first(self, without: Collection[Hashable] = ()) -> Waiter | None:
        """Who is to have a slot that comes free; None when nobody waits. `without`: kinds that may not have it."""
        for kinds in self._parties.values():
            heads = [next(iter(alike.items())) for kind, alike in kinds.items() if kind not in without]
            if heads:
                return min(heads, key=lambda head: head[1])[0]
        return None

    def serve(self, waiter: Waiter) -> None:
        """It has its slot and leaves; its party's next turn is after all others'. Raises KeyError if it is not here."""
        party, _ = self._of[waiter]
        self.leave(waiter)
        if (kinds := self._parties.pop(party, None)) is not None:
            self._parties[party] = kinds

    def kind(self, waiter: Waiter) -> Hashable:
        """What it came with. Raises KeyError if it is not in line."""
        return self._of[waiter][1]

    def by_party(self) -> dict[Party, int]:
        """How many of each party wait, in the order of their turns."""
        return {party: sum(map(len, kinds.values())) for party, kinds in self._parties.items()}

    def position(self, waiter: Waiter) -> int:
        """Where it stands if every slot is for everybody: 1 is next. Raises KeyError if it is not in line."""
        party, kind = self._of[waiter]
        kinds = self._parties[party]
        arrival = kinds[kind][waiter]
        before = sum(each < arrival for alike in kinds.values() for each in alike.values())
        return self._position(party, before)

    def position_of_next(self, party: Party) -> int:
        """Where another one of this party would stand."""
        return self._position(party, self.by_party().get(party, 0))

    def _position(self, party: Party, before: int) -> int:
        """With so many of its own party before it, it has the turn after those; parties that are before its own have
        one more turn until then than those behind it."""
        position, is_before = before + 1, True
        for other, waiting in self.by_party().items():
            if other == party:
                is_before = False
            else:
                position += min(waiting, before + is_before)
        return position
