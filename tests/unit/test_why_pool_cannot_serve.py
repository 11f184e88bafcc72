"""Why no worker of a pool could be chosen: word by word what an operator reads."""

from dataclasses import replace

import pytest

from pwgrid.proxy.policy.why_pool_cannot_serve import Candidate, why_cannot_serve

RULE = {"max_lifetime": 50, "stale_s": 30.0}
GOOD = Candidate("available", beat_age_s=30, lifetime=49)


def test_one_that_can_be_chosen_is_enough() -> None:
    assert why_cannot_serve("chromium", [replace(GOOD, lifetime=50), GOOD], **RULE) is None


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        ([], "none is registered"),
        ([replace(GOOD, status="draining")], "1 draining"),
        ([replace(GOOD, status="spare"), replace(GOOD, status="")], "1 spare, 1 without a status"),
        ([replace(GOOD, beat_age_s=31)], "1 without a heartbeat for over 30 s"),
        (
            [replace(GOOD, lifetime=50), replace(GOOD, lifetime=1_000_000)],
            "2 used up (cluster:lifetime_connections says 50 sessions or more)",
        ),
        ([replace(GOOD, has_endpoint=False)], "1 without an endpoint"),
    ],
)
def test_else_each_obstacle_is_named_and_counted(workers: list[Candidate], why: str) -> None:
    assert why_cannot_serve("firefox", workers, **RULE) == f"no firefox worker can be chosen: in Redis {why}"
