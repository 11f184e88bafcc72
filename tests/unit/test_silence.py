"""Whether a peer that says nothing is gone, in time that the test makes."""

from __future__ import annotations

import pytest

from pwgrid.control.silence import LATE_S, Silence

NOW = 1000.0


@pytest.mark.parametrize(("after_s", "is_over"), [(0.0, False), (29.9, False), (30.0, True), (30.0 + LATE_S, True)])
def test_it_is_over_once_the_limit_is(after_s: float, is_over: bool) -> None:
    assert Silence(30.0, NOW).is_over(NOW + after_s) is is_over


def test_who_is_heard_has_the_whole_time_again() -> None:
    silence = Silence(30.0, NOW)
    silence.heard(NOW + 20)
    assert silence.look_at == NOW + 50
    assert not silence.is_over(NOW + 49)
    assert silence.is_over(NOW + 50)


def test_who_looks_late_was_frozen_itself_and_gives_the_whole_time_once_more() -> None:
    silence = Silence(30.0, NOW)
    woke_at = NOW + 30 + LATE_S + 0.1
    assert not silence.is_over(woke_at)
    assert silence.look_at == woke_at + 30
    assert silence.is_over(woke_at + 30)
