"""Decides which workers the master starts and drains now, from those wanted and those there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, WorkerStatus

SHORT_OF_MEMORY: Final = Reason(WorkerEnd.SHORT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """What one pool should have. Its backoff allows no start before `not_before` (monotonic seconds).

    `spares` is the number of warm workers beside the `workers` that serve. Spares beyond that number stay until they
    are needed, or are drained once the pool `is_quiet`.
    """

    workers: int
    not_before: float = -math.inf
    spares: int = 0
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """One worker as the plan sees it. `recycle` is the reason why it should be replaced (memory, age, settings).

    `spare`: it does not count as one of the wanted workers; it starts, is warm, or serves already in place of a worker
    that still lives. `lingers_until`: it only waits for its last sessions, at most until then (monotonic seconds).
    """

    worker_id: str
    pool: str
    status: WorkerStatus
    active: int = 0
    started_at: float = 0.0
    recycle: Reason[WorkerEnd] | None = None
    spare: bool = False
    lingers_until: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds all pools.

    - `max_starting`: how many workers of the whole grid may start at the same time.
    - `max_surge`, at least 1: how many workers a pool may have beyond the wanted number, so that a replacement is ready
      before a worker is recycled. Workers that drain for another reason are replaced one for one even beyond it,
      because capacity must not dip. Workers that linger do not count.
    - `memory_for`: how many more workers fit into the host's memory. Workers beyond the wanted number start only where
      there is memory for them; where it is short, workers that linger are hurried, one at a time.
    - `no_spawns`: why no worker may start now; None if workers may.
    """

    max_starting: int = 2
    max_surge: int = 1
    memory_for: int = 1_000_000
    no_spawns: str | None = None

    @property
    def has_room(self) -> bool:
        """Whether there may be one more process than wanted."""
        return self.memory_for > 0 and self.no_spawns is None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start one worker, as a spare or to serve as soon as it is warm."""

    pool: str
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Serve:
    """Let a spare serve, now or as soon as it is warm; it counts as a wanted worker from now on."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Drain:
    worker_id: str
    reason: Reason[WorkerEnd]


@dataclass(frozen=True, slots=True)
class ShortenDrain:
    """Give the sessions of a worker that lingers no more time than an unplanned drain has."""

    worker_id: str
    reason: Reason[WorkerEnd]


PlanStep = Spawn | Serve | Drain | ShortenDrain


@dataclass(slots=True)
class _Pool:
    name: str
    wanted: PoolTarget
    coming: list[PlannedWorker]
    """Those that will serve: they start, or are spares that were told to serve."""
    available: list[PlannedWorker]
    spares: list[PlannedWorker]
    leaving: list[PlannedWorker]
    lingering: list[PlannedWorker]
    expiring: PlannedWorker | None = None

    def kept(self) -> list[PlannedWorker]:
        return [view for view in (*self.coming, *self.available) if view is not self.expiring]

    def missing(self) -> int:
        """How many serving workers it lacks; negative: how many it has too many."""
        return self.wanted.workers - len(self.kept())

    def all(self) -> list[PlannedWorker]:
        return [*self.coming, *self.available, *self.spares, *self.leaving, *self.lingering]

    def room(self, limits: Limits) -> int:
        """How many more processes it may have. Replacements of workers that drain may exceed `max_surge`."""
        beyond = max(limits.max_surge, len(self.leaving))
        return self.wanted.workers + beyond - len(self.all()) + len(self.lingering)

    def called(self) -> list[PlannedWorker]:
        """The spares that have to serve now."""
        return sorted(self.spares, key=_soonest)[: max(0, self.missing())]


def plan(
    wanted: Mapping[str, PoolTarget], views: Iterable[PlannedWorker], now: float, limits: Limits
) -> list[PlanStep]:
    """The actions that bring the workers there are (`views`) nearer to those wanted; `now` in monotonic seconds."""
    everyone = list(views)
    pools = [_pool(name, goal, everyone) for name, goal in wanted.items()]
    for pool in pools:
        pool.expiring = _expiring(pool, limits)
    drains: list[PlanStep] = [action for pool in pools for action in _drains(pool, limits)]
    serves: list[PlanStep] = [Serve(view.worker_id) for pool in pools for view in pool.called()]
    steps = drains + serves + _shortened_drains(pools, now, limits) + _spawns(pools, now, limits)
    return steps or _drain_before_replacement(pools, now, limits)


def next_start(backoffs_end: Iterable[float], now: float) -> float:
    """When the next backoff ends (monotonic seconds), or infinity: `plan` may return other actions from then on."""
    return min((ends_at for ends_at in backoffs_end if ends_at > now), default=math.inf)


def _pool(name: str, wanted: PoolTarget, views: list[PlannedWorker]) -> _Pool:
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


def _expiring(pool: _Pool, limits: Limits) -> PlannedWorker | None:
    """The one worker of the pool to recycle next; None while another recycle is under way. A worker that lingers does
    not count for that: its replacement serves already."""
    due = [view for view in pool.available if view.recycle]
    if len(pool.leaving) >= limits.max_surge or any(view.recycle for view in pool.leaving):
        return None
    return min(due, key=lambda view: view.started_at, default=None)


def _drains(pool: _Pool, limits: Limits) -> list[PlanStep]:
    """Drain surplus workers, idle ones first, and the expiring one once its replacement serves."""
    surplus = sorted(pool.kept(), key=_least_loss)[: max(0, -pool.missing())]
    if pool.wanted.workers == 0:
        surplus += pool.spares
    drains: list[PlanStep] = [Drain(view.worker_id, Reason(WorkerEnd.SCALED_DOWN)) for view in surplus]
    if pool.wanted.workers > 0:
        drains += _spares_to_drop(pool, limits)
    if pool.expiring is not None and pool.expiring.recycle and len(pool.available) > pool.wanted.workers:
        drains.append(Drain(pool.expiring.worker_id, pool.expiring.recycle))
    return drains


def _drain_before_replacement(pools: list[_Pool], now: float, limits: Limits) -> list[PlanStep]:
    """Drain one expiring worker of a complete pool although its replacement has no room to start: capacity dips by one.

    It is the last resort, for when there is no other step and no worker starts or leaves, since that may make room. It
    waits in a backoff and while the host guard is closed, since nothing could start in the worker's place. Only one
    that takes too much memory goes also while the guard is closed: no session is admitted meanwhile, and the guard may
    never open else.
    """
    if limits.has_room or not all(_is_settled(view) for pool in pools for view in pool.all()):
        return []
    due = [
        pool.expiring
        for pool in pools
        if pool.expiring is not None
        and len(pool.available) >= pool.wanted.workers
        and now >= pool.wanted.not_before
        and (limits.no_spawns is None or _takes_too_much_memory(pool.expiring))
    ]
    oldest = sorted(due, key=lambda view: view.started_at)[:1]
    return [Drain(view.worker_id, view.recycle) for view in oldest if view.recycle]


def _takes_too_much_memory(view: PlannedWorker) -> bool:
    return view.recycle is not None and view.recycle.kind is WorkerEnd.MEMORY


def _is_settled(view: PlannedWorker) -> bool:
    """Whether it serves, or is warm and nothing asks it to serve."""
    return view.status is WorkerStatus.AVAILABLE or (view.status is WorkerStatus.SPARE and view.spare)


def _spares_to_drop(pool: _Pool, limits: Limits) -> list[PlanStep]:
    """Drain spares once no sessions come, and not before, since each start costs; or if the host is short of memory.

    Spares to recycle go when enough others are warm, or there is no room for others and none starts.
    """
    waiting = sorted(pool.spares, key=_soonest)[len(pool.called()) :]
    idle = [view for view in waiting if not view.active]
    if limits.no_spawns is not None:
        return [Drain(view.worker_id, SHORT_OF_MEMORY) for view in idle]
    lasting = [view for view in waiting if view.recycle is None]
    starting = sum(view.status is WorkerStatus.STARTING for view in lasting)
    is_full = not starting and min(pool.room(limits), limits.memory_for) <= 0
    outdated: list[PlanStep] = [Drain(view.worker_id, view.recycle) for view in idle if view.recycle]
    if outdated and (len(lasting) - starting >= pool.wanted.spares or is_full):
        return outdated
    too_many = waiting[pool.wanted.spares :] if pool.wanted.is_quiet else []
    return [Drain(view.worker_id, Reason(WorkerEnd.SPARE)) for view in too_many if not view.active]


def _shortened_drains(pools: list[_Pool], now: float, limits: Limits) -> list[PlanStep]:
    """Shorten the drain of the worker whose lingering ends first, where the host is short of memory, or has none for a
    worker that has to serve. One at a time: the memory that it frees may be enough."""
    lingering = [view for pool in pools for view in pool.lingering]
    if not lingering or limits.has_room or any(pool.leaving for pool in pools):
        return []
    starts = [each for pool in pools if now >= pool.wanted.not_before for each in _starts(pool, limits)]
    if limits.no_spawns is None and not any(is_extra and not spawn.spare for spawn, is_extra in starts):
        return []
    first = min(lingering, key=lambda view: view.lingers_until or 0.0)
    return [ShortenDrain(first.worker_id, SHORT_OF_MEMORY)]


def _soonest(view: PlannedWorker) -> tuple[bool, int, float]:
    """Sorts spares in the order in which they serve: those that need no recycling first, then by status (available,
    spare, starting), then the oldest."""
    return (view.recycle is not None, -BEFORE_A_DRAIN.index(view.status), view.started_at)


def _least_loss(view: PlannedWorker) -> tuple[int, int, float]:
    """Sorts surplus workers in the order in which they go: by status (starting first), then the fewest sessions, then
    the youngest."""
    return (BEFORE_A_DRAIN.index(view.status), view.active, -view.started_at)


def _spawns(pools: list[_Pool], now: float, limits: Limits) -> list[PlanStep]:
    """Starts by turns for all pools, so that no pool waits until another one is complete."""
    if limits.no_spawns is not None:
        return []
    room = limits.max_starting - sum(view.status is WorkerStatus.STARTING for pool in pools for view in pool.all())
    memory = limits.memory_for
    queues = [_starts(pool, limits) for pool in pools if now >= pool.wanted.not_before]
    spawns: list[PlanStep] = []
    for spawn, is_extra in filter(None, chain.from_iterable(zip_longest(*queues))):
        if room > 0 and (memory > 0 or not is_extra):
            room -= 1
            memory -= 1
            spawns.append(spawn)
    return spawns


def _starts(pool: _Pool, limits: Limits) -> list[tuple[Spawn, bool]]:
    """What the pool lacks and has room for; and for each, whether it is a process beyond the wanted number."""
    called, there = len(pool.called()), len(pool.all())
    missing = max(0, pool.missing() - called)
    lasting = max(0, sum(view.recycle is None for view in pool.spares) - called)
    spares = max(0, pool.wanted.spares - lasting) if pool.wanted.workers else 0
    starts = [Spawn(pool.name)] * missing + [Spawn(pool.name, spare=True)] * spares
    starts = starts[: max(0, pool.room(limits))]
    return [(spawn, there + n >= pool.wanted.workers) for n, spawn in enumerate(starts)]
