"""What becomes of a worker: its tables walked literally, single decisions, and lives in any order that can happen."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pwgrid.common.worker_lifecycle import BEFORE_A_DRAIN, TRANSITIONS, LifecycleError, WorkerEvent, WorkerStatus
from pwgrid.control.child_side import CLOSE_S
from pwgrid.master.policy.worker_state_machine import (
    DRAIN_GRACE_S,
    DRAIN_NOW_S,
    LAUNCH_GRACE_S,
    PHASES,
    PROFILES_S,
    REPEATED,
    SERVE_GRACE_S,
    Action,
    Phase,
    PhaseEvent,
    Purpose,
    WorkerLife,
)
from pwgrid.settings.model import Settings
from pwgrid.worker.browser.launch import LAUNCHER
from pwgrid.worker.main import STOP_S
from pwgrid.worker.profiles import COPY_S
from pwgrid.worker.registry_sync import SETTLE_S
from pwgrid.worker.sessions import CLOSE_GRACE_S, PROFILE_GRACE_S

S, E, P, PE, W = WorkerStatus, WorkerEvent, Phase, PhaseEvent, Purpose
SETTINGS = Settings.model_construct(launch_timeout=30.0, drain_timeout=100.0, recycle_drain_timeout=5000.0)
NOW = 1000.0

OWN = {
    "lives and ends": [
        (PE.OPENS, P.RUNNING),
        (PE.EXITS, P.EXITED),
        (PE.IS_CLEANED_UP, P.CLEANED_UP),
    ],
    "dies and is succeeded": [(PE.EXITS, P.EXITED), (PE.IS_SUCCEEDED, P.RUNNING), (PE.OPENS, P.RUNNING)],
    "is silent, then too large, then ends": [
        (PE.IS_GIVEN_UP, P.GIVEN_UP),
        (PE.IS_GIVEN_UP, P.GIVEN_UP),
        (PE.EXITS, P.EXITED),
    ],
}
ADOPTED = {
    "comes back": [(PE.OPENS, P.REPEATING), (PE.COMES_BACK, P.RUNNING), (PE.IS_GIVEN_UP, P.GIVEN_UP)],
    "loses its link while it comes back": [(PE.OPENS, P.REPEATING), (PE.OPENS, P.REPEATING), (PE.EXITS, P.EXITED)],
    "is silent once it is back": [(PE.OPENS, P.REPEATING), (PE.IS_GIVEN_UP, P.GIVEN_UP)],
    "does not come back": [(PE.IS_GIVEN_UP, P.GIVEN_UP)],
    "ends before it is back": [(PE.EXITS, P.EXITED)],
}


def test_the_phases_are_just_what_is_walked_here() -> None:
    walked = set()
    for first, walks in ((P.RUNNING, OWN), (P.AWAITED, ADOPTED)):
        for name, walk in walks.items():
            phase = first
            for event, following in walk:
                assert PHASES[phase, event] is following, name
                walked.add((phase, event))
                phase = following
    assert walked == set(PHASES)


def test_a_pair_that_is_in_no_table_raises() -> None:
    gone = WorkerLife(W.SERVE, S.LOST, P.CLEANED_UP)
    for happens in (gone.opens, gone.gets_cleaned_up, lambda: gone.exits("", is_clean=True, taken_over=False)):
        with pytest.raises(LifecycleError):
            happens()


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
        life(status).says(E.WAITS, "", NOW, SETTINGS)
    back = life(status, phase=P.REPEATING)
    back.says(E.WAITS, "", NOW, SETTINGS)
    assert back.status is status


# A worker of our own


def test_a_start_has_a_deadline_until_the_worker_is_warm() -> None:
    worker = WorkerLife.forked(W.SERVE, NOW, SETTINGS)
    assert worker.ready_by == NOW + 30.0 + LAUNCH_GRACE_S
    assert worker.says(E.SERVES, "", NOW + 1, SETTINGS) == []
    assert (worker.status, worker.ready_by) == (S.AVAILABLE, math.inf)


def test_a_spare_waits_for_as_long_as_nobody_needs_it_and_has_a_deadline_once_it_is_to_serve() -> None:
    worker = WorkerLife.forked(W.SPARE, NOW, SETTINGS)
    worker.says(E.WAITS, "", NOW + 1, SETTINGS)
    assert (worker.status, worker.ready_by) == (S.SPARE, math.inf)
    assert worker.serve(NOW + 2) == [Action.SEND_SERVE]
    assert (worker.purpose, worker.ready_by) == (W.SERVE, NOW + 2 + SERVE_GRACE_S)
    worker.says(E.SERVES, "", NOW + 3, SETTINGS)
    assert (worker.status, worker.ready_by) == (S.AVAILABLE, math.inf)


def test_one_that_was_told_to_serve_while_it_started_has_a_deadline_to_register() -> None:
    worker = WorkerLife.forked(W.SPARE, NOW, SETTINGS)
    worker.serve(NOW + 1)
    assert worker.ready_by == NOW + 30.0 + LAUNCH_GRACE_S
    worker.says(E.WAITS, "", NOW + 2, SETTINGS)
    assert worker.ready_by == NOW + 2 + SERVE_GRACE_S


def test_a_spare_that_a_selection_lets_serve_is_available_before_it_says_so() -> None:
    spare = life(S.SPARE, W.SPARE)
    assert spare.serves_in_place(NOW) == [Action.SEND_SERVE]
    assert (spare.status, spare.purpose, spare.ready_by) == (S.AVAILABLE, W.SERVE, math.inf)
    assert spare.says(E.SERVES, "", NOW + 1, SETTINGS) == []
    assert spare.serves_in_place(NOW) == []


@pytest.mark.parametrize("worker", [life(S.AVAILABLE), life(S.DRAINING, W.END), life(S.LOST, W.SPARE)])
def test_only_a_spare_takes_the_place_of_another_one(worker: WorkerLife) -> None:
    before = worker.status
    assert worker.serves_in_place(NOW) == []
    assert worker.status is before


def test_a_drain_is_told_limited_and_left_in_redis() -> None:
    worker = life(S.AVAILABLE)
    asked = [Action.SEND_DRAIN, Action.LEAVE_DRAIN]
    assert worker.drain(W.END, "shutdown", NOW, SETTINGS) == asked
    assert (worker.status, worker.reason, worker.sessions_until) == (S.DRAINING, "shutdown", NOW + 100.0)
    assert worker.drain_by == NOW + 100.0 + DRAIN_GRACE_S
    assert worker.drain(W.END_FOR_OPERATOR, "operator", NOW + 1, SETTINGS) == []
    assert worker.drain(W.RECYCLE, "age", NOW + 1, SETTINGS) == []
    assert worker.drain(W.END_FOR_OPERATOR, "operator", NOW + 2, SETTINGS) == asked
    assert (worker.purpose, worker.reason, worker.sessions_until) == (W.END_NOW, "operator", NOW + 2)
    assert worker.drain_by == NOW + 2 + DRAIN_NOW_S
    assert worker.drain(W.END_NOW, "shutdown", NOW + 3, SETTINGS) == []


@pytest.mark.parametrize("worker", [life(S.STOPPED), life(S.LOST, phase=P.GIVEN_UP), life(S.STOPPED, phase=P.EXITED)])
def test_one_that_has_ended_is_not_drained(worker: WorkerLife) -> None:
    assert worker.drain(W.END_NOW, "shutdown", NOW, SETTINGS) == []


def test_a_planned_recycle_has_more_time_and_is_not_left_in_redis_where_it_would_have_less() -> None:
    worker = life(S.AVAILABLE)
    assert worker.drain(W.RECYCLE, "memory", NOW, SETTINGS) == [Action.SEND_DRAIN]
    assert (worker.status, worker.reason, worker.sessions_until) == (S.DRAINING, "memory", NOW + 5000.0)
    assert worker.drain_by == NOW + 5000.0 + DRAIN_GRACE_S
    assert worker.drain(W.RECYCLE, "age", NOW + 1, SETTINGS) == []


@pytest.mark.parametrize("wanted", [W.END, W.END_FOR_OPERATOR])
def test_who_may_not_wait_leaves_a_worker_that_lingers_less_time(wanted: Purpose) -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.RECYCLE, "memory", NOW, SETTINGS)
    asked = [Action.SEND_DRAIN, Action.LEAVE_DRAIN]
    assert worker.drain(wanted, "because", NOW + 1, SETTINGS) == asked
    assert (worker.reason, worker.sessions_until) == ("because", NOW + 101.0)
    assert worker.drain_by == NOW + 101.0 + DRAIN_GRACE_S


def test_a_drain_that_is_nearly_over_is_not_prolonged_by_another_one() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.RECYCLE, "memory", NOW, SETTINGS)
    assert worker.drain(W.END, "shutdown", NOW + 4950, SETTINGS) == []
    assert (worker.reason, worker.sessions_until) == ("memory", NOW + 5000.0)


def test_who_wants_the_end_now_is_heard_when_the_time_is_over_already() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.END, "shutdown", NOW, SETTINGS)
    assert Action.SEND_DRAIN in worker.drain(W.END_NOW, "shutdown", NOW + 101, SETTINGS)
    assert worker.sessions_until == NOW + 100.0


def test_a_worker_lingers_while_its_sessions_have_more_time_than_those_of_other_drains() -> None:
    worker = life(S.AVAILABLE)
    assert not worker.lingers(NOW, SETTINGS)
    worker.drain(W.RECYCLE, "memory", NOW, SETTINGS)
    assert worker.lingers(NOW, SETTINGS)
    assert worker.lingers(NOW + 4899, SETTINGS)
    assert not worker.lingers(NOW + 4900, SETTINGS)
    worker.drain(W.END, "the host is short of memory", NOW + 1, SETTINGS)
    assert not worker.lingers(NOW + 1, SETTINGS)


@pytest.mark.parametrize(("told", "drain_s"), [(7.0, 7.0), (None, 5000.0)])
def test_a_worker_that_drains_of_its_own_accord_has_the_time_that_it_says(told: float | None, drain_s: float) -> None:
    worker = life(S.AVAILABLE)
    assert worker.says(E.DRAINS, "lifetime limit", NOW, SETTINGS, told) == []
    assert (worker.sessions_until, worker.drain_by) == (NOW + drain_s, NOW + drain_s + DRAIN_GRACE_S)
    assert (worker.purpose, worker.reason) == (W.SERVE, "lifetime limit")
    worker.says(E.STOPS, "", NOW + 1, SETTINGS)
    assert worker.exits("", is_clean=True, taken_over=False) == [
        Action.CUT_LINK,
        Action.TELL_GONE,
        Action.CLEAN_UP,
    ]


def test_a_drain_that_ends_with_an_error_is_a_death() -> None:
    worker = life(S.AVAILABLE)
    worker.says(E.DRAINS, "browser crashed", NOW, SETTINGS)
    worker.says(E.STOPS, "", NOW + 1, SETTINGS)
    assert worker.exits("browser crashed", is_clean=False, taken_over=False) == [
        Action.CUT_LINK,
        Action.COUNT_DEATH,
        Action.TELL_LOST,
        Action.CLEAN_UP,
    ]


def test_a_failed_start_is_one_death() -> None:
    worker = WorkerLife.forked(W.SERVE, NOW, SETTINGS)
    assert worker.says(E.FAILS, "the browser is broken", NOW, SETTINGS) == [Action.COUNT_DEATH]
    assert worker.drain_by == NOW + DRAIN_GRACE_S
    assert worker.says(E.STOPS, "", NOW, SETTINGS) == []
    # It is not lost: it has told why it ends, and nobody was ever served.
    assert worker.exits("the browser is broken", is_clean=False, taken_over=False) == [
        Action.CUT_LINK,
        Action.TELL_GONE,
        Action.CLEAN_UP,
    ]


def test_a_successor_that_fails_is_lost_with_its_sessions() -> None:
    worker = life(S.DRAINING, phase=P.RUNNING, purpose=W.END, successors=1)
    worker.says(E.FAILS, "the browser server does not answer its new worker", NOW, SETTINGS)
    assert Action.TELL_LOST in worker.exits("failed", is_clean=False, taken_over=False)


def test_a_worker_that_was_to_end_may_end_as_it_likes() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.END_NOW, "shutdown", NOW, SETTINGS)
    assert not worker.may_be_taken_over(NOW)
    assert worker.exits("killed", is_clean=False, taken_over=False) == [
        Action.CUT_LINK,
        Action.TELL_LOST,
        Action.CLEAN_UP,
    ]


# Deaths


def test_a_dead_worker_whose_browser_server_lives_is_taken_over() -> None:
    worker = life(S.AVAILABLE)
    assert worker.may_be_taken_over(NOW)
    assert worker.exits("SIGKILL", is_clean=False, taken_over=True) == [
        Action.CUT_LINK,
        Action.COUNT_DEATH,
        Action.TELL_TAKEN_OVER,
        Action.FORK_SUCCESSOR,
    ]
    worker.gets_successor(NOW, SETTINGS)
    assert (worker.status, worker.phase, worker.purpose, worker.successors) == (S.DRAINING, P.RUNNING, W.RECYCLE, 1)
    assert worker.drain_by == NOW + 5000.0 + DRAIN_GRACE_S
    assert not worker.may_be_taken_over(NOW)
    assert worker.exits("SIGKILL", is_clean=False, taken_over=False) == [
        Action.CUT_LINK,
        Action.TELL_LOST,
        Action.CLEAN_UP,
    ]


def test_the_death_of_a_successor_counts_for_nothing() -> None:
    worker = life(S.AVAILABLE)
    worker.says(E.DRAINS, "lifetime limit", NOW, SETTINGS)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    worker.gets_successor(NOW, SETTINGS)
    assert Action.COUNT_DEATH not in worker.exits("SIGKILL", is_clean=False, taken_over=False)


def test_a_successor_gets_what_is_left_of_the_drain() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.RECYCLE, "memory", NOW, SETTINGS)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    worker.gets_successor(NOW + 60, SETTINGS)
    assert (worker.sessions_until, worker.drain_by) == (NOW + 5000.0, NOW + 5000.0 + DRAIN_GRACE_S)


def test_a_worker_that_was_killed_at_its_drain_deadline_is_not_taken_over() -> None:
    worker = life(S.AVAILABLE)
    worker.drain(W.RECYCLE, "memory", NOW, SETTINGS)
    assert worker.may_be_taken_over(worker.drain_by - 1)
    assert not worker.may_be_taken_over(worker.drain_by)


def test_where_no_successor_can_be_forked_the_worker_is_lost_and_its_death_counted_once() -> None:
    worker = life(S.AVAILABLE)
    worker.exits("SIGKILL", is_clean=False, taken_over=True)
    assert worker.gets_no_successor() == [Action.TELL_LOST, Action.CLEAN_UP]
    assert (worker.status, worker.reason) == (S.LOST, "SIGKILL")


def test_a_silent_worker_is_killed_at_once_and_then_taken_over() -> None:
    """With a SIGTERM it could wake, and end what its successor is to get."""
    worker = life(S.AVAILABLE)
    assert worker.falls_silent("silent for 4 s", taken_over=True) == [
        Action.CUT_LINK,
        Action.COUNT_DEATH,
        Action.TELL_TAKEN_OVER,
        Action.KILL_PROCESS,
    ]
    assert worker.may_be_taken_over(NOW + 3)
    assert worker.exits("killed", is_clean=False, taken_over=True) == [
        Action.CUT_LINK,
        Action.FORK_SUCCESSOR,
    ]


def test_a_silent_worker_without_a_browser_server_is_lost_at_once_and_told_once() -> None:
    worker = WorkerLife.forked(W.SERVE, NOW, SETTINGS)
    silent = worker.falls_silent("silent for 4 s", taken_over=False)
    assert silent == [Action.CUT_LINK, Action.COUNT_DEATH, Action.TELL_LOST, Action.END_PROCESS]
    assert (worker.status, worker.reason, worker.ready_by) == (S.LOST, "silent for 4 s", math.inf)
    assert worker.exits("killed", is_clean=False, taken_over=False) == [Action.CLEAN_UP]


def test_a_worker_over_the_hard_memory_limit_has_no_grace() -> None:
    worker = life(S.AVAILABLE)
    large = worker.takes_too_much_memory("memory limit")
    assert large == [Action.CUT_LINK, Action.COUNT_DEATH, Action.TELL_LOST, Action.KILL_PROCESS]
    assert (worker.status, worker.phase) == (S.LOST, P.GIVEN_UP)


def test_the_last_resort_kills_what_runs_and_asks_for_no_successor() -> None:
    worker = life(S.AVAILABLE)
    assert worker.kill() == [Action.KILL_PROCESS]
    assert not worker.may_be_taken_over(NOW)
    assert life(S.LOST, phase=P.EXITED).kill() == []


def test_one_that_has_stopped_and_does_not_end_is_told_once() -> None:
    worker = life(S.DRAINING, W.END)
    worker.says(E.STOPS, "", NOW, SETTINGS)
    assert Action.TELL_LOST in worker.falls_silent("silent for 4 s", taken_over=False)
    assert worker.exits("", is_clean=True, taken_over=False) == [Action.CLEAN_UP]


# A worker of another master


def adopted(written: str, purpose: Purpose = W.SERVE) -> WorkerLife:
    return WorkerLife.adopted(written, purpose, NOW, SETTINGS, None)


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
    worker.comes_back(told, NOW + 1, SETTINGS)
    assert worker.status is WorkerStatus(now)
    assert worker.phase is P.RUNNING


@pytest.mark.parametrize("written", ["draining", "stopped", "lost", "", "nonsense"])
def test_one_that_was_on_its_way_out_still_is(written: str) -> None:
    worker = adopted(written)
    assert (worker.status, worker.purpose, worker.sessions_until) == (S.DRAINING, W.RECYCLE, NOW + 5000.0)
    assert worker.drain_by == NOW + 5000.0 + DRAIN_GRACE_S + PROFILES_S  # it may have some, as far as is known


@pytest.mark.parametrize(
    ("wanted", "purpose"), [(W.SPARE, W.RECYCLE), (W.RECYCLE, W.RECYCLE), (W.END, W.END), (W.END_NOW, W.END_NOW)]
)
def test_of_one_that_was_on_its_way_out_no_less_is_wanted(wanted: Purpose, purpose: Purpose) -> None:
    assert adopted("draining", wanted).purpose is purpose


def test_one_that_was_on_its_way_out_has_the_time_that_was_written_down_for_it() -> None:
    worker = WorkerLife.adopted("draining", W.SERVE, NOW, SETTINGS, NOW + 3.0)
    assert (worker.sessions_until, worker.drain_by) == (NOW + 3.0, NOW + 3.0 + DRAIN_GRACE_S + PROFILES_S)


@pytest.mark.parametrize(
    ("written", "told", "is_asked_again"),
    [
        ("draining", "available", True),
        ("draining", "starting", True),
        ("draining", "spare", True),
        ("draining", "draining", True),  # it may not have heard that its time has become less
        ("available", "available", False),
        ("draining", None, False),
    ],
)
def test_a_drain_that_never_arrived_is_asked_for_again(written: str, told: object, is_asked_again: bool) -> None:
    worker = adopted(written)
    worker.opens()
    assert (Action.SEND_DRAIN in worker.comes_back(told, NOW, SETTINGS)) is is_asked_again


def test_a_spare_that_never_heard_that_it_is_to_serve_is_told_again() -> None:
    worker = adopted("spare", W.SERVE)
    worker.opens()
    assert worker.comes_back("spare", NOW + 1, SETTINGS) == [Action.SEND_SERVE]
    assert worker.ready_by == NOW + 1 + SERVE_GRACE_S


def test_a_spare_that_still_launches_and_never_heard_that_it_is_to_serve_is_told_again() -> None:
    worker = adopted("starting", W.SERVE)
    worker.opens()
    assert worker.comes_back("starting", NOW + 1, SETTINGS) == [Action.SEND_SERVE]
    assert worker.ready_by == NOW + SETTINGS.launch_timeout + LAUNCH_GRACE_S


def test_a_spare_that_waits_still_waits() -> None:
    worker = adopted("spare", W.SPARE)
    worker.opens()
    assert worker.comes_back("spare", NOW + 1, SETTINGS) == []
    assert worker.ready_by == math.inf


def test_an_adopted_successor_has_no_successor() -> None:
    worker = adopted("draining")
    assert worker.may_be_taken_over(NOW)
    worker.successors = 1
    assert not worker.may_be_taken_over(NOW)


def test_a_worker_has_time_for_its_own_orderly_end() -> None:
    """Its clients answer their close frame or not, its browser server closes the browser, Redis is told."""
    browser_s = STOP_S * 0.7  # what the browser server is given of STOP_S, before it is killed
    assert CLOSE_GRACE_S + browser_s <= DRAIN_NOW_S
    assert DRAIN_GRACE_S >= CLOSE_GRACE_S + STOP_S + SETTLE_S + CLOSE_S


def test_a_worker_with_profiles_has_time_to_save_them() -> None:
    """A browser writes its own, then the worker copies it, and ends as ever."""
    (write_ms,) = re.findall(
        r"^const WRITE_MS = ([\d_]+);", (LAUNCHER.parent / "units/unit.cjs").read_text(), re.MULTILINE
    )
    write_s = int(write_ms) / 1000
    assert CLOSE_GRACE_S + write_s == PROFILE_GRACE_S
    assert write_s + COPY_S <= PROFILES_S
    for purpose, drain_s, grace_s in ((W.END, 100.0, DRAIN_GRACE_S), (W.END_NOW, 0.0, DRAIN_NOW_S)):
        worker = life(S.AVAILABLE)
        worker.has_profiles = True
        worker.drain(purpose, "because", NOW, SETTINGS)
        assert worker.drain_by == NOW + drain_s + grace_s + PROFILES_S


def test_one_that_does_not_come_back_is_given_up_like_any_other() -> None:
    worker = adopted("available")
    assert Action.TELL_LOST in worker.falls_silent("silent for 4 s", taken_over=False)


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
        "plan recycles it",
        "shutdown ends it",
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
    browser_server_lives: bool = True
    done: Counter[Action] = field(default_factory=Counter)

    def do(self, todo: list[Action]) -> None:
        for what in todo:
            self.done[what] += 1
            if what is Action.FORK_SUCCESSOR and self.forks_fail:
                self.do(self.life.gets_no_successor())
            elif what is Action.FORK_SUCCESSOR:
                self.script, self.unheard = [E.DRAINS, E.STOPS], 0
                self.life.gets_successor(self.now, SETTINGS)
        self.check()

    def ends_told(self) -> int:
        return self.done[Action.TELL_GONE] + self.done[Action.TELL_LOST]

    def check(self) -> None:
        """What holds at any time."""
        life = self.life
        assert life.ready_by == math.inf or (life.has_process and life.status in (S.STARTING, S.SPARE))
        assert life.has_process or life.status in (S.STOPPED, S.LOST)
        assert life.status is not S.LOST or life.phase in (P.GIVEN_UP, P.EXITED)
        assert life.status is not S.DRAINING or life.drain_by < math.inf or life.phase is P.GIVEN_UP
        assert self.ends_told() <= 1

    def happens(self, name: str) -> None:
        self.now += 1.0
        if self.life.has_process:
            getattr(self, "_" + name.replace(" ", "_"))()

    def finishes(self) -> None:
        """Whatever it is, it ends, and so does its successor."""
        while self.life.has_process:
            self._exits()
        self.life.gets_cleaned_up()

    def _is_heard(self) -> bool:
        return self.life.phase in (P.REPEATING, P.RUNNING)

    def _says(self) -> None:
        if not self._is_heard() or not self.script:
            return
        event = self.script.pop(0)
        if self.unheard:
            self.unheard -= 1
        else:
            self.itself = SAYS_OF_ITSELF[event]
        self.do(self.life.says(event, "its own reason", self.now, SETTINGS))

    def _tells_state(self) -> None:
        while self._is_heard() and self.unheard:
            self._says()
        if self.life.phase is P.REPEATING:
            self.do(self.life.comes_back(self.itself, self.now, SETTINGS))

    def _reconnects(self) -> None:
        if self.life.phase is not P.GIVEN_UP:
            self.life.opens()

    def _is_to_serve(self) -> None:
        if self.life.purpose is W.SPARE and self.life.is_capacity:
            self.do(self.life.serve(self.now))

    def _serves_in_place(self) -> None:
        self.do(self.life.serves_in_place(self.now))

    def _plan_recycles_it(self) -> None:
        self.do(self.life.drain(W.RECYCLE, "asked", self.now, SETTINGS))

    def _shutdown_ends_it(self) -> None:
        self.do(self.life.drain(W.END, "asked", self.now, SETTINGS))

    def _operator_ends_it(self) -> None:
        self.do(self.life.drain(W.END_FOR_OPERATOR, "asked", self.now, SETTINGS))

    def _ends_now(self) -> None:
        self.do(self.life.drain(W.END_NOW, "asked", self.now, SETTINGS))

    def _taken_over(self) -> bool:
        return self.browser_server_lives and self.life.may_be_taken_over(self.now)

    def _is_silent(self) -> None:
        if self.life.phase is not P.GIVEN_UP:
            self.do(self.life.falls_silent("silent", taken_over=self._taken_over()))

    def _is_late(self) -> None:
        if self.life.ready_by < math.inf:
            self.now = self.life.ready_by
            self._is_silent()

    def _is_too_large(self) -> None:
        if self.life.status in (*BEFORE_A_DRAIN, S.DRAINING):
            self.do(self.life.takes_too_much_memory("memory"))

    def _browser_server_dies(self) -> None:
        self.browser_server_lives = False

    def _exits(self, *, is_clean: bool = False) -> None:
        self.do(self.life.exits("it ended", is_clean=is_clean, taken_over=self._taken_over()))

    def _exits_cleanly(self) -> None:
        self._exits(is_clean=True)

    def _time_is_over(self) -> None:
        if self.life.drain_by < math.inf:
            self.now = max(self.now, self.life.drain_by)
            self._exits()


@st.composite
def worlds(draw: st.DrawFn) -> World:
    script = list(draw(st.sampled_from(SCRIPTS)))
    purpose = draw(st.sampled_from([W.SPARE, W.SERVE]))
    forks_fail = draw(st.booleans())
    if draw(st.booleans()):
        return World(WorkerLife.forked(purpose, NOW, SETTINGS), script, 0, forks_fail)
    # Another master had it: it has said `said` events, of which the first `heard` are acknowledged; the file is older.
    said = draw(st.integers(0, len(script)))
    heard = draw(st.integers(0, said))
    written = S.STARTING
    for event in script[: draw(st.integers(0, said))]:
        written = TRANSITIONS[written, event]
    if draw(st.booleans()):
        written = S.DRAINING  # it was to be drained, and may not have heard it
    life = WorkerLife.adopted(written.value, purpose, NOW, SETTINGS, None)
    life.successors = draw(st.integers(0, 1))
    if draw(st.booleans()):
        life.opens()
    itself = SAYS_OF_ITSELF[script[said - 1]] if said else "starting"
    return World(life, script[heard:], said - heard, forks_fail, itself)


@settings(max_examples=1500)
@given(worlds(), st.lists(HAPPENINGS, max_size=30))
def test_every_life_ends_cleaned_up_is_told_once_and_dies_at_most_once(world: World, happenings: list[str]) -> None:
    world.check()
    for name in happenings:
        world.happens(name)
    world.finishes()
    assert world.life.phase is P.CLEANED_UP
    assert world.life.status in (S.STOPPED, S.LOST)
    assert world.life.ready_by == math.inf
    assert world.ends_told() == 1
    assert world.done[Action.CLEAN_UP] == 1
    assert world.done[Action.CUT_LINK] >= 1
    for once in (Action.COUNT_DEATH, Action.FORK_SUCCESSOR, Action.TELL_TAKEN_OVER):
        assert world.done[once] <= 1


@given(worlds(), st.lists(HAPPENINGS, max_size=30))
def test_no_end_that_was_wanted_is_counted_as_a_death(world: World, happenings: list[str]) -> None:
    for name in happenings:
        was, deaths = world.life.purpose, world.done[Action.COUNT_DEATH]
        world.happens(name)
        assert was <= world.life.purpose
        assert was < W.RECYCLE or world.done[Action.COUNT_DEATH] == deaths
