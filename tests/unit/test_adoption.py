"""What a new master does with what a former one has left, and what an adopted worker's words mean."""

import itertools

import pytest

from pwgrid.common.worker_lifecycle import TRANSITIONS, WorkerEvent, WorkerStatus
from pwgrid.master.policy.adoption import (
    Adopt,
    End,
    Found,
    Remove,
    Retire,
    caught_up,
    heard_again,
    judge,
    missed_its_drain,
    written_status,
)

BEFORE_A_DRAIN = (WorkerStatus.STARTING, WorkerStatus.SPARE, WorkerStatus.AVAILABLE)


def found(kind: str, name: str, *, alive: bool = True, registry: str = "r", start: float = 1.0) -> Found:
    return Found(kind, name, alive, registry, start)  # type: ignore[arg-type]


def test_what_lives_and_uses_the_same_redis_is_adopted() -> None:
    kinds = [("worker", "a"), ("proxy", "7"), ("redis", "redis")]
    assert judge([found(*each) for each in kinds], "r") == [Adopt(*each) for each in kinds]  # type: ignore[arg-type]


def test_what_is_dead_is_removed_whatever_it_used() -> None:
    dead = [found("worker", "a", alive=False), found("redis", "redis", alive=False, registry="other")]
    assert judge(dead, "r") == [Remove("worker", "a"), Remove("redis", "redis")]


def test_what_uses_another_redis_is_ended() -> None:
    (verdict,) = judge([found("worker", "a", registry="other")], "r")
    assert isinstance(verdict, End)
    assert "another Redis" in verdict.reason


def test_of_several_proxies_the_newest_is_adopted_and_the_others_retire() -> None:
    proxies = [found("proxy", "1", start=1), found("proxy", "3", start=3), found("proxy", "2", start=2)]
    assert judge(proxies, "r") == [Retire("1"), Adopt("proxy", "3"), Retire("2")]


def test_a_dead_proxy_does_not_count_as_the_newest() -> None:
    proxies = [found("proxy", "1", start=1), found("proxy", "2", start=2, alive=False)]
    assert judge(proxies, "r") == [Adopt("proxy", "1"), Remove("proxy", "2")]


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
        ("stopped", "draining", "stopped"),
        ("lost", "available", "lost"),
        ("available", None, "available"),
        ("available", ["nonsense"], "available"),
    ],
)
def test_an_adopted_worker_is_where_it_says_it_is(was: str, told: object, now: str) -> None:
    assert caught_up(WorkerStatus(was), told) is WorkerStatus(now)


@pytest.mark.parametrize(("status", "event"), list(itertools.product(WorkerStatus, WorkerEvent)))
def test_news_move_an_adopted_worker_as_any_other_and_old_news_do_not(status: WorkerStatus, event: WorkerEvent) -> None:
    if event is WorkerEvent.STOP_ANNOUNCED and status in BEFORE_A_DRAIN:
        assert heard_again(status, event) is WorkerStatus.STOPPED
    else:
        assert heard_again(status, event) is TRANSITIONS.get((status, event), status)


@pytest.mark.parametrize(
    ("written", "told", "missed"),
    [
        ("draining", "available", True),
        ("draining", "starting", True),
        ("draining", "spare", True),
        ("draining", "draining", False),
        ("available", "available", False),
        ("stopped", "available", False),
        ("draining", None, False),
    ],
)
def test_a_drain_that_never_arrived_is_noticed(written: str, told: object, missed: bool) -> None:
    assert missed_its_drain(WorkerStatus(written), told) is missed


@pytest.mark.parametrize("written", ["draining", "stopped", "lost", "", "nonsense"])
def test_one_that_was_on_its_way_out_still_is(written: str) -> None:
    assert written_status(written) is WorkerStatus.DRAINING
