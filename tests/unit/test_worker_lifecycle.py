"""The worker's life, walked literally."""

from __future__ import annotations

import pytest

from pwgrid.common.worker_lifecycle import TRANSITIONS, LifecycleError, WorkerEvent, WorkerStatus, advance

S, E = WorkerStatus, WorkerEvent

WALKS = {
    "a whole life": [
        (E.SERVES, S.AVAILABLE),
        (E.DRAINS, S.DRAINING),
        (E.STOPS, S.STOPPED),
        (E.VANISHES, S.STOPPED),
    ],
    "a spare's life": [
        (E.WAITS, S.SPARE),
        (E.SERVES, S.AVAILABLE),
        (E.DRAINS, S.DRAINING),
        (E.STOPS, S.STOPPED),
    ],
    "a spare that is not needed": [(E.WAITS, S.SPARE), (E.DRAINS, S.DRAINING), (E.STOPS, S.STOPPED)],
    "a spare that fails": [(E.WAITS, S.SPARE), (E.FAILS, S.STOPPED)],
    "a spare that is killed": [(E.WAITS, S.SPARE), (E.VANISHES, S.LOST)],
    "drained before it was a spare": [(E.DRAINS, S.DRAINING), (E.WAITS, S.DRAINING), (E.STOPS, S.STOPPED)],
    "drained while it launched": [
        (E.DRAINS, S.DRAINING),
        (E.SERVES, S.DRAINING),
        (E.STOPS, S.STOPPED),
    ],
    "asked twice": [
        (E.SERVES, S.AVAILABLE),
        (E.DRAINS, S.DRAINING),
        (E.DRAINS, S.DRAINING),
        (E.STOPS, S.STOPPED),
    ],
    "a spare that a selection has let serve": [(E.WAITS, S.SPARE), (E.SERVES, S.AVAILABLE), (E.SERVES, S.AVAILABLE)],
    "cannot launch": [(E.FAILS, S.STOPPED), (E.STOPS, S.STOPPED), (E.VANISHES, S.STOPPED)],
    "fails while it serves": [(E.SERVES, S.AVAILABLE), (E.FAILS, S.STOPPED)],
    "fails while it drains": [(E.SERVES, S.AVAILABLE), (E.DRAINS, S.DRAINING), (E.FAILS, S.STOPPED)],
    "killed while it launches": [(E.VANISHES, S.LOST)],
    "killed while it serves": [(E.SERVES, S.AVAILABLE), (E.VANISHES, S.LOST)],
    "killed while it drains": [(E.SERVES, S.AVAILABLE), (E.DRAINS, S.DRAINING), (E.VANISHES, S.LOST)],
}


@pytest.mark.parametrize("name", WALKS)
def test_a_life_goes_as_the_table_says(name: str) -> None:
    status = S.STARTING
    for event, expected in WALKS[name]:
        status = advance(status, event)
        assert status is expected


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (S.STARTING, E.STOPS),
        (S.SPARE, E.WAITS),
        (S.SPARE, E.STOPS),
        (S.AVAILABLE, E.WAITS),
        (S.AVAILABLE, E.STOPS),
        (S.STOPPED, E.WAITS),
        (S.STOPPED, E.SERVES),
        (S.STOPPED, E.DRAINS),
        (S.STOPPED, E.FAILS),
        *((S.LOST, event) for event in E),
    ],
)
def test_what_cannot_happen_raises(status: WorkerStatus, event: WorkerEvent) -> None:
    with pytest.raises(LifecycleError):
        advance(status, event)


def test_every_pair_is_either_walked_here_or_refused_here() -> None:
    walked = set()
    for walk in WALKS.values():
        status = S.STARTING
        for event, following in walk:
            walked.add((status, event))
            status = following
    assert walked == set(TRANSITIONS)


def test_nothing_leaves_a_final_state() -> None:
    assert not [event for status, event in TRANSITIONS if status is S.LOST]
    assert {following for (status, _), following in TRANSITIONS.items() if status is S.STOPPED} == {S.STOPPED}
