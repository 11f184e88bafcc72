"""What a new master does with what a former one has left: takes over, ends or removes; finds and ends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pwgrid.common.types import ChildKind
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, TRANSITIONS, WorkerEvent, WorkerStatus


@dataclass(frozen=True, slots=True)
class Found:
    """One child of a former master. `alive`: its process is the one that was written down (pid, start time, boot, uid).

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


_E: Final = WorkerEvent
_TOLD: Final[dict[str, tuple[WorkerEvent, ...]]] = {
    "starting": (),
    "spare": (_E.HELD,),
    "available": (_E.WARMED,),
    "draining": (_E.DRAIN_ASKED,),
    "stopped": (_E.DRAIN_ASKED, _E.STOP_ANNOUNCED),
}


def written_status(written: str) -> WorkerStatus:
    """Where an adopted worker was when it was written down. One that was on its way out is still on it."""
    if written in BEFORE_A_DRAIN:
        return WorkerStatus(written)
    return WorkerStatus.DRAINING


def caught_up(status: WorkerStatus, told: object) -> WorkerStatus:
    """The status of an adopted worker after it told its own; what cannot follow from `status` changes nothing."""
    for event in _TOLD.get(str(told), ()):
        status = heard_again(status, event)
    return status


def missed_its_drain(written: WorkerStatus, told: object) -> bool:
    """Whether the former master wrote a drain down, and died before the worker heard of it."""
    return written is WorkerStatus.DRAINING and told in BEFORE_A_DRAIN


def heard_again(status: WorkerStatus, event: WorkerEvent) -> WorkerStatus:
    """The status after an event that an adopted worker may be telling a second time: the former master's memory of it
    is gone, so a pair that is not in the table is old news."""
    if event is WorkerEvent.STOP_ANNOUNCED and status in BEFORE_A_DRAIN:
        return WorkerStatus.STOPPED
    return TRANSITIONS.get((status, event), status)
