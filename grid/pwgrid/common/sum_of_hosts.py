"""Adds up what several hosts have of one pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Figures(NamedTuple):
    """What one host has of a pool, or all of them: how many of its workers are in which state, how many drains cut
    sessions, why it is short of workers, and whether the configuration has dropped it."""

    wanted: int
    available: int
    suspect: int
    starting: int
    spare: int
    draining: int
    drain_timeouts: int
    is_removed: bool
    reason: str | None

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Figures:
        """Reads them from a pool as a master tells of it, in its state frame and its status."""
        return cls(
            told["wanted"],
            told["available"],
            told.get("suspect", 0),
            told["starting"],
            told["spare"],
            told["draining"],
            told["drainTimeouts"],
            told.get("removed", False),
            told["reason"],
        )

    def as_told(self) -> dict[str, Any]:
        """The same as `read` takes it."""
        figures = self._asdict()
        renamed = {"drainTimeouts": figures.pop("drain_timeouts"), "removed": figures.pop("is_removed")}
        return {**figures, **renamed}


def whole(hosts: Mapping[str, Figures]) -> Figures:
    """Returns the figures of all hosts together, which are by the names of these: sums, and each reason behind the name
    of its host. Of one host alone they are as they are."""
    each = list(hosts.values())
    if len(each) == 1:
        return each[0]
    reasons = [f"{host}: {figures.reason}" for host, figures in hosts.items() if figures.reason]
    return Figures(
        wanted=sum(figures.wanted for figures in each),
        available=sum(figures.available for figures in each),
        suspect=sum(figures.suspect for figures in each),
        starting=sum(figures.starting for figures in each),
        spare=sum(figures.spare for figures in each),
        draining=sum(figures.draining for figures in each),
        drain_timeouts=sum(figures.drain_timeouts for figures in each),
        is_removed=all(figures.is_removed for figures in each),
        reason="; ".join(reasons) or None,
    )
