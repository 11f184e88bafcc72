"""The worker's life, walked literally."""

from __future__ import annotations

import pytest

from pwgrid.common.worker_lifecycle import TRANSITIONS, LifecycleError, WorkerEvent, WorkerStatus, advance

S, E = WorkerStatus, WorkerEvent

WALKS = {
    "a whole life": [
        (E.WARMED, S.AVAILABLE),
        (E.DRAIN_ASKED, S.DRAINING),
        (E.STOP_ANNOUNCED, S.STOPPED),
        (E.VANISHED, S.STOPPED),
    ],
    "a spare's life": [
        (E.HELD, S.SPARE),
        (E.WARMED, S.AVAILABLE),
        (E.DRAIN_ASKED, S.DRAINING),
        (E.STOP_ANNOUNCED, S.STOPPED),
    ],
    "a spare that is not needed": [(E.HELD, S.SPARE), (E.DRAIN_ASKED, S.DRAINING), (E.STOP_ANNOUNCED, S.STOPPED)],
    "a spare that fails": [(E.HELD, S.SPARE), (E.FAILED, S.STOPPED)],
    "a spare that is killed": [(E.HELD, S.SPARE), (E.VANISHED, S.LOST)],
    "drained before it was a spare": [(E.DRAIN_ASKED, S.DRAINING), (E.HELD, S.DRAINING), (E.STOP_ANNOUNCED, S.STOPPED)],
    "drained while it launched": [
        (E.DRAIN_ASKED, S.DRAINING),
        (E.WARMED, S.DRAINING),
        (E.STOP_ANNOUNCED, S.STOPPED),
    ],
    "asked twice": [
        (E.WARMED, S.AVAILABLE),
        (E.DRAIN_ASKED, S.DRAINING),
        (E.DRAIN_ASKED, S.DRAINING),
        (E.STOP_ANNOUNCED, S.STOPPED),
    ],
    "cannot launch": [(E.FAILED, S.STOPPED), (E.VANISHED, S.STOPPED)],
    "fails while it serves": [(E.WARMED, S.AVAILABLE), (E.FAILED, S.STOPPED)],
    "fails while it drains": [(E.WARMED, S.AVAILABLE), (E.DRAIN_ASKED, S.DRAINING), (E.FAILED, S.STOPPED)],
    "killed while it launches": [(E.VANISHED, S.LOST)],
    "killed while it serves": [(E.WARMED, S.AVAILABLE), (E.VANISHED, S.LOST)],
    "killed while it drains": [(E.WARMED, S.AVAILABLE), (E.DRAIN_ASKED, S.DRAINING), (E.VANISHED, S.LOST)],
    "given up, then heard once more": [
        (E.WARMED, S.AVAILABLE),
        (E.VANISHED, S.LOST),
        (E.DRAIN_ASKED, S.LOST),
        (E.STOP_ANNOUNCED, S.LOST),
        (E.FAILED, S.LOST),
        (E.HELD, S.LOST),
        (E.WARMED, S.LOST),
        (E.VANISHED, S.LOST),
    ],
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
        (S.STARTING, E.STOP_ANNOUNCED),
        (S.SPARE, E.HELD),
        (S.SPARE, E.STOP_ANNOUNCED),
        (S.AVAILABLE, E.HELD),
        (S.AVAILABLE, E.WARMED),
        (S.AVAILABLE, E.STOP_ANNOUNCED),
        (S.STOPPED, E.HELD),
        (S.STOPPED, E.WARMED),
        (S.STOPPED, E.DRAIN_ASKED),
        (S.STOPPED, E.STOP_ANNOUNCED),
        (S.STOPPED, E.FAILED),
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
    assert {following for (status, _), following in TRANSITIONS.items() if status is S.LOST} == {S.LOST}
    assert {following for (status, _), following in TRANSITIONS.items() if status is S.STOPPED} == {S.STOPPED}
