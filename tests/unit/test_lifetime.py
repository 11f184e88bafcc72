"""When a worker has served enough."""

import pytest

from grid.core.lifetime import is_nearly_used_up, is_used_up


@pytest.mark.parametrize(("lifetime", "used_up"), [(0, False), (9, False), (10, True), (11, True)])
def test_a_worker_is_used_up_at_its_limit(lifetime: int, used_up: bool) -> None:
    assert is_used_up(lifetime, 10) is used_up


@pytest.mark.parametrize(
    ("max_lifetime", "slots", "first"), [(50, 5, 45), (10, 5, 8), (10, 1, 9), (3, 5, 2), (1, 5, 0), (1000, 5, 995)]
)
def test_the_replacement_starts_a_few_sessions_ahead(max_lifetime: int, slots: int, first: int) -> None:
    near = [lifetime for lifetime in range(max_lifetime + 1) if is_nearly_used_up(lifetime, max_lifetime, slots)]
    assert near[0] == first
