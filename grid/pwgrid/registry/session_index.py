"""Which sessions, or leases, there are, in the order of lists: the newest first. Says what to ask Redis, and reads the
answers; who asks is the caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pwgrid.common.session_lifecycle import HeldAs

CHUNK: Final = 200
"""How many ids are read at once."""

Entry = tuple[str, float]
"""An id, and when it was created (Unix seconds)."""


class IndexReader:
    """Reads the two indexes of a kind as one: that of the newest, and that of older ones which live. `after` is the
    last entry that was read before; what is created meanwhile shifts nothing."""

    def __init__(self, prefix: str, kind: HeldAs, after: tuple[str, str] | None = None) -> None:
        # In this order: what goes from the first to the second between the two answers is in both, and not in none.
        self._keys = (f"{prefix}{kind}s:index", f"{prefix}{kind}s:index:live")
        self._score: str
        self._last_id: str | None
        self._score, self._last_id = after or ("+inf", None)
        self.is_at_end = False
        """Whether there is nothing behind what was read."""

    @property
    def place(self) -> tuple[str, str]:
        """The last entry that was read, as `after` of another reader. Only after one was."""
        assert self._last_id is not None
        return self._score, self._last_id

    def commands(self) -> list[tuple[str | int, ...]]:
        """What to ask for the next entries."""
        count = ("WITHSCORES", "LIMIT", 0, CHUNK)
        if self._last_id is None:
            return [("ZREVRANGEBYSCORE", key, "+inf", "-inf", *count) for key in self._keys]
        of_same_time = [("ZREVRANGEBYSCORE", key, self._score, self._score, "WITHSCORES") for key in self._keys]
        return [*of_same_time, *(("ZREVRANGEBYSCORE", key, f"({self._score}", "-inf", *count) for key in self._keys)]

    def read(self, replies: Iterable[Any]) -> list[Entry]:
        """Returns the next entries, at most CHUNK. Goes to the last one of them."""
        found = {(float(at), id_) for reply in replies for id_, at in reply}
        if self._last_id is not None:
            here = float(self._score), self._last_id
            found = {each for each in found if each < here}  # Redis orders equal scores by bytes
        entries = [(id_, at) for at, id_ in sorted(found, reverse=True)[:CHUNK]]
        self.is_at_end = len(entries) < CHUNK
        for id_, at in entries[-1:]:
            self.go_to(id_, at)
        return entries

    def go_to(self, id_: str, at: float) -> None:
        """Has the next entries begin behind this one."""
        self._score, self._last_id = str(at), id_
