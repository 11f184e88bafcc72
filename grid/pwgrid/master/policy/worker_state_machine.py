"""Decides what happens to a worker: its states are tables, and each method returns what the master has to do.

A worker has three states at once: that of its service (`status`: pwgrid/common/worker_lifecycle.py), that of its
process (`phase`), and what the master wants of it (`purpose`). There is a method for each thing that can happen. Times
are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from typing import Final

from pwgrid.common.reasons import Reason, WorkerEnd
from pwgrid.common.worker_lifecycle import (
    BEFORE_A_DRAIN,
    DrainTime,
    LifecycleError,
    WorkerEvent,
    WorkerStatus,
    advance,
)
from pwgrid.settings.model import Settings

ASKED: Final = Reason(WorkerEnd.NOT_SAID)
"""Of a drain whose reason nobody has told."""

NO_SUCCESSOR: Final = Reason(WorkerEnd.OTHER, "no successor can be forked")

LAUNCH_GRACE_S: Final = 15.0
"""Time beyond LAUNCH_TIMEOUT for a worker to get warm."""

SERVE_GRACE_S: Final = 15.0
"""Time for a warm worker to register. It takes so long only while Redis is away; the worker then serves without."""

DRAIN_GRACE_S: Final = 20.0
"""Time beyond its drain deadline for a worker to close sessions and its browser."""

DRAIN_NOW_S: Final = 12.0
"""The same where sessions get no time: for clients that do not answer their close frame, and a browser's own close."""

PROFILES_S: Final = 40.0
"""More than both, for a worker with profiles: a browser writes its own, and then the worker saves it."""


class Phase(StrEnum):
    """The state of a worker's process, as the master knows it."""

    AWAITED = "awaited"  # another master forked it, and it has not reconnected to this one yet
    REPEATING = "repeating"  # it has reconnected, and may repeat what the other master had heard
    RUNNING = "running"
    GIVEN_UP = "given up"  # the master ends it, and ignores what it says
    EXITED = "exited"  # processes below it may be left
    CLEANED_UP = "cleaned up"


class PhaseEvent(StrEnum):
    OPENS = "opens"  # its link is open, for the first time or again
    COMES_BACK = "comes back"  # it has told its state
    IS_GIVEN_UP = "is given up"
    EXITS = "exits"
    IS_SUCCEEDED = "is succeeded"
    IS_CLEANED_UP = "is cleaned up"  # nothing of it is left, or what is left cannot be killed


_P, _PE = Phase, PhaseEvent

PHASES: Final[dict[tuple[Phase, PhaseEvent], Phase]] = {
    (_P.AWAITED, _PE.OPENS): _P.REPEATING,
    (_P.AWAITED, _PE.IS_GIVEN_UP): _P.GIVEN_UP,
    (_P.AWAITED, _PE.EXITS): _P.EXITED,
    (_P.REPEATING, _PE.OPENS): _P.REPEATING,
    # A link delivers events before the state, so nothing is repeated after the state.
    (_P.REPEATING, _PE.COMES_BACK): _P.RUNNING,
    (_P.REPEATING, _PE.IS_GIVEN_UP): _P.GIVEN_UP,
    (_P.REPEATING, _PE.EXITS): _P.EXITED,
    (_P.RUNNING, _PE.OPENS): _P.RUNNING,
    (_P.RUNNING, _PE.IS_GIVEN_UP): _P.GIVEN_UP,
    (_P.RUNNING, _PE.EXITS): _P.EXITED,
    # It is over the hard memory limit while the grace of its end runs.
    (_P.GIVEN_UP, _PE.IS_GIVEN_UP): _P.GIVEN_UP,
    (_P.GIVEN_UP, _PE.EXITS): _P.EXITED,
    (_P.EXITED, _PE.IS_SUCCEEDED): _P.RUNNING,
    (_P.EXITED, _PE.IS_CLEANED_UP): _P.CLEANED_UP,
}

_S, _E = WorkerStatus, WorkerEvent

REPEATED: Final[dict[tuple[WorkerStatus, WorkerEvent], WorkerStatus]] = {
    (_S.SPARE, _E.WAITS): _S.SPARE,
    (_S.AVAILABLE, _E.WAITS): _S.AVAILABLE,
    # The other master had heard of its drain or failure, but the disk had no room to write that down.
    (_S.STARTING, _E.STOPS): _S.STOPPED,
    (_S.SPARE, _E.STOPS): _S.STOPPED,
    (_S.AVAILABLE, _E.STOPS): _S.STOPPED,
}
"""More transitions, only for a worker that reconnects to another master and repeats what it had said before."""

REPORTS: Final = {
    "spare": _E.WAITS,
    "available": _E.SERVES,
    "draining": _E.DRAINS,
    "stopped": _E.STOPS,
    "failed": _E.FAILS,
}
"""What a worker reports, also as its state, and the event that leads to that."""


class Purpose(IntEnum):
    """What the master wants of a worker. It only rises."""

    SPARE = auto()  # to wait until another one is used up; not counted as capacity, even if a selection lets it serve
    SERVE = auto()
    # To end once its sessions have ended, within the time of a planned drain. A worker whose death has been counted has
    # at least this purpose, so that the death is counted once.
    RECYCLE = auto()
    END = auto()  # to end within the time that sessions have when the grid stops
    END_FOR_OPERATOR = auto()  # the same; a second one means END_NOW
    END_NOW = auto()


class Action(StrEnum):
    """What the master has to do about a worker, beside keeping to `ready_by` and `drain_by`. The arguments are in the
    worker's record. Some have the name of a command to the proxy."""

    COUNT_DEATH = auto()  # its pool backs off
    SEND_SERVE = auto()
    SEND_DRAIN = auto()
    END_PROCESS = auto()
    KILL_PROCESS = auto()
    CUT_LINK = auto()
    FORK_SUCCESSOR = auto()
    CLEAN_UP = auto()
    LEAVE_DRAIN = "leave_drain"  # the proxy leaves the drain command in Redis, since the worker's link may be down
    TELL_TAKEN_OVER = "worker_taken_over"  # the proxy chooses it no more: a successor stays until its sessions end
    TELL_LOST = "worker_lost"  # the proxy hears that it and its sessions have ended unannounced
    TELL_GONE = "worker_gone"  # the proxy hears that it has ended as it should


@dataclass(slots=True)
class WorkerLife:
    """One worker, from its fork until nothing of it is left.

    `successors`: how many processes have taken over its browser server after a process died. `has_failed`: it has said
    why it cannot start. `reason`: why it ends, or the newer reason why its sessions have to end by `sessions_until`.
    `ready_by`: when it has to be warm, or to serve if it was told to. `sessions_until`: how long the sessions of a
    drain may go on; `drain_by`: when its process is killed. Both apply to its successor, too.
    `has_profiles`: there may be profiles to save at its end.
    """

    purpose: Purpose
    status: WorkerStatus = WorkerStatus.STARTING
    phase: Phase = Phase.RUNNING
    successors: int = 0
    has_failed: bool = False
    reason: Reason[WorkerEnd] | None = None
    ready_by: float = math.inf
    sessions_until: float = math.inf
    drain_by: float = math.inf
    has_profiles: bool = False

    @classmethod
    def forked(cls, purpose: Purpose, now: float, settings: Settings) -> WorkerLife:
        """A worker that this master forks."""
        return cls(purpose, ready_by=now + settings.launch_timeout + LAUNCH_GRACE_S)

    @classmethod
    def adopted(
        cls, written: str, purpose: Purpose, now: float, settings: Settings, sessions_until: float | None
    ) -> WorkerLife:
        """A worker that another master forked; its file says that its status was `written`, and what that master wanted
        of it. One that was draining goes on with that, until the file's `sessions_until`."""
        if written in BEFORE_A_DRAIN:
            # It has profiles until it says otherwise.
            life = cls(min(purpose, Purpose.SERVE), WorkerStatus(written), Phase.AWAITED, has_profiles=True)
            if life.status is WorkerStatus.STARTING:
                life.ready_by = now + settings.launch_timeout + LAUNCH_GRACE_S
        else:
            life = cls(max(purpose, Purpose.RECYCLE), WorkerStatus.DRAINING, Phase.AWAITED, has_profiles=True)
            life._limit_drain(now + DrainTime.RECYCLE.seconds(settings) if sessions_until is None else sessions_until)
        return life

    @property
    def is_capacity(self) -> bool:
        """Whether it serves, or will serve."""
        return self.status in BEFORE_A_DRAIN

    @property
    def drain_time(self) -> DrainTime:
        """What bounds how long the sessions of its drain may go on."""
        if self.purpose is Purpose.END_NOW:
            return DrainTime.NOW
        return DrainTime.END if self.purpose > Purpose.RECYCLE else DrainTime.RECYCLE

    @property
    def has_process(self) -> bool:
        return self.phase not in (Phase.EXITED, Phase.CLEANED_UP)

    def lingers(self, now: float, settings: Settings) -> bool:
        """Whether it may stay for long: its sessions have more time than those of an unplanned drain."""
        return self.status is WorkerStatus.DRAINING and now + settings.drain_timeout < self.sessions_until < math.inf

    # What the worker says

    def opens(self) -> None:
        self._advance_phase(PhaseEvent.OPENS)

    def says(
        self,
        event: WorkerEvent,
        reason: Reason[WorkerEnd],
        now: float,
        settings: Settings,
        drain_s: float | None = None,
    ) -> list[Action]:
        """The worker reports `event`; `reason` is why it drains or failed, `drain_s` how long its sessions may go on
        (None: it does not say)."""
        was = self.status
        self._advance_status(event)
        if self.status is was:
            return []
        self.ready_by = math.inf
        match self.status:
            case WorkerStatus.SPARE if self.purpose is Purpose.SERVE:
                self.ready_by = now + SERVE_GRACE_S
            case WorkerStatus.DRAINING:
                self.reason = self.reason or reason
                self._limit_drain(now + (DrainTime.RECYCLE.seconds(settings) if drain_s is None else drain_s))
            case WorkerStatus.STOPPED if event is WorkerEvent.FAILS:
                self.reason, self.has_failed = reason, not self.successors
                self.drain_by = min(self.drain_by, now + DRAIN_GRACE_S)
                return self._dies()
        return []

    def comes_back(self, told: object, now: float, settings: Settings) -> list[Action]:
        """A worker that another master forked reports its status for the first time. That status counts. What the other
        master asked of it is asked again, since the worker may not have heard it."""
        event = REPORTS.get(str(told))
        todo = self.says(event, ASKED, now, settings) if event else []
        self._advance_phase(PhaseEvent.COMES_BACK)
        if self.status is WorkerStatus.DRAINING and told is not None:
            # Also if it drains already: it may not have heard that its sessions have less time by now.
            self.reason = self.reason or ASKED
            todo.append(Action.SEND_DRAIN)
        elif self.status in (WorkerStatus.STARTING, WorkerStatus.SPARE) and self.purpose is Purpose.SERVE:
            todo += self.serve(now)
        return todo

    # What is asked of the worker

    def serve(self, now: float) -> list[Action]:
        """The plan lets a spare serve, at once or as soon as it is warm, and counts it as a wanted worker."""
        self.purpose = max(self.purpose, Purpose.SERVE)
        if self.status is WorkerStatus.SPARE:
            self.ready_by = now + SERVE_GRACE_S
        return [Action.SEND_SERVE]

    def serves_in_place(self, now: float) -> list[Action]:
        """The selection that used another worker up has let this spare serve: it is available in Redis already."""
        if self.purpose is not Purpose.SPARE or not self.is_capacity:
            return []
        todo = self.serve(now)
        if self.status is WorkerStatus.SPARE:
            self._advance_status(WorkerEvent.SERVES)
            self.ready_by = math.inf
        return todo

    def drain(self, wanted: Purpose, reason: Reason[WorkerEnd], now: float, settings: Settings) -> list[Action]:
        """The worker has to end. One that drains already is told again only when its sessions get less time."""
        if not self.has_process or self.status in (WorkerStatus.STOPPED, WorkerStatus.LOST):
            return []
        was = self.purpose
        is_second = was is wanted is Purpose.END_FOR_OPERATOR
        self.purpose = Purpose.END_NOW if is_second else max(was, wanted)
        until, is_now = now + self.drain_time.seconds(settings), self.purpose is Purpose.END_NOW
        if self.status is not WorkerStatus.DRAINING:
            self.reason = self.reason or reason
        elif until < self.sessions_until:
            self.reason = reason
        elif not is_now or was is Purpose.END_NOW:
            return []
        self._advance_status(WorkerEvent.DRAINS)
        self.ready_by = math.inf
        self._limit_drain(until, DRAIN_NOW_S if is_now else DRAIN_GRACE_S)
        # A recycle waits until the link is up again: the drain command in Redis would leave sessions less time.
        leave = [] if self.purpose is Purpose.RECYCLE else [Action.LEAVE_DRAIN]
        return [Action.SEND_DRAIN, *leave]

    def kill(self) -> list[Action]:
        """Its process and its tree are killed at once."""
        self.purpose = Purpose.END_NOW
        return [Action.KILL_PROCESS] if self.has_process else []

    # How the worker ends

    def may_be_taken_over(self, now: float) -> bool:
        """Whether a successor may take over if its process has died and its browser server lives.

        A successor gets no successor: if it dies, too, its browser server is ended with its tree.
        """
        return (
            not self.successors
            and self.purpose is not Purpose.END_NOW
            and self.status in (WorkerStatus.AVAILABLE, WorkerStatus.DRAINING)
            and now < self.drain_by
        )

    def falls_silent(self, reason: Reason[WorkerEnd], *, taken_over: bool) -> list[Action]:
        """It is silent or late: from now on it is no capacity, and what it says is ignored. `taken_over`: a successor
        gets its browser server, which lives."""
        self._advance_phase(PhaseEvent.IS_GIVEN_UP)
        if taken_over:
            # Killed at once: one that woke now would end leases, and cut sessions, that are its successor's.
            return [Action.CUT_LINK, *self._gets_taken_over(reason), Action.KILL_PROCESS]
        return [Action.CUT_LINK, *self._gets_lost(reason), Action.END_PROCESS]

    def takes_too_much_memory(self, reason: Reason[WorkerEnd]) -> list[Action]:
        """It takes more memory than any worker may."""
        self._advance_phase(PhaseEvent.IS_GIVEN_UP)
        return [Action.CUT_LINK, *self._gets_lost(reason), Action.KILL_PROCESS]

    def exits(self, reason: Reason[WorkerEnd], *, is_clean: bool, taken_over: bool) -> list[Action]:
        """Its process has ended; `is_clean`: by itself and without a fault. `taken_over`: as in `falls_silent`."""
        was_given_up = self.phase is Phase.GIVEN_UP
        self._advance_phase(PhaseEvent.EXITS)
        self.ready_by = math.inf
        if was_given_up and self.status is not WorkerStatus.DRAINING:
            return [Action.CLEAN_UP]  # the proxy knows
        if self.has_failed or (is_clean and self.status in (WorkerStatus.DRAINING, WorkerStatus.STOPPED)):
            self._advance_status(WorkerEvent.STOPS)
            return [Action.CUT_LINK, Action.TELL_GONE, Action.CLEAN_UP]
        if taken_over:
            news = [] if was_given_up else self._gets_taken_over(reason)
            return [Action.CUT_LINK, *news, Action.FORK_SUCCESSOR]
        return [Action.CUT_LINK, *self._gets_lost(reason), Action.CLEAN_UP]

    def gets_successor(self, now: float, settings: Settings) -> None:
        """Another process has taken its place: it stays until the sessions have ended."""
        self._advance_phase(PhaseEvent.IS_SUCCEEDED)
        self.successors += 1
        self.purpose = max(self.purpose, Purpose.RECYCLE)
        self._limit_drain(now + self.drain_time.seconds(settings))

    def gets_no_successor(self) -> list[Action]:
        """No successor could be forked: no process or descriptor was free."""
        return [
            *self._gets_lost(self.reason or NO_SUCCESSOR),
            Action.CLEAN_UP,
        ]

    def gets_cleaned_up(self) -> None:
        self._advance_phase(PhaseEvent.IS_CLEANED_UP)

    # What these have in common

    def _advance_phase(self, event: PhaseEvent) -> None:
        if (self.phase, event) not in PHASES:
            raise LifecycleError(f"the event that it {event} cannot happen to a worker whose process is {self.phase}")
        self.phase = PHASES[self.phase, event]

    def _advance_status(self, event: WorkerEvent) -> None:
        repeated = REPEATED.get((self.status, event)) if self.phase is Phase.REPEATING else None
        self.status = repeated or advance(self.status, event)

    def _limit_drain(self, until: float, grace_s: float = DRAIN_GRACE_S) -> None:
        self.sessions_until = min(self.sessions_until, until)
        self.drain_by = min(self.drain_by, until + grace_s + (PROFILES_S if self.has_profiles else 0.0))

    def _gets_lost(self, reason: Reason[WorkerEnd]) -> list[Action]:
        """It has ended unannounced, and its sessions with it."""
        self.reason = reason
        self._advance_status(WorkerEvent.VANISHES)
        self.ready_by = math.inf
        return [*self._dies(), Action.TELL_LOST]

    def _gets_taken_over(self, reason: Reason[WorkerEnd]) -> list[Action]:
        """Its sessions may go on, but it gets no new ones, and its replacement starts."""
        death: list[Action] = []
        if self.status is WorkerStatus.AVAILABLE:
            self.reason = reason
            death = self._dies()
        self._advance_status(WorkerEvent.DRAINS)
        return [*death, Action.TELL_TAKEN_OVER]

    def _dies(self) -> list[Action]:
        """Count a death, once, unless the worker's end was wanted."""
        was, self.purpose = self.purpose, max(self.purpose, Purpose.RECYCLE)
        return [Action.COUNT_DEATH] if was < Purpose.RECYCLE else []
