"""When the host guard closes, and for how many workers there is room, from literal figures."""

from __future__ import annotations

import pytest

from pwgrid.master.policy.host_memory import HostGuard, room_for


def test_the_guard_closes_below_the_floor_and_opens_well_above_it() -> None:
    guard = HostGuard(1000)
    seen = [guard.observe(mib) is not None for mib in (5000, 1000, 999, 1000, 1249, 1250, 1000, 0)]
    assert seen == [False, False, True, True, True, False, False, True]


def test_the_guards_sentence_stays_the_same_while_it_is_closed() -> None:
    guard = HostGuard(256)
    sentence = guard.observe(10)
    assert sentence == guard.observe(200) == guard.reason
    assert "256 MiB" in str(sentence)
    assert "320 MiB" in str(sentence)


def test_a_floor_of_zero_is_off() -> None:
    assert HostGuard(0).observe(0) is None


@pytest.mark.parametrize(
    ("available", "floor", "sizes", "room"),
    [(4000, 256, [300, 500, 400], 9), (4000, 0, [], 7), (200, 256, [400], 0), (4000, 256, [0], 3744)],
)
def test_the_room_is_what_fits_above_the_floor(available: int, floor: int, sizes: list[int], room: int) -> None:
    assert room_for(available, floor, sizes) == room
