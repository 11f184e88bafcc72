"""Whether a peer that says nothing is gone, in time that the test makes."""

from __future__ import annotations

import pytest

from pwgrid.control.frozen_peer import LATE_S, FrozenPeerDetector

NOW = 1000.0


def over_at(silence: FrozenPeerDetector, late_s: float = 0.0) -> float:
    """When it is over, if each look comes so late."""
    while True:
        at = silence.look_at + late_s
        if silence.is_over(at):
            return at


@pytest.mark.parametrize("late_s", [0.0, LATE_S])
def test_it_is_over_once_the_limit_is(late_s: float) -> None:
    assert over_at(FrozenPeerDetector(30.0, NOW), late_s) == NOW + 30 + late_s


def test_who_is_heard_has_the_whole_time_again() -> None:
    silence = FrozenPeerDetector(30.0, NOW)
    while silence.look_at < NOW + 20:
        assert not silence.is_over(silence.look_at)
    silence.heard(NOW + 20)
    assert over_at(silence) == NOW + 50


def test_what_was_heard_before_changes_nothing() -> None:
    silence = FrozenPeerDetector(30.0, NOW)
    silence.heard(NOW - 10)
    assert over_at(silence) == NOW + 30


def test_who_looks_late_was_frozen_itself_and_gives_the_whole_time_once_more() -> None:
    silence = FrozenPeerDetector(30.0, NOW)
    woke_at = NOW + 30 + LATE_S + 0.1
    assert not silence.is_over(woke_at)
    assert over_at(silence) == woke_at + 30


def test_a_host_that_stands_still_is_no_silence_even_if_it_goes_on_at_the_very_limit() -> None:
    """All processes go on at once; the first look of each would find that the other has said nothing for the limit."""
    silence = FrozenPeerDetector(5.0, NOW)
    assert silence.look_at < NOW + 2
    woke_at = NOW + 5
    assert not silence.is_over(woke_at)
    assert over_at(silence) == woke_at + 5
