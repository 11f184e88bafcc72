"""A pool in simulated time: the real plan and the real foresight; workers, selection and sessions are figures only."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pwgrid.common.worker_lifecycle import WorkerStatus
from pwgrid.master.policy.spare_workers import (
    STARTS,
    UNKNOWN_START_S,
    SessionRate,
    expected_rate,
    sessions_to_come,
    spares,
)
from pwgrid.master.policy.worker_plan import Drain, Limits, PlannedWorker, PoolTarget, Serve, Spawn, plan

S = WorkerStatus
PING_S = 3.0


@dataclass(slots=True)
class Rules:
    """What the pool is, and how long things take (seconds)."""

    workers: int = 3
    slots: int = 5
    max_lifetime: int = 10
    start_s: Callable[[], float] = lambda: 1.0
    serve_s: float = 0.03
    exit_s: float = 0.3
    lingers: bool = True
    """Whether the sessions of a worker that drains have all the time that they take."""
    fits: int = 1_000_000
    """How many workers fit into the host's memory."""
    limits: Limits = field(default_factory=lambda: Limits(max_starting=4, max_surge=8))


@dataclass(eq=False, slots=True)
class Member:
    """One worker."""

    name: str
    status: WorkerStatus
    spare: bool
    forked_at: float
    counted_at: float
    active: int = 0
    lifetime: int = 0
    recycle: str | None = None
    is_hurried: bool = False

    def view(self, *, lingers: bool) -> PlannedWorker:
        """As the plan sees it."""
        return PlannedWorker(
            self.name,
            "chromium",
            self.status,
            self.active,
            started_at=self.forked_at,
            recycle=self.recycle,
            spare=self.spare,
            lingers_until=math.inf if lingers and self.status is S.DRAINING and not self.is_hurried else None,
        )


class PoolModel:
    """Begins at time 0 with all workers warm and new. The fields say what came of the sessions that `run` let come."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.now = 0.0
        self.least = rules.workers
        """Fewest workers that were available at any time."""
        self.most = rules.workers
        """Most workers that there were at any time, those on their way out included."""
        self.below_s = 0.0
        self.longest_wait_s = 0.0
        self.lifetimes: list[int] = []
        """Of the workers that are gone."""
        self.rate = SessionRate(0.0, expected_rate(rules.workers, rules.slots, rules.max_lifetime))
        self.starts_s: deque[float] = deque(maxlen=STARTS)
        self.members: list[Member] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._waiting: list[tuple[float, float]] = []
        for _ in range(rules.workers):
            self._join(S.AVAILABLE, spare=False)
        self.starts_s.append(rules.start_s())

    def run(self, sessions: Sequence[tuple[float, float]], then_s: float = 0.0) -> None:
        """Sessions as (when one comes, how long it takes); ends `then_s` after the last one has found a slot."""
        for at, duration in sessions:
            self._after(at - self.now, partial(self._arrive, duration))
        left = len(sessions)
        while self._events and (left or self._waiting):
            left -= self._step()
        end = self.now + then_s
        for n in range(int(then_s / PING_S)):
            self._after(n * PING_S, lambda: None)  # the master's turns
        while self._events and self.now < end:
            self._step()

    def upgrade(self, at: float) -> None:
        """Have all workers replaced that there are at that time."""
        self._after(at - self.now, self._mark_all)

    def available(self) -> list[Member]:
        """Those that a selection may choose."""
        return [each for each in self.members if each.status is S.AVAILABLE]

    def _step(self) -> bool:
        """One event; whether it was a session that came."""
        at, _, event = heapq.heappop(self._events)
        if len(self.available()) < self.rules.workers:
            self.below_s += at - self.now
        self.now = at
        event()
        self._follow_plan()
        self.least = min(self.least, len(self.available()))
        self.most = max(self.most, len(self.members))
        return isinstance(event, partial) and event.func == self._arrive

    # Sessions

    def _arrive(self, duration: float) -> None:
        self._waiting.append((self.now, duration))
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and (chosen := self._select()) is not None:
            since, duration = self._waiting.pop(0)
            self.longest_wait_s = max(self.longest_wait_s, self.now - since)
            chosen.active += 1
            chosen.lifetime += 1
            self.rate.count(1, chosen.counted_at, self.now)
            chosen.counted_at = self.now
            if chosen.lifetime >= self.rules.max_lifetime:
                chosen.status = S.DRAINING
                self._let_one_serve()
            self._after(duration, partial(self._end, chosen))

    def _select(self) -> Member | None:
        """As selector.lua chooses."""
        serving = self.available()
        limit = self.rules.max_lifetime
        border = limit - max(1, limit // max(1, len(serving)))
        eligible = [each for each in serving if each.active < self.rules.slots and each.lifetime < limit]
        return min(eligible, key=lambda each: (each.lifetime >= border, -each.lifetime, each.active), default=None)

    def _let_one_serve(self) -> None:
        """What selector.lua does in the step that uses a worker up."""
        replacement = next((each for each in self.members if each.status is S.SPARE), None)
        if replacement is not None:
            replacement.status, replacement.spare = S.AVAILABLE, False

    def _end(self, member: Member) -> None:
        member.active -= 1
        self._leave_when_idle(member)
        self._serve_waiting()

    # Workers

    def _follow_plan(self) -> None:
        rules = self.rules
        live = [each for each in self.members if each.status in (S.STARTING, S.SPARE, S.AVAILABLE)]
        start_s = max(self.starts_s, default=UNKNOWN_START_S)
        sessions = sessions_to_come(self.rate.per_s(self.now), start_s, rules.max_lifetime, rules.slots)
        enough = spares(sessions, rules.max_lifetime, [each.lifetime for each in live])
        wanted = PoolTarget(rules.workers, spares=enough, is_quiet=self.rate.is_quiet(self.now))
        views = [each.view(lingers=rules.lingers) for each in self.members]
        limits = replace(rules.limits, memory_for=max(0, rules.fits - len(self.members)))
        for action in plan({"chromium": wanted}, views, self.now, limits):
            if isinstance(action, Spawn):
                starting = self._join(S.STARTING, spare=action.spare)
                self._after(rules.start_s(), partial(self._warm, starting))
                continue
            (meant,) = [each for each in self.members if each.name == action.worker_id]
            if isinstance(action, Serve):
                meant.spare = False
                if meant.status is S.SPARE:
                    self._after(rules.serve_s, partial(self._register, meant))
            elif isinstance(action, Drain):
                meant.status = S.DRAINING
                self._leave_when_idle(meant)
            else:
                meant.is_hurried = True

    def _mark_all(self) -> None:
        for each in self.members:
            each.recycle = "upgrade"

    def _join(self, status: WorkerStatus, *, spare: bool) -> Member:
        self._sequence += 1
        member = Member(f"w{self._sequence}", status, spare, self.now, self.now)
        self.members.append(member)
        return member

    def _warm(self, member: Member) -> None:
        if member.status is S.STARTING:
            self.starts_s.append(self.now - member.forked_at)
            if member.spare:
                member.status = S.SPARE
            else:
                self._register(member)

    def _register(self, member: Member) -> None:
        if member.status in (S.STARTING, S.SPARE):
            member.status = S.AVAILABLE
            self._serve_waiting()

    def _leave_when_idle(self, member: Member) -> None:
        if member.status is S.DRAINING and not member.active:
            self.lifetimes.append(member.lifetime)
            self._after(self.rules.exit_s, partial(self.members.remove, member))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + seconds, self._sequence, event))
