"""Decides what a master does with each child that the master before it left. Finds and ends none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pwgrid.common.types import ChildKind


@dataclass(frozen=True, slots=True)
class Found:
    """One child of the master before. `alive`: its process is the one in its file (pid, start time, boot, uid), or this
    master has its link to a browser server that a successor can take over.

    `registry` names the Redis that it uses; `start` is its start time, by which the newest proxy is found.
    `accepts_clients` is False for a proxy that retires: it has closed its listening sockets.
    """

    kind: ChildKind
    alive: bool
    registry: str
    start: float
    accepts_clients: bool = True


class Verdict(StrEnum):
    ADOPT = "adopt"
    RETIRE = "retire"  # a second proxy, or one that retires: it serves the clients that it has accepted, and ends
    END = "end"  # it lives, but uses another Redis: it and its tree are killed, then as REMOVE
    REMOVE = "remove"  # it is dead: the rest of its tree is killed, its files and records are removed


def verdicts(found: Sequence[Found], registry: str) -> list[Verdict]:
    """One verdict for each of `found`, in its order. `registry` names the Redis that the new master uses."""
    proxies = [each for each in found if each.kind == "proxy" and each.alive and each.registry == registry]
    accepting = [each for each in proxies if each.accepts_clients]
    newest = max(accepting, key=lambda each: each.start, default=None)
    return [_verdict(each, registry, newest) for each in found]


def _verdict(each: Found, registry: str, newest: Found | None) -> Verdict:
    if not each.alive:
        return Verdict.REMOVE
    if each.registry != registry:
        return Verdict.END
    return Verdict.RETIRE if each.kind == "proxy" and each is not newest else Verdict.ADOPT
