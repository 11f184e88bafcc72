"""What becomes of a worker, decided in one place: its states are tables, and each method says what is to be done.

A worker is four things at once: where its service is (`status`, in pwgrid/common/worker_lifecycle.py), which process it
has, how far the master is in contact with that, and what the master wants of it. Only `_step` and `_see` change them.
The methods are what can happen; each returns what the master has to do about it, and does nothing itself. Times are
monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, Literal, TypeVar

from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, TRANSITIONS, LifecycleError, WorkerEvent, WorkerStatus

LAUNCH_GRACE_S: Final = 15.0
"""What a worker has beyond LAUNCH_TIMEOUT to get warm."""

SERVE_GRACE_S: Final = 15.0
"""For a warm worker to register. Only a Redis that is away can take so long, and then it serves without."""

DRAIN_GRACE_S: Final = 20.0
"""What a worker has beyond its drain deadline to close sessions and its browser."""

DRAIN_NOW_S: Final = 5.0
TERM_GRACE_S: Final = 3.0


class Process(StrEnum):
    """Which process the worker has."""

    FIRST = "first"
    SUCCESSOR = "successor"  # it took over the browser server of the first one, which died, and sees its sessions out
    GONE = "gone"  # processes below it may be left
    CLEANED_UP = "cleaned up"


class Contact(StrEnum):
    """How far the master is in contact with the process."""

    AWAITED = "awaited"  # another master forked it; it has not come back to this one yet
    REPEATING = "repeating"  # it is back, and may say again what the other master had heard
    KEPT = "kept"
    CUT = "cut"  # it is not heard any more: it was given up, or has ended


class Purpose(StrEnum):
    """What the master wants of the worker."""

    SERVE = "serve"
    SPARE = "spare"  # to wait until another one is used up; nobody counts on it, even if a selection let it serve
    END = "end"
    END_FOR_OPERATOR = "end for operator"
    END_NOW = "end now"


class ProcessEvent(StrEnum):
    """What can happen to the process."""

    EXITS = "exits"
    IS_SUCCEEDED = "is succeeded"
    IS_CLEANED_UP = "is cleaned up"


class ContactEvent(StrEnum):
    """What can happen to the contact."""

    OPENS = "opens"
    TELLS_STATE = "tells its state"
    IS_CUT = "is cut"
    IS_SUCCEEDED = "is succeeded"


class PurposeEvent(StrEnum):
    """What changes the purpose."""

    SERVE_ASKED = "serve asked"
    END_ASKED = "end asked"
    OPERATOR_ASKED = "operator asked"
    NOW_ASKED = "now asked"
    DIES = "dies"  # no second death of it is counted


_P, _PE = Process, ProcessEvent
PROCESS: Final[dict[tuple[Process, ProcessEvent], Process]] = {
    (_P.FIRST, _PE.EXITS): _P.GONE,
    # A successor has none: a browser server that has cost two workers their lives is ended with its tree.
    (_P.FIRST, _PE.IS_SUCCEEDED): _P.SUCCESSOR,
    (_P.SUCCESSOR, _PE.EXITS): _P.GONE,
    (_P.GONE, _PE.IS_CLEANED_UP): _P.CLEANED_UP,
}

_C, _CE = Contact, ContactEvent
CONTACT: Final[dict[tuple[Contact, ContactEvent], Contact]] = {
    (_C.AWAITED, _CE.OPENS): _C.REPEATING,
    (_C.AWAITED, _CE.IS_CUT): _C.CUT,
    (_C.REPEATING, _CE.OPENS): _C.REPEATING,
    # A link carries what happened before the state, so nothing that is repeated comes after it.
    (_C.REPEATING, _CE.TELLS_STATE): _C.KEPT,
    (_C.REPEATING, _CE.IS_CUT): _C.CUT,
    (_C.KEPT, _CE.OPENS): _C.KEPT,
    (_C.KEPT, _CE.TELLS_STATE): _C.KEPT,
    (_C.KEPT, _CE.IS_CUT): _C.CUT,
    (_C.CUT, _CE.IS_CUT): _C.CUT,
    (_C.CUT, _CE.IS_SUCCEEDED): _C.KEPT,
}

_W, _WE = Purpose, PurposeEvent
PURPOSE: Final[dict[tuple[Purpose, PurposeEvent], Purpose]] = {
    (_W.SERVE, _WE.END_ASKED): _W.END,
    (_W.SERVE, _WE.OPERATOR_ASKED): _W.END_FOR_OPERATOR,
    (_W.SERVE, _WE.NOW_ASKED): _W.END_NOW,
    (_W.SERVE, _WE.DIES): _W.END,
    (_W.SPARE, _WE.SERVE_ASKED): _W.SERVE,
    (_W.SPARE, _WE.END_ASKED): _W.END,
    (_W.SPARE, _WE.OPERATOR_ASKED): _W.END_FOR_OPERATOR,
    (_W.SPARE, _WE.NOW_ASKED): _W.END_NOW,
    (_W.SPARE, _WE.DIES): _W.END,
    (_W.END, _WE.END_ASKED): _W.END,
    (_W.END, _WE.OPERATOR_ASKED): _W.END_FOR_OPERATOR,
    (_W.END, _WE.NOW_ASKED): _W.END_NOW,
    (_W.END, _WE.DIES): _W.END,
    (_W.END_FOR_OPERATOR, _WE.END_ASKED): _W.END_FOR_OPERATOR,
    # Who asks a second time does not want to wait.
    (_W.END_FOR_OPERATOR, _WE.OPERATOR_ASKED): _W.END_NOW,
    (_W.END_FOR_OPERATOR, _WE.NOW_ASKED): _W.END_NOW,
    (_W.END_FOR_OPERATOR, _WE.DIES): _W.END_FOR_OPERATOR,
    (_W.END_NOW, _WE.END_ASKED): _W.END_NOW,
    (_W.END_NOW, _WE.OPERATOR_ASKED): _W.END_NOW,
    (_W.END_NOW, _WE.NOW_ASKED): _W.END_NOW,
    (_W.END_NOW, _WE.DIES): _W.END_NOW,
}

_S, _E = WorkerStatus, WorkerEvent
REPEATED: Final[dict[tuple[WorkerStatus, WorkerEvent], WorkerStatus]] = {
    (_S.SPARE, _E.WAITS): _S.SPARE,
    (_S.AVAILABLE, _E.WAITS): _S.AVAILABLE,
    # The other master had heard of its drain or failure, and there was no room on the disk to write it down.
    (_S.STARTING, _E.STOPS): _S.STOPPED,
    (_S.SPARE, _E.STOPS): _S.STOPPED,
    (_S.AVAILABLE, _E.STOPS): _S.STOPPED,
}
"""What only a worker says that comes back to another master, beside what any worker may say."""

_LEADS_TO: Final[dict[str, WorkerEvent]] = {
    "spare": _E.WAITS,
    "available": _E.SERVES,
    "draining": _E.DRAINS,
    "stopped": _E.STOPS,
}


class Do(Enum):
    """What the master has to do; what it takes for that is in the record of the worker."""

    COUNT_DEATH = auto()  # its pool backs off
    SEND_SERVE = auto()
    SEND_DRAIN = auto()
    CUT_LINK = auto()
    CLEAN_UP = auto()


@dataclass(frozen=True, slots=True)
class TellProxy:
    """A command for the proxy: it leaves the drain in Redis, too (the worker's link may be down); it has to choose the
    worker no more; the worker has ended as it should."""

    command: Literal["leave_drain", "worker_taken_over", "worker_gone"]


@dataclass(frozen=True, slots=True)
class TellLost:
    """The proxy hears that the worker and its sessions have ended without a word. `was`: its status until now."""

    was: WorkerStatus


@dataclass(frozen=True, slots=True)
class EndProcess:
    """SIGTERM and SIGKILL at these times, unless it has ended before; earlier times win."""

    kill_at: float
    term_at: float = math.inf


@dataclass(frozen=True, slots=True)
class ForkSuccessor:
    """If there is none to be had, the worker is lost for `reason`."""

    reason: str


Action = Do | TellProxy | TellLost | EndProcess | ForkSuccessor


@dataclass(frozen=True, slots=True)
class Times:
    """What the settings allow, in seconds: for a browser to launch, and for the sessions of a drain to end."""

    launch_s: float
    drain_s: float


@dataclass(slots=True)
class WorkerLife:
    """One worker, from its fork until nothing of it is left.

    `reason`: why it ends. `ready_by`: when it has to be warm, or to serve if it was told to. `sessions_until`: how long
    the sessions of a drain may go on; `drain_by`: when its process is ended, whatever it does then. A successor gets
    what is left of these, not new ones.
    """

    purpose: Purpose
    status: WorkerStatus = WorkerStatus.STARTING
    process: Process = Process.FIRST
    contact: Contact = Contact.KEPT
    reason: str | None = None
    ready_by: float = math.inf
    sessions_until: float = math.inf
    drain_by: float = math.inf

    @classmethod
    def forked(cls, now: float, times: Times, *, spare: bool) -> WorkerLife:
        """A worker of our own."""
        purpose = Purpose.SPARE if spare else Purpose.SERVE
        return cls(purpose, ready_by=now + times.launch_s + LAUNCH_GRACE_S)

    @classmethod
    def adopted(cls, written: str, purpose: Purpose, process: Process, now: float, times: Times) -> WorkerLife:
        """A worker of another master, which wrote down that its status was `written`. One that was on its way out still
        is."""
        if written not in BEFORE_A_DRAIN:
            life = cls(Purpose.END, WorkerStatus.DRAINING, process, Contact.AWAITED)
            life._limit_drain(now, times.drain_s)
            return life
        life = cls(purpose, WorkerStatus(written), process, Contact.AWAITED)
        if life.status is WorkerStatus.STARTING:
            life.ready_by = now + times.launch_s + LAUNCH_GRACE_S
        return life

    @property
    def is_capacity(self) -> bool:
        """Whether it serves, or will."""
        return self.status in BEFORE_A_DRAIN

    @property
    def has_process(self) -> bool:
        """Whether a process of it runs."""
        return self.process in (Process.FIRST, Process.SUCCESSOR)

    # What it says

    def opens(self) -> None:
        """It has greeted us, for the first time or again."""
        self._contact(ContactEvent.OPENS)

    def says(self, event: WorkerEvent, reason: str, now: float, times: Times) -> list[Action]:
        """It says what it does now; `reason` is why it drains or has failed."""
        was = self.status
        self._see(event)
        if self.status is was:
            return []
        self.ready_by = math.inf
        match self.status:
            case WorkerStatus.SPARE if self.purpose is Purpose.SERVE:
                self.ready_by = now + SERVE_GRACE_S
            case WorkerStatus.DRAINING:
                self.reason = self.reason or reason
                return self._limit_drain(now, times.drain_s)
            case WorkerStatus.STOPPED if event is WorkerEvent.FAILS:
                self.reason = reason
                self.drain_by = min(self.drain_by, now + DRAIN_GRACE_S)
                return [*self._dies(), EndProcess(self.drain_by)]
        return []

    def tells_state(self, told: object, now: float, times: Times) -> list[Action]:
        """It tells its status. That is news only from one that comes back: then it says where it is, and what the other
        master asked of it without its hearing is asked again."""
        if self.contact is not Contact.REPEATING:
            return []
        actions: list[Action] = []
        if (event := _LEADS_TO.get(str(told))) is not None:
            actions = self.says(event, "asked", now, times)
        self._contact(ContactEvent.TELLS_STATE)
        if self.status is WorkerStatus.DRAINING and told in BEFORE_A_DRAIN:
            self.reason = self.reason or "asked"
            actions.append(Do.SEND_DRAIN)
        elif self.status is WorkerStatus.SPARE and self.purpose is Purpose.SERVE:
            self.ready_by = now + SERVE_GRACE_S
            actions.append(Do.SEND_SERVE)
        return actions

    # What is asked of it

    def serve(self, now: float) -> list[Action]:
        """The plan lets a spare serve, at once or as soon as it is warm, and counts on it."""
        self.purpose = _step(PURPOSE, self.purpose, PurposeEvent.SERVE_ASKED)
        if self.status is WorkerStatus.SPARE:
            self.ready_by = now + SERVE_GRACE_S
        return [Do.SEND_SERVE]

    def serves_in_place(self, now: float) -> list[Action]:
        """The selection that used another worker up has let this one serve: it is available in Redis already."""
        if self.purpose is not Purpose.SPARE or not self.is_capacity:
            return []
        actions = self.serve(now)
        if self.status is WorkerStatus.SPARE:
            self._see(WorkerEvent.SERVES)
            self.ready_by = math.inf
        return actions

    def drain(self, by: PurposeEvent, reason: str, now: float, times: Times) -> list[Action]:
        """Somebody wants its end. One that drains already is told again only when it is to end now."""
        if not self.has_process or self.status in (WorkerStatus.STOPPED, WorkerStatus.LOST):
            return []
        was, self.purpose = self.purpose, _step(PURPOSE, self.purpose, by)
        is_now = self.purpose is Purpose.END_NOW
        if self.status is WorkerStatus.DRAINING and (not is_now or was is Purpose.END_NOW):
            return []
        self._see(WorkerEvent.DRAINS)
        self.ready_by = math.inf
        self.reason = self.reason or reason
        limit = self._limit_drain(now, 0.0, DRAIN_NOW_S) if is_now else self._limit_drain(now, times.drain_s)
        return [*limit, Do.SEND_DRAIN, TellProxy("leave_drain")]

    def kill(self, now: float) -> list[Action]:
        """The last resort: its process and its tree end at once."""
        self.purpose = _step(PURPOSE, self.purpose, PurposeEvent.NOW_ASKED)
        return [EndProcess(now)] if self.has_process else []

    # How it ends

    def may_be_taken_over(self, now: float) -> bool:
        """Whether a successor is wanted, should its process have died and its browser server live."""
        return (
            self.process is Process.FIRST
            and self.purpose is not Purpose.END_NOW
            and self.status in (WorkerStatus.AVAILABLE, WorkerStatus.DRAINING)
            and now < self.drain_by
        )

    def give_up(
        self, reason: str, now: float, *, taken_over: bool = False, grace_s: float = TERM_GRACE_S
    ) -> list[Action]:
        """It is silent, late, or too large: it is no capacity from now on, is not heard any more, and its process is
        ended. `taken_over`: its browser server lives, and gets a successor then."""
        self._contact(ContactEvent.IS_CUT)
        news = self._is_taken_over(reason) if taken_over else self._is_lost(reason)
        return [Do.CUT_LINK, *news, EndProcess(now + grace_s, now)]

    def exits(self, reason: str, *, is_clean: bool, taken_over: bool = False) -> list[Action]:
        """Its process has ended; `is_clean`: by itself, and all was well."""
        was_given_up = self.contact is Contact.CUT
        self._contact(ContactEvent.IS_CUT)
        self.ready_by = math.inf
        if was_given_up and self.status is not WorkerStatus.DRAINING:
            return self._is_gone([])  # the proxy knows
        if is_clean and self.status in (WorkerStatus.DRAINING, WorkerStatus.STOPPED):
            self._see(WorkerEvent.STOPS)
            return self._is_gone([TellProxy("worker_gone")])
        if taken_over:
            news = [] if was_given_up else self._is_taken_over(reason)
            return [Do.CUT_LINK, *news, ForkSuccessor(reason)]
        return self._is_gone(self._is_lost(reason))

    def is_succeeded(self, now: float, times: Times) -> list[Action]:
        """Another process has taken its place: it sees the sessions to their end, and goes."""
        self.process = _step(PROCESS, self.process, ProcessEvent.IS_SUCCEEDED)
        self._contact(ContactEvent.IS_SUCCEEDED)
        self.purpose = _step(PURPOSE, self.purpose, PurposeEvent.END_ASKED)
        return self._limit_drain(now, times.drain_s)

    def is_not_succeeded(self, reason: str) -> list[Action]:
        """There is no process or descriptor to be had for a successor."""
        return self._is_gone(self._is_lost(reason))

    def is_cleaned_up(self) -> None:
        """Nothing of it is left."""
        self.process = _step(PROCESS, self.process, ProcessEvent.IS_CLEANED_UP)

    # What these have in common

    def _see(self, event: WorkerEvent) -> None:
        is_repeated = self.contact is Contact.REPEATING and (self.status, event) in REPEATED
        self.status = _step(REPEATED if is_repeated else TRANSITIONS, self.status, event)

    def _contact(self, event: ContactEvent) -> None:
        self.contact = _step(CONTACT, self.contact, event)

    def _limit_drain(self, now: float, sessions_s: float, grace_s: float = DRAIN_GRACE_S) -> list[Action]:
        self.sessions_until = min(self.sessions_until, now + sessions_s)
        self.drain_by = min(self.drain_by, now + sessions_s + grace_s)
        return [EndProcess(self.drain_by)]

    def _is_lost(self, reason: str) -> list[Action]:
        """It has ended without a word, and its sessions with it."""
        was, self.reason = self.status, reason
        self._see(WorkerEvent.VANISHES)
        self.ready_by = math.inf
        return [*self._dies(), TellLost(was)]

    def _is_taken_over(self, reason: str) -> list[Action]:
        """Its sessions may go on, but it gets no new ones, and its replacement starts."""
        death: list[Action] = []
        if self.status is WorkerStatus.AVAILABLE:
            self.reason = reason
            death = self._dies()
        self._see(WorkerEvent.DRAINS)
        return [*death, TellProxy("worker_taken_over")]

    def _dies(self) -> list[Action]:
        """A death that nobody wanted is counted, once."""
        was, self.purpose = self.purpose, _step(PURPOSE, self.purpose, PurposeEvent.DIES)
        return [] if was is self.purpose else [Do.COUNT_DEATH]

    def _is_gone(self, news: list[Action]) -> list[Action]:
        self.process = _step(PROCESS, self.process, ProcessEvent.EXITS)
        return [Do.CUT_LINK, *news, Do.CLEAN_UP]


State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


def _step(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise LifecycleError(f"a worker that is {state} cannot see {event}") from None
