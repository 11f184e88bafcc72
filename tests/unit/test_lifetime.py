"""When a worker has served enough, and when it tells its count."""

import pytest

from pwgrid.worker.slots import Slots, should_report


@pytest.mark.parametrize(("lifetime", "used_up"), [(0, False), (9, False), (10, True), (11, True)])
async def test_a_worker_is_used_up_at_its_limit(lifetime: int, used_up: bool) -> None:
    slots = Slots(1, max_lifetime=10)
    slots.lifetime = lifetime
    assert slots.is_used_up is used_up


@pytest.mark.parametrize(
    ("max_lifetime", "told"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (50, [5, 10, 15, 20, 25, 30, 35, 40, 45, 46, 47, 48, 49, 50]),
    ],
)
def test_the_master_hears_of_each_tenth_of_a_life_and_of_each_session_near_its_end(
    max_lifetime: int, told: list[int]
) -> None:
    assert [each for each in range(1, max_lifetime + 1) if should_report(each, each - 1, max_lifetime)] == told


@pytest.mark.parametrize(("lifetime", "told", "is_worth_it"), [(12, 9, True), (14, 12, False), (45, 44, True)])
def test_a_tenth_that_several_sessions_reached_at_once_is_told_although_the_count_is_past_it(
    lifetime: int, told: int, *, is_worth_it: bool
) -> None:
    assert should_report(lifetime, told, 50) is is_worth_it
