"""What the master should start and drain now, from what is wanted and what is there; does neither itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WorkerStatus

SHORT_OF_MEMORY: Final = "the host is short of memory"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one pool should have. No start before `not_before` (monotonic seconds; the pool's backoff).

    `spares` are warm workers beside the `workers` that serve. Spares beyond that number stay until they are needed, or
    until the pool `is_quiet`: then they are drained.
    """

    workers: int
    not_before: float = -math.inf
    spares: int = 0
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the plan sees it. `recycle` is the reason why it should be replaced (memory, age, settings).

    `spare`: it is none of the wanted workers: it starts, is warm, or serves already in place of one that still lives.
    `lingers_until`: it only waits for the end of its last sessions, which may take until then (monotonic seconds).
    """

    worker_id: str
    pool: str
    status: WorkerStatus
    active: int = 0
    started_at: float = 0.0
    recycle: str | None = None
    spare: bool = False
    lingers_until: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds all pools. `memory_for` is how many more workers fit into the host's memory.

    `max_surge` bounds the processes beyond the wanted number that the grid adds of its own accord, to have a
    replacement before it recycles a worker. Workers that drain for another reason are replaced one for one even beyond
    it, because capacity must not dip, but only where there is memory for it; 0 allows no process beyond the wanted
    number, ever. Workers that linger count only where it is 0; where memory is short, they are hurried one by one.
    """

    max_starting: int = 2
    max_surge: int = 1
    memory_for: int = 1_000_000
    no_spawns: str | None = None

    @property
    def has_room(self) -> bool:
        """Whether there may be one more process than wanted."""
        return self.max_surge > 0 and self.memory_for > 0 and self.no_spawns is None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start one worker, as a spare or to serve as soon as it is warm."""

    pool: str
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Serve:
    """Let a spare serve, now or as soon as it is warm, and count on it."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain one worker."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Hurry:
    """Give the sessions of a worker that lingers only the time of a drain that was not planned."""

    worker_id: str
    reason: str


Action = Spawn | Serve | Drain | Hurry


@dataclass(slots=True)
class _Pool:
    name: str
    wanted: Wanted
    coming: list[WorkerView]
    """They will serve: they start, or are spares that have been told to."""
    available: list[WorkerView]
    spares: list[WorkerView]
    leaving: list[WorkerView]
    lingering: list[WorkerView]
    expiring: WorkerView | None = None

    def kept(self) -> list[WorkerView]:
        return [view for view in (*self.coming, *self.available) if view is not self.expiring]

    def missing(self) -> int:
        """How many it lacks of those that serve, or too many (negative)."""
        return self.wanted.workers - len(self.kept())

    def all(self) -> list[WorkerView]:
        return [*self.coming, *self.available, *self.spares, *self.leaving, *self.lingering]

    def room(self, limits: Limits) -> int:
        """How many more processes it may have. What drains for other reasons is replaced even beyond the surge."""
        if limits.max_surge == 0:
            return self.wanted.workers - len(self.all())
        beyond = max(limits.max_surge, len(self.leaving))
        return self.wanted.workers + beyond - len(self.all()) + len(self.lingering)

    def called(self) -> list[WorkerView]:
        """The spares that are to serve now."""
        return sorted(self.spares, key=_soonest)[: max(0, self.missing())]


def plan(wanted: Mapping[str, Wanted], views: Iterable[WorkerView], now: float, limits: Limits) -> list[Action]:
    """The actions that bring what is there nearer to what is wanted; `now` in monotonic seconds."""
    everyone = list(views)
    pools = [_pool(name, goal, everyone) for name, goal in wanted.items()]
    can_wait = any(pool.lingering for pool in pools)
    for pool in pools:
        pool.expiring = _expiring(pool, limits)
    drains: list[Action] = [action for pool in pools for action in _drains(pool, limits, can_wait=can_wait)]
    serves: list[Action] = [Serve(view.worker_id) for pool in pools for view in pool.called()]
    return drains + serves + _hurries(pools, now, limits) + _spawns(pools, now, limits)


def next_start(wanted: Mapping[str, Wanted], now: float) -> float:
    """When a backoff ends next, or infinity: `plan` may have something else to say then."""
    return min((goal.not_before for goal in wanted.values() if goal.not_before > now), default=math.inf)


def _pool(name: str, wanted: Wanted, views: list[WorkerView]) -> _Pool:
    pool = _Pool(name, wanted, [], [], [], [], [])
    for view in views:
        if view.pool != name:
            continue
        if view.lingers_until is not None:
            pool.lingering.append(view)
        elif view.status not in BEFORE_A_DRAIN:
            pool.leaving.append(view)
        elif view.spare:
            pool.spares.append(view)
        elif view.status is WorkerStatus.AVAILABLE:
            pool.available.append(view)
        else:
            pool.coming.append(view)
    return pool


def _expiring(pool: _Pool, limits: Limits) -> WorkerView | None:
    """The one worker of the pool that is recycled next: none while another recycle is under way. One that lingers does
    not count as that: its replacement serves already."""
    due = [view for view in pool.available if view.recycle]
    if len(pool.leaving) >= max(1, limits.max_surge) or any(view.recycle for view in pool.leaving):
        return None
    return min(due, key=lambda view: view.started_at, default=None)


def _drains(pool: _Pool, limits: Limits, *, can_wait: bool) -> list[Action]:
    """Drain surplus workers, idle ones first, and the expiring one once its replacement serves or has no room to start.

    `can_wait`: some worker lingers, and can be hurried to make room.
    """
    surplus = sorted(pool.kept(), key=_least_loss)[: max(0, -pool.missing())]
    if pool.wanted.workers == 0:
        surplus += pool.spares
    drains: list[Action] = [Drain(view.worker_id, "scaled down") for view in surplus]
    if pool.wanted.workers > 0:
        drains += _spares_to_drop(pool, limits)
    if pool.expiring is not None:
        serving = sum(1 for view in pool.available if view is not pool.expiring)
        no_place = not limits.has_room and not can_wait
        if serving >= pool.wanted.workers or (no_place and not pool.called()):
            drains.append(Drain(pool.expiring.worker_id, pool.expiring.recycle or "recycle"))
    return drains


def _spares_to_drop(pool: _Pool, limits: Limits) -> list[Action]:
    """Spares wait for as long as sessions come, since each start costs; but not on a host that is short of memory.

    Those that are to be recycled go when enough others are warm, or there can be no others.
    """
    waiting = sorted(pool.spares, key=_soonest)[len(pool.called()) :]
    idle = [view for view in waiting if not view.active]
    if limits.no_spawns is not None:
        return [Drain(view.worker_id, SHORT_OF_MEMORY) for view in idle]
    warm = sum(view.recycle is None and view.status is not WorkerStatus.STARTING for view in waiting)
    outdated: list[Action] = [Drain(view.worker_id, view.recycle) for view in idle if view.recycle]
    if outdated and (warm >= pool.wanted.spares or min(pool.room(limits), limits.memory_for) <= 0):
        return outdated
    too_many = waiting[pool.wanted.spares :] if pool.wanted.is_quiet else []
    return [Drain(view.worker_id, "spare") for view in too_many if not view.active]


def _hurries(pools: list[_Pool], now: float, limits: Limits) -> list[Action]:
    """Hurry the worker that has lingered longest, where the host is short of memory, or has none for a worker that is
    to serve. One at a time: the memory that it frees may be enough."""
    lingering = [view for pool in pools for view in pool.lingering]
    if not lingering or limits.has_room or any(pool.leaving for pool in pools):
        return []
    starts = [each for pool in pools if now >= pool.wanted.not_before for each in _starts(pool, limits)]
    if limits.no_spawns is None and not any(is_extra and not spawn.spare for spawn, is_extra in starts):
        return []
    longest = min(lingering, key=lambda view: view.lingers_until or 0.0)
    return [Hurry(longest.worker_id, SHORT_OF_MEMORY)]


def _soonest(view: WorkerView) -> tuple[bool, int, float]:
    """The order in which spares serve: first those that need no recycling; of these those that serve already, then warm
    ones, then those that started first."""
    return (view.recycle is not None, -BEFORE_A_DRAIN.index(view.status), view.started_at)


def _least_loss(view: WorkerView) -> tuple[int, int, float]:
    """Starting ones go first, then idle ones, then those with few sessions; the youngest of equals."""
    return (BEFORE_A_DRAIN.index(view.status), view.active, -view.started_at)


def _spawns(pools: list[_Pool], now: float, limits: Limits) -> list[Action]:
    """Round robin over the pools, so that no pool waits until another one is complete."""
    if limits.no_spawns is not None:
        return []
    room = limits.max_starting - sum(view.status is WorkerStatus.STARTING for pool in pools for view in pool.all())
    memory = limits.memory_for
    queues = [_starts(pool, limits) for pool in pools if now >= pool.wanted.not_before]
    spawns: list[Action] = []
    while any(queues):
        for queue in queues:
            if not queue:
                continue
            spawn, is_extra = queue.pop(0)
            if room <= 0 or (is_extra and memory <= 0):
                continue
            room -= 1
            memory -= is_extra
            spawns.append(spawn)
    return spawns


def _starts(pool: _Pool, limits: Limits) -> list[tuple[Spawn, bool]]:
    """What the pool lacks and has room for, and whether that takes a process beyond the wanted number."""
    called, there = len(pool.called()), len(pool.all())
    missing = max(0, pool.missing() - called)
    lasting = max(0, sum(view.recycle is None for view in pool.spares) - called)
    spares = max(0, pool.wanted.spares - lasting) if pool.wanted.workers else 0
    starts = [Spawn(pool.name)] * missing + [Spawn(pool.name, spare=True)] * spares
    starts = starts[: max(0, pool.room(limits))]
    return [(spawn, there + n >= pool.wanted.workers) for n, spawn in enumerate(starts)]
