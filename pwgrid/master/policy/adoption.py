"""What a master does with what the one before it has left: takes over, ends or removes; finds and ends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Adopt:
    """It serves on under the new master."""

    kind: ChildKind
    name: str


@dataclass(frozen=True, slots=True)
class Retire:
    """A second proxy: it serves whom it has accepted, and goes."""

    name: str


@dataclass(frozen=True, slots=True)
class End:
    """It lives, but cannot be used. Its process and its tree are killed, then it is removed."""

    kind: ChildKind
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """It is dead. What is left of its tree is killed, its files and its records go."""

    kind: ChildKind
    name: str


Verdict = Adopt | Retire | End | Remove


def judge(found: Iterable[Found], registry: str) -> list[Verdict]:
    """One verdict for each, in the given order. `registry` names the Redis that the new master uses."""
    everyone = list(found)
    fit = [each for each in everyone if each.alive and each.registry == registry]
    newest = max((each for each in fit if each.kind == "proxy"), key=lambda each: each.start, default=None)
    return [_judge(each, registry, newest) for each in everyone]


def _judge(each: Found, registry: str, newest: Found | None) -> Verdict:
    if not each.alive:
        return Remove(each.kind, each.name)
    if each.registry != registry:
        return End(each.kind, each.name, "it uses another Redis than the configuration says now")
    if each.kind == "proxy" and each is not newest:
        return Retire(each.name)
    return Adopt(each.kind, each.name)
