"""What becomes of a worker: its tables walked literally, single decisions, and lives in any order that can happen."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, TRANSITIONS, LifecycleError, WorkerEvent, WorkerStatus
from pwgrid.master.policy.worker_life import (
    CONTACT,
    DRAIN_GRACE_S,
    DRAIN_NOW_S,
    LAUNCH_GRACE_S,
    PROCESS,
    PURPOSE,
    REPEATED,
    SERVE_GRACE_S,
    TERM_GRACE_S,
    Action,
    Contact,
    ContactEvent,
    Do,
    EndProcess,
    ForkSuccessor,
    Process,
    ProcessEvent,
    Purpose,
    PurposeEvent,
    TellLost,
    TellProxy,
    Times,
    WorkerLife,
)

S, E, P, C, W = WorkerStatus, WorkerEvent, Process, Contact, Purpose
PE, CE, WE = ProcessEvent, ContactEvent, PurposeEvent
TIMES = Times(launch_s=30.0, drain_s=100.0)
NOW = 1000.0

Walk = list[tuple[StrEnum, StrEnum]]

PROCESS_WALKS: dict[str, Walk] = {
    "ends": [(PE.EXITS, P.GONE), (PE.IS_CLEANED_UP, P.CLEANED_UP)],
    "dies and is succeeded": [(PE.IS_SUCCEEDED, P.SUCCESSOR), (PE.EXITS, P.GONE), (PE.IS_CLEANED_UP, P.CLEANED_UP)],
}
CONTACT_WALKS: dict[str, Walk] = {
    "forked by us": [(CE.OPENS, C.KEPT), (CE.TELLS_STATE, C.KEPT), (CE.OPENS, C.KEPT), (CE.IS_CUT, C.CUT)],
    "given up, then it ends": [(CE.IS_CUT, C.CUT), (CE.IS_CUT, C.CUT)],
    "succeeded": [(CE.IS_CUT, C.CUT), (CE.IS_SUCCEEDED, C.KEPT), (CE.OPENS, C.KEPT)],
}
ADOPTED_WALKS: dict[str, Walk] = {
    "comes back": [(CE.OPENS, C.REPEATING), (CE.TELLS_STATE, C.KEPT), (CE.IS_CUT, C.CUT)],
    "is cut off while it comes back": [(CE.OPENS, C.REPEATING), (CE.OPENS, C.REPEATING), (CE.TELLS_STATE, C.KEPT)],
    "ends while it comes back": [(CE.OPENS, C.REPEATING), (CE.IS_CUT, C.CUT)],
    "does not come back": [(CE.IS_CUT, C.CUT)],
}
SERVE_WALKS: dict[str, Walk] = {
    "planned": [(WE.END_ASKED, W.END), (WE.END_ASKED, W.END), (WE.DIES, W.END), (WE.NOW_ASKED, W.END_NOW)],
    "an operator, twice": [
        (WE.OPERATOR_ASKED, W.END_FOR_OPERATOR),
        (WE.END_ASKED, W.END_FOR_OPERATOR),
        (WE.DIES, W.END_FOR_OPERATOR),
        (WE.OPERATOR_ASKED, W.END_NOW),
        (WE.OPERATOR_ASKED, W.END_NOW),
    ],
    "planned, then an operator": [
        (WE.END_ASKED, W.END),
        (WE.OPERATOR_ASKED, W.END_FOR_OPERATOR),
        (WE.NOW_ASKED, W.END_NOW),
    ],
    "at once": [(WE.NOW_ASKED, W.END_NOW), (WE.END_ASKED, W.END_NOW), (WE.NOW_ASKED, W.END_NOW), (WE.DIES, W.END_NOW)],
    "dies": [(WE.DIES, W.END)],
}
SPARE_WALKS: dict[str, Walk] = {
    "serves": [(WE.SERVE_ASKED, W.SERVE)],
    "is not needed": [(WE.END_ASKED, W.END)],
    "an operator": [(WE.OPERATOR_ASKED, W.END_FOR_OPERATOR)],
    "at once": [(WE.NOW_ASKED, W.END_NOW)],
    "dies": [(WE.DIES, W.END)],
}
TABLES: list[tuple[Any, list[tuple[StrEnum, dict[str, Walk]]]]] = [
    (PROCESS, [(P.FIRST, PROCESS_WALKS)]),
    (CONTACT, [(C.KEPT, CONTACT_WALKS), (C.AWAITED, ADOPTED_WALKS)]),
    (PURPOSE, [(W.SERVE, SERVE_WALKS), (W.SPARE, SPARE_WALKS)]),
]


@pytest.mark.parametrize(("table", "starts"), TABLES)
def test_the_tables_say_just_what_is_walked_here(table: Any, starts: list[tuple[StrEnum, dict[str, Walk]]]) -> None:
    walked = set()
    for first, walks in starts:
        for name, walk in walks.items():
            state = first
            for event, following in walk:
                assert table[state, event] is following, name
                walked.add((state, event))
                state = following
    assert walked == set(table)


def test_what_is_repeated_is_in_a_table_of_its_own() -> None:
    assert REPEATED == {
        (S.SPARE, E.WAITS): S.SPARE,
        (S.AVAILABLE, E.WAITS): S.AVAILABLE,
        (S.STARTING, E.STOPS): S.STOPPED,
        (S.SPARE, E.STOPS): S.STOPPED,
        (S.AVAILABLE, E.STOPS): S.STOPPED,
    }
    assert not REPEATED.keys() & TRANSITIONS.keys()


def life(status: WorkerStatus, purpose: Purpose = W.SERVE, **fields: Any) -> WorkerLife:
    return WorkerLife(purpose, status, **fields)


@pytest.mark.parametrize("status", [S.SPARE, S.AVAILABLE])
def test_only_one_that_comes_back_may_repeat_itself(status: WorkerStatus) -> None:
    with pytest.raises(LifecycleError):
        life(status).says(E.WAITS, "", NOW, TIMES)
    back = life(status, contact=C.REPEATING)
    back.says(E.WAITS, "", NOW, TIMES)
    assert back.status is status


# A worker of our own


def test_a_start_has_a_deadline_until_the_worker_is_warm() -> None:
    worker = WorkerLife.forked(NOW, TIMES, spare=False)
    assert worker.ready_by == NOW + 30.0 + LAUNCH_GRACE_S
    assert worker.says(E.SERVES, "", NOW + 1, TIMES) == []
    assert (worker.status, worker.ready_by) == (S.AVAILABLE, math.inf)


def test_a_spare_waits_for_as_long_as_nobody_needs_it_and_has_a_deadline_once_it_is_to_serve() -> None:
    worker = WorkerLife.forked(NOW, TIMES, spare=True)
    worker.says(E.WAITS, "", NOW + 1, TIMES)
    assert (worker.status, worker.ready_by) == (S.SPARE, math.inf)
    assert worker.serve(NOW + 2) == [Do.SEND_SERVE]
    assert (worker.purpose, worker.ready_by) == (W.SERVE, NOW + 2 + SERVE_GRACE_S)
    worker.says(E.SERVES, "", NOW + 3, TIMES)
    assert (worker.status, worker.ready_by) == (S.AVAILABLE, math.inf)


def test_one_that_was_told_to_serve_while_it_started_has_a_deadline_to_register() -> None:
    worker = WorkerLife.forked(NOW, TIMES, spare=True)
    worker.serve(NOW + 1)
    assert worker.ready_by == NOW + 30.0 + LAUNCH_GRACE_S
    worker.says(E.WAITS, "", NOW + 2, TIMES)
    assert worker.ready_by == NOW + 2 + SERVE_GRACE_S


def test_a_spare_that_a_selection_lets_serve_is_available_before_it_says_so() -> None:
    spare = life(S.SPARE, W.SPARE)
    assert spare.serves_in_place(NOW) == [Do.SEND_SERVE]
    assert (spare.status, spare.purpose, spare.ready_by) == (S.AVAILABLE, W.SERVE, math.inf)
    assert spare.says(E.SERVES, "", NOW + 1, TIMES) == []
    assert spare.serves_in_place(NOW) == []


@pytest.mark.parametrize("worker", [life(S.AVAILABLE), life(S.DRAINING, W.END), life(S.LOST, W.SPARE)])
def test_only_a_spare_takes_the_place_of_another_one(worker: WorkerLife) -> None:
    before = worker.status
    assert worker.serves_in_place(NOW) == []
    assert worker.status is before


def test_a_drain_is_told_limited_and_left_in_redis() -> None:
    worker = life(S.AVAILABLE)
    assert worker.drain(WE.END_ASKED, "memory", NOW, TIMES) == [
        EndProcess(NOW + 100.0 + DRAIN_GRACE_S),
        Do.SEND_DRAIN,
        TellProxy("leave_drain"),
    ]
    assert (worker.status, worker.reason, worker.sessions_until) == (S.DRAINING, "memory", NOW + 100.0)
    assert worker.drain(WE.OPERATOR_ASKED, "operator", NOW + 1, TIMES) == []
    assert worker.drain(WE.OPERATOR_ASKED, "operator", NOW + 2, TIMES) == [
        EndProcess(NOW + 2 + DRAIN_NOW_S),
        Do.SEND_DRAIN,
        TellProxy("leave_drain"),
    ]
    assert (worker.purpose, worker.reason, worker.sessions_until) == (W.END_NOW, "memory", NOW + 2)
    assert worker.drain(WE.NOW_ASKED, "shutdown", NOW + 3, TIMES) == []


@pytest.mark.parametrize(
    "worker", [life(S.STOPPED), life(S.LOST, contact=C.CUT), life(S.STOPPED, process=P.GONE, contact=C.CUT)]
)
def test_one_that_has_ended_is_not_drained(worker: WorkerLife) -> None:
    assert worker.drain(WE.NOW_ASKED, "shutdown", NOW, TIMES) == []


def test_a_worker_that_drains_of_its_own_accord_has_the_same_time() -> None:
    worker = life(S.AVAILABLE)
    assert worker.says(E.DRAINS, "lifetime limit", NOW, TIMES) == [EndProcess(NOW + 100.0 + DRAIN_GRACE_S)]
    assert (worker.purpose, worker.reason) == (W.SERVE, "lifetime limit")
    worker.says(E.STOPS, "", NOW + 1, TIMES)
    assert worker.exits("", is_clean=True) == [Do.CUT_LINK, TellProxy("worker_gone"), Do.CLEAN_UP]


def test_a_drain_that_ends_with_an_error_is_a_death() -> None:
    worker = life(S.AVAILABLE)
    worker.says(E.DRAINS, "browser crashed", NOW, TIMES)
    worker.says(E.STOPS, "", NOW + 1, TIMES)
    assert worker.exits("browser crashed", is_clean=False) == [
        Do.CUT_LINK,
        Do.COUNT_DEATH,
        TellLost(S.STOPPED),
        Do.CLEAN_UP,
    ]


def test_a_failed_start_is_one_death() -> None:
    worker = WorkerLife.forked(NOW, TIMES, spare=False)
    assert worker.says(E.FAILS, "the browser is broken", NOW, TIMES) == [
        Do.COUNT_DEATH,
        EndProcess(NOW + DRAIN_GRACE_S),
    ]
    assert worker.says(E.STOPS, "", NOW, TIMES) == []
    assert worker.exits("the browser is broken", is_clean=False) == [Do.CUT_LINK, TellLost(S.STOPPED), Do.CLEAN_UP]


def test_a_worker_that_was_to_end_may_end_as_it_likes() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(WE.NOW_ASKED, "shutdown", NOW, TIMES)
    assert not worker.may_be_taken_over(NOW)
    assert worker.exits("killed", is_clean=False) == [Do.CUT_LINK, TellLost(S.DRAINING), Do.CLEAN_UP]


# Deaths


def test_a_dead_worker_whose_browser_server_lives_is_taken_over() -> None:
    worker = life(S.AVAILABLE)
    assert worker.may_be_taken_over(NOW)
    assert worker.exits("SIGKILL", is_clean=False, taken_over=True) == [
        Do.CUT_LINK,
        Do.COUNT_DEATH,
        TellProxy("worker_taken_over"),
        ForkSuccessor("SIGKILL"),
    ]
    assert worker.is_succeeded(NOW, TIMES) == [EndProcess(NOW + 100.0 + DRAIN_GRACE_S)]
    assert (worker.process, worker.status, worker.contact, worker.purpose) == (P.SUCCESSOR, S.DRAINING, C.KEPT, W.END)
    assert not worker.may_be_taken_over(NOW)
    assert worker.exits("SIGKILL", is_clean=False) == [Do.CUT_LINK, TellLost(S.DRAINING), Do.CLEAN_UP]


def test_the_death_of_a_successor_counts_for_nothing() -> None:
    worker = life(S.AVAILABLE)
    worker.says(E.DRAINS, "lifetime limit", NOW, TIMES)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    worker.is_succeeded(NOW, TIMES)
    assert Do.COUNT_DEATH not in worker.exits("SIGKILL", is_clean=False)


def test_a_successor_gets_what_is_left_of_the_drain() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(WE.END_ASKED, "memory", NOW, TIMES)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    assert worker.is_succeeded(NOW + 60, TIMES) == [EndProcess(NOW + 100.0 + DRAIN_GRACE_S)]
    assert worker.sessions_until == NOW + 100.0


def test_a_worker_that_was_killed_at_its_drain_deadline_is_not_taken_over() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(WE.END_ASKED, "memory", NOW, TIMES)
    assert worker.may_be_taken_over(worker.drain_by - 1)
    assert not worker.may_be_taken_over(worker.drain_by)


def test_where_no_successor_can_be_forked_the_worker_is_lost_and_its_death_counted_once() -> None:
    worker = life(S.AVAILABLE)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    assert worker.is_not_succeeded("SIGKILL") == [Do.CUT_LINK, TellLost(S.DRAINING), Do.CLEAN_UP]
    assert worker.status is S.LOST


def test_a_silent_worker_is_taken_over_once_its_process_has_ended() -> None:
    worker = life(S.AVAILABLE)
    assert worker.give_up("silent for 4 s", NOW, taken_over=True) == [
        Do.CUT_LINK,
        Do.COUNT_DEATH,
        TellProxy("worker_taken_over"),
        EndProcess(NOW + TERM_GRACE_S, NOW),
    ]
    assert worker.may_be_taken_over(NOW + 3)
    assert worker.exits("killed", is_clean=False, taken_over=True) == [Do.CUT_LINK, ForkSuccessor("killed")]


def test_a_silent_worker_without_a_browser_server_is_lost_at_once_and_told_once() -> None:
    worker = WorkerLife.forked(NOW, TIMES, spare=False)
    assert worker.give_up("silent for 4 s", NOW) == [
        Do.CUT_LINK,
        Do.COUNT_DEATH,
        TellLost(S.STARTING),
        EndProcess(NOW + TERM_GRACE_S, NOW),
    ]
    assert (worker.status, worker.reason, worker.ready_by) == (S.LOST, "silent for 4 s", math.inf)
    assert worker.exits("killed", is_clean=False) == [Do.CUT_LINK, Do.CLEAN_UP]


def test_a_worker_over_the_hard_memory_limit_has_no_grace() -> None:
    worker = life(S.AVAILABLE)
    assert worker.give_up("memory limit", NOW, grace_s=0.0)[-1] == EndProcess(NOW, NOW)
    assert worker.status is S.LOST


def test_one_that_has_stopped_and_does_not_end_is_told_once() -> None:
    worker = life(S.DRAINING, W.END)
    worker.says(E.STOPS, "", NOW, TIMES)
    assert TellLost(S.STOPPED) in worker.give_up("silent for 4 s", NOW)
    assert worker.exits("", is_clean=True) == [Do.CUT_LINK, Do.CLEAN_UP]


# A worker of another master


def adopted(written: str, purpose: Purpose = W.SERVE, process: Process = P.FIRST) -> WorkerLife:
    return WorkerLife.adopted(written, purpose, process, NOW, TIMES)


@pytest.mark.parametrize(
    ("was", "told", "now"),
    [
        ("starting", "starting", "starting"),
        ("starting", "available", "available"),
        ("starting", "spare", "spare"),
        ("spare", "spare", "spare"),
        ("spare", "available", "available"),
        ("available", "spare", "available"),
        ("starting", "draining", "draining"),
        ("available", "draining", "draining"),
        ("available", "starting", "available"),
        ("draining", "available", "draining"),
        ("starting", "stopped", "stopped"),
        ("draining", "stopped", "stopped"),
        ("available", None, "available"),
        ("available", ["nonsense"], "available"),
    ],
)
def test_an_adopted_worker_is_where_it_says_it_is(was: str, told: object, now: str) -> None:
    worker = adopted(was)
    worker.opens()
    worker.tells_state(told, NOW + 1, TIMES)
    assert worker.status is WorkerStatus(now)
    assert worker.contact is C.KEPT


@pytest.mark.parametrize("written", ["draining", "stopped", "lost", "", "nonsense"])
def test_one_that_was_on_its_way_out_still_is(written: str) -> None:
    worker = adopted(written)
    assert (worker.status, worker.purpose, worker.drain_by) == (S.DRAINING, W.END, NOW + 100.0 + DRAIN_GRACE_S)


@pytest.mark.parametrize(
    ("written", "told", "is_asked_again"),
    [
        ("draining", "available", True),
        ("draining", "starting", True),
        ("draining", "spare", True),
        ("draining", "draining", False),
        ("available", "available", False),
        ("draining", None, False),
    ],
)
def test_a_drain_that_never_arrived_is_asked_for_again_once(written: str, told: object, is_asked_again: bool) -> None:
    worker = adopted(written)
    worker.opens()
    assert (Do.SEND_DRAIN in worker.tells_state(told, NOW, TIMES)) is is_asked_again
    assert worker.tells_state(told, NOW + 3, TIMES) == []


def test_a_spare_that_never_heard_that_it_is_to_serve_is_told_again() -> None:
    worker = adopted("spare", W.SERVE)
    worker.opens()
    assert worker.tells_state("spare", NOW + 1, TIMES) == [Do.SEND_SERVE]
    assert worker.ready_by == NOW + 1 + SERVE_GRACE_S


def test_a_spare_that_waits_still_waits() -> None:
    worker = adopted("spare", W.SPARE)
    worker.opens()
    assert worker.tells_state("spare", NOW + 1, TIMES) == []
    assert worker.ready_by == math.inf


def test_an_adopted_successor_has_no_successor() -> None:
    assert adopted("available").may_be_taken_over(NOW)
    assert not adopted("draining", process=P.SUCCESSOR).may_be_taken_over(NOW)


def test_one_that_does_not_come_back_is_given_up_like_any_other() -> None:
    worker = adopted("available")
    assert TellLost(S.AVAILABLE) in worker.give_up("silent for 4 s", NOW + 4)


# Any order of what can happen

SCRIPTS: list[list[WorkerEvent]] = [
    [E.SERVES, E.DRAINS, E.STOPS],
    [E.WAITS, E.SERVES, E.DRAINS, E.STOPS],
    [E.WAITS, E.DRAINS, E.STOPS],
    [E.DRAINS, E.STOPS],
    [E.FAILS, E.STOPS],
    [E.WAITS, E.FAILS, E.STOPS],
]
"""What a worker says from its start to its end."""

SAYS_OF_ITSELF = {
    E.WAITS: "spare",
    E.SERVES: "available",
    E.DRAINS: "draining",
    E.STOPS: "stopped",
    E.FAILS: "stopped",
}

HAPPENINGS = st.sampled_from(
    [
        *["says"] * 8,
        *["tells state"] * 3,
        *["reconnects"] * 3,
        "is to serve",
        "serves in place",
        "plan ends it",
        "operator ends it",
        "ends now",
        "is silent",
        "is late",
        "is too large",
        "browser server dies",
        "exits cleanly",
        "exits",
        "time is over",
    ]
)


@dataclass
class World:
    """A worker as it is, what it has still to say, and what the master was told to do about it."""

    life: WorkerLife
    script: list[WorkerEvent]
    unheard: int
    """How much of the script was said to another master, which did not acknowledge it."""
    forks_fail: bool
    itself: str = "starting"
    now: float = NOW
    kill_at: float = math.inf
    browser_server_lives: bool = True
    done: Counter[object] = field(default_factory=Counter)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case EndProcess():
                    self.kill_at = min(self.kill_at, action.kill_at)
                case ForkSuccessor() if self.forks_fail:
                    self.do(self.life.is_not_succeeded(action.reason))
                case ForkSuccessor():
                    self.done["successor"] += 1
                    self.kill_at, self.script, self.unheard = math.inf, [E.DRAINS, E.STOPS], 0
                    self.do(self.life.is_succeeded(self.now, TIMES))
                case TellLost():
                    self.done["end told"] += 1
                case TellProxy(command="worker_gone"):
                    self.done["end told"] += 1
                case TellProxy():
                    self.done[action.command] += 1
                case Do():
                    self.done[action] += 1
        self.check()

    def check(self) -> None:
        """What holds at any time."""
        life = self.life
        assert life.ready_by == math.inf or (life.has_process and life.status in (S.STARTING, S.SPARE))
        assert life.has_process or life.contact is C.CUT
        assert life.status is not S.LOST or life.contact is C.CUT
        assert life.has_process or life.status in (S.STOPPED, S.LOST)
        assert self.done["end told"] <= 1
        if life.status is S.DRAINING:
            assert self.kill_at < math.inf

    def happens(self, name: str) -> None:
        self.now += 1.0
        if self.life.has_process:
            getattr(self, "_" + name.replace(" ", "_"))()

    def finishes(self) -> None:
        """Whatever it is, it ends, and so does its successor."""
        while self.life.has_process:
            self._exits()
        assert self.life.process is P.GONE
        self.life.is_cleaned_up()

    def _is_heard(self) -> bool:
        return self.life.contact in (C.REPEATING, C.KEPT)

    def _says(self) -> None:
        if not self._is_heard() or not self.script:
            return
        event = self.script.pop(0)
        if self.unheard:
            self.unheard -= 1
        else:
            self.itself = SAYS_OF_ITSELF[event]
        self.do(self.life.says(event, "its own reason", self.now, TIMES))

    def _tells_state(self) -> None:
        while self._is_heard() and self.unheard:
            self._says()
        if self._is_heard():
            self.do(self.life.tells_state(self.itself, self.now, TIMES))

    def _reconnects(self) -> None:
        if self.life.contact is not C.CUT:
            self.life.opens()

    def _is_to_serve(self) -> None:
        if self.life.purpose is W.SPARE and self.life.is_capacity:
            self.do(self.life.serve(self.now))

    def _serves_in_place(self) -> None:
        self.do(self.life.serves_in_place(self.now))

    def _drain(self, by: PurposeEvent) -> None:
        self.do(self.life.drain(by, "asked", self.now, TIMES))

    def _plan_ends_it(self) -> None:
        self._drain(WE.END_ASKED)

    def _operator_ends_it(self) -> None:
        self._drain(WE.OPERATOR_ASKED)

    def _ends_now(self) -> None:
        self._drain(WE.NOW_ASKED)

    def _taken_over(self) -> bool:
        return self.browser_server_lives and self.life.may_be_taken_over(self.now)

    def _is_silent(self) -> None:
        if self.life.contact is not C.CUT:
            self.do(self.life.give_up("silent", self.now, taken_over=self._taken_over()))

    def _is_late(self) -> None:
        if self.life.ready_by < math.inf:
            self.now = self.life.ready_by
            self._is_silent()

    def _is_too_large(self) -> None:
        if self.life.status in (*BEFORE_A_DRAIN, S.DRAINING):
            self.do(self.life.give_up("memory", self.now, grace_s=0.0))

    def _browser_server_dies(self) -> None:
        self.browser_server_lives = False

    def _exits(self, *, is_clean: bool = False) -> None:
        # What it has said last is heard before its end.
        self.do(self.life.exits("it ended", is_clean=is_clean, taken_over=self._taken_over()))

    def _exits_cleanly(self) -> None:
        self._exits(is_clean=True)

    def _time_is_over(self) -> None:
        if self.kill_at < math.inf:
            self.now = max(self.now, self.kill_at)
            self._exits()


@st.composite
def worlds(draw: st.DrawFn) -> World:
    script = list(draw(st.sampled_from(SCRIPTS)))
    spare = draw(st.booleans())
    forks_fail = draw(st.booleans())
    if draw(st.booleans()):
        return World(WorkerLife.forked(NOW, TIMES, spare=spare), script, 0, forks_fail)
    # Another master had it: it has said `said` events, of which the first `heard` are acknowledged; the file is older.
    said = draw(st.integers(0, len(script)))
    heard = draw(st.integers(0, said))
    written_after = draw(st.integers(0, said))
    written = S.STARTING
    for event in script[:written_after]:
        written = TRANSITIONS[written, event]
    if draw(st.booleans()):
        written = S.DRAINING  # it was to be drained, and may not have heard it
    purpose = W.SPARE if spare else W.SERVE
    process = draw(st.sampled_from([P.FIRST, P.SUCCESSOR]))
    life = WorkerLife.adopted(written.value, purpose, process, NOW, TIMES)
    if draw(st.booleans()):
        life.opens()
    itself = "starting"
    for event in script[:said]:
        itself = SAYS_OF_ITSELF[event]
    return World(life, script[heard:], said - heard, forks_fail, itself, kill_at=life.drain_by)


@settings(max_examples=1500)
@given(worlds(), st.lists(HAPPENINGS, max_size=30))
def test_every_life_ends_cleaned_up_is_told_once_and_dies_at_most_once(world: World, happenings: list[str]) -> None:
    world.check()
    for name in happenings:
        world.happens(name)
    world.finishes()
    assert world.life.process is P.CLEANED_UP
    assert world.life.status in (S.STOPPED, S.LOST)
    assert world.life.ready_by == math.inf
    assert world.done["end told"] == 1
    assert world.done[Do.CLEAN_UP] == 1
    assert world.done[Do.COUNT_DEATH] <= 1
    assert world.done["successor"] <= 1
    assert world.done["worker_taken_over"] <= 1
    assert world.done[Do.CUT_LINK] >= 1


@given(worlds(), st.lists(HAPPENINGS, max_size=30))
def test_no_end_that_was_wanted_is_counted_as_a_death(world: World, happenings: list[str]) -> None:
    for name in happenings:
        wanted, deaths = world.life.purpose not in (W.SERVE, W.SPARE), world.done[Do.COUNT_DEATH]
        world.happens(name)
        assert not wanted or world.done[Do.COUNT_DEATH] == deaths
