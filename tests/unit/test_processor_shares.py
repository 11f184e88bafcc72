"""Which browsers get a lower priority, and which get it back, from literal figures."""

from __future__ import annotations

import math

import pytest

from pwgrid.master.policy.processor_shares import (
    LOOKS,
    LOOKS_FOR_GOOD,
    WEIGHT_OF_STEP,
    WORST,
    BrowserUse,
    ProcessorShares,
    fair_share,
    steps_to,
)

WAITS = 0.9
HOG = BrowserUse(1.94, 0.0)
VICTIM = BrowserUse(0.06, WAITS)
BOTH = {1: HOG, 2: VICTIM}


def shares(usual: int = 0, *, may_restore: bool = True) -> ProcessorShares:
    return ProcessorShares(usual, may_restore)


def looks(
    of: ProcessorShares, browsers: dict[int, BrowserUse], number: int, *, is_short: bool = True
) -> dict[int, int]:
    """What the last of so many looks changes; those before it change nothing."""
    for _ in range(number - 1):
        assert of.observe(browsers, is_short=is_short) == {}
    return of.observe(browsers, is_short=is_short)


@pytest.mark.parametrize(
    ("uses", "share"),
    [
        ([(1.94, 0.0), (0.06, WAITS)], 1.0),
        ([(1.94, WAITS), (0.06, WAITS)], 1.0),
        ([(1.7, 0.0), (0.1, WAITS), (0.1, 0.0), (0.1, 0.0)], 0.9),  # two want less than their share
        ([(1.2, 0.0), (0.8, 0.0)], 1.2),  # nobody waits
        ([(0.5, WAITS)] * 4, 0.5),
        ([(0.7, 0.0)] * 3, 0.7),  # 0.7 + 0.7 + 0.7 is more than 2.1 for a computer
        ([], math.inf),
    ],
)
def test_what_browsers_use_is_divided_so_that_who_waits_gets_no_less_than_another(
    uses: list[tuple[float, float]], share: float
) -> None:
    assert fair_share([BrowserUse(*each) for each in uses]) == pytest.approx(share)


def test_who_takes_more_for_some_looks_gets_a_lower_priority_and_nobody_else_does() -> None:
    assert looks(shares(), BOTH, LOOKS) == {1: 10}


def test_a_page_that_loads_for_a_moment_keeps_its_priority() -> None:
    of = shares()
    for _ in range(3):
        assert looks(of, BOTH, LOOKS - 1) == {}
        assert of.observe({1: BrowserUse(0.4, 0.0), 2: BrowserUse(0.4, WAITS)}, is_short=True) == {}


def test_a_page_may_wait_now_and_then_and_who_takes_as_much_meanwhile_is_still_the_one() -> None:
    of, idle = shares(), {1: BrowserUse(2.0, 0.0), 2: BrowserUse(0.0, 0.0)}
    for _ in range(LOOKS - 1):
        assert looks(of, BOTH, 1) == {}
        for is_short in (True, False):
            assert looks(of, idle, LOOKS, is_short=is_short) == {}
    assert looks(of, BOTH, 1) == {1: 10}


def test_who_takes_less_meanwhile_is_looked_at_from_the_beginning() -> None:
    of = shares()
    for _ in range(3):
        assert looks(of, BOTH, LOOKS - 1) == {}
        assert looks(of, {1: BrowserUse(1.0, 0.0), 2: BrowserUse(0.0, 0.0)}, 1) == {}


@pytest.mark.parametrize(
    "browsers",
    [
        {1: HOG, 2: BrowserUse(0.06, 0.1)},  # nobody waits
        {1: BrowserUse(2.0, WAITS)},  # nobody else is there
        {1: BrowserUse(1.4, 0.0), 2: BrowserUse(0.6, WAITS)},  # not so much more
        {1: BrowserUse(0.09, 0.0), 2: BrowserUse(0.001, WAITS)},  # others than browsers use the processors
        {},
    ],
)
def test_otherwise_nothing_changes(browsers: dict[int, BrowserUse]) -> None:
    assert looks(shares(), browsers, 3 * LOOKS_FOR_GOOD) == {}


def test_nothing_changes_while_nothing_waits_for_a_processor() -> None:
    assert looks(shares(), BOTH, 3 * LOOKS_FOR_GOOD, is_short=False) == {}


def test_the_priority_goes_down_as_far_as_it_takes() -> None:
    """Two processors, and as many threads of each browser as always want one: what they get goes by their weights."""
    of, nice, found = shares(), 0, []
    for _ in range(40):
        weight = 32 * WEIGHT_OF_STEP**-nice
        cores = 2 * weight / (weight + 1)
        now = {1: BrowserUse(cores, 0.0, nice), 2: BrowserUse(2 - cores, WAITS)}
        nice = of.observe(now, is_short=True).get(1, nice)
        found.append(round(cores, 1))
    assert (found[0], found[-1]) == (1.9, 0.9)
    assert found == sorted(found, reverse=True)


def test_who_has_a_lower_priority_keeps_it_while_it_takes_all_that_nobody_wants() -> None:
    of = shares()
    assert looks(of, BOTH, LOOKS) == {1: 10}
    alone = {1: BrowserUse(2.0, 0.0, 10), 2: BrowserUse(0.0, 0.0)}
    assert looks(of, alone, 3 * LOOKS) == {}
    assert looks(of, {1: BrowserUse(1.7, 0.0, 10), 2: BrowserUse(0.3, WAITS)}, 1) == {1: 18}


def test_it_goes_no_further_than_there_are_nice_values() -> None:
    of = shares()
    assert looks(of, {1: BrowserUse(1.99, 0.0, WORST - 1), 2: VICTIM}, LOOKS) == {1: WORST}
    assert of.observe({1: BrowserUse(1.99, 0.0, WORST), 2: VICTIM}, is_short=True) == {}


@pytest.mark.parametrize(("nice", "then"), [(15, 5), (3, 0)])
def test_who_takes_less_gets_its_priority_back_step_by_step(nice: int, then: int) -> None:
    now = {1: BrowserUse(0.1, 0.0, nice), 2: BrowserUse(1.0, 0.0)}
    assert looks(shares(), now, LOOKS, is_short=False) == {1: then}
    assert looks(shares(), now, LOOKS) == {1: then}


def test_who_rests_beside_others_that_rest_gets_its_priority_back_while_others_keep_the_host_busy() -> None:
    of, rests = shares(), BrowserUse(0.0, 0.0)
    assert looks(of, {1: BrowserUse(0.0, 0.0, 10), 2: rests}, LOOKS) == {1: 0}
    assert looks(shares(), {1: BrowserUse(0.02, WAITS, 10), 2: rests}, 3 * LOOKS) == {}


def test_who_gets_too_little_by_its_lower_priority_gets_some_of_it_back() -> None:
    now = {1: BrowserUse(0.6, WAITS, 15), 2: BrowserUse(1.4, WAITS)}
    assert looks(shares(), now, LOOKS) == {1: 11}


def test_who_takes_its_share_with_a_lower_priority_keeps_that() -> None:
    now = {1: BrowserUse(1.0, 0.0, 15), 2: BrowserUse(1.0, WAITS)}
    assert looks(shares(), now, 3 * LOOKS) == {}


def test_the_usual_priority_is_that_of_the_grid() -> None:
    assert looks(shares(4), {1: BrowserUse(1.94, 0.0, 4), 2: BrowserUse(0.06, WAITS, 4)}, LOOKS) == {1: 14}
    assert looks(shares(4), {1: BrowserUse(0.1, 0.0, 6)}, LOOKS, is_short=False) == {1: 4}


class TestWhereAPriorityCannotBeRestored:
    def test_it_is_lowered_after_many_looks_alone(self) -> None:
        assert looks(shares(may_restore=False), BOTH, LOOKS_FOR_GOOD) == {1: 10}

    def test_it_is_not_lowered_for_who_takes_a_bit_more(self) -> None:
        now = {1: BrowserUse(1.55, 0.0), 2: BrowserUse(0.45, WAITS)}
        assert looks(shares(may_restore=False), now, 3 * LOOKS_FOR_GOOD) == {}
        assert looks(shares(), now, LOOKS) == {1: 6}
        now = {1: BrowserUse(1.6, 0.0), 2: BrowserUse(0.4, WAITS)}
        assert looks(shares(may_restore=False), now, LOOKS_FOR_GOOD) == {1: 7}

    def test_it_is_not_restored(self) -> None:
        now = {1: BrowserUse(0.1, 0.0, 15), 2: BrowserUse(1.0, 0.0)}
        assert looks(shares(may_restore=False), now, 3 * LOOKS, is_short=False) == {}

    def test_a_browser_that_sessions_share_keeps_its_own(self) -> None:
        now = {1: BrowserUse(1.94, 0.0, is_shared=True), 2: VICTIM}
        assert looks(shares(may_restore=False), now, 3 * LOOKS_FOR_GOOD) == {}
        assert looks(shares(), now, LOOKS) == {1: 10}


@pytest.mark.parametrize(
    ("share", "cores", "capacity", "steps"),
    [(1.0, 1.94, 2.0, 10), (1.0, 1.2, 2.0, 2), (1.0, 1.01, 2.0, 1), (1.0, 0.99, 2.0, -1), (1.0, 0.0, 2.0, -10)],
)
def test_by_how_much_a_priority_changes(share: float, cores: float, capacity: float, steps: int) -> None:
    assert steps_to(share, cores, capacity) == steps
