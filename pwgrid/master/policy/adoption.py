"""What a master does with what the one before it has left; finds and ends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pwgrid.common.types import ChildKind


@dataclass(frozen=True, slots=True)
class Found:
    """One child of the master before. `alive`: its process is what was written down (pid, start time, boot, uid).

    `registry` names the Redis that it uses; `start` is its start time, in any unit that rises.
    """

    kind: ChildKind
    name: str
    alive: bool
    registry: str
    start: float


class Verdict(StrEnum):
    """What is to become of it."""

    ADOPT = "adopt"
    RETIRE = "retire"  # a second proxy: it serves whom it has accepted, and goes
    END = "end"  # it lives, and uses another Redis: it is killed with its tree, then removed
    REMOVE = "remove"  # it is dead: what is left of its tree is killed, its files and its records go


def judge(found: Sequence[Found], registry: str) -> list[Verdict]:
    """One verdict for each, in the given order. `registry` names the Redis that the new master uses."""
    proxies = [each for each in found if each.kind == "proxy" and each.alive and each.registry == registry]
    newest = max(proxies, key=lambda each: each.start, default=None)
    return [_judge(each, registry, newest) for each in found]


def _judge(each: Found, registry: str, newest: Found | None) -> Verdict:
    if not each.alive:
        return Verdict.REMOVE
    if each.registry != registry:
        return Verdict.END
    return Verdict.RETIRE if each.kind == "proxy" and each is not newest else Verdict.ADOPT
