"""What a master does with what the one before it has left. What an adopted worker says: test_worker_life.py."""

from pwgrid.master.policy.adoption import Adopt, End, Found, Remove, Retire, judge


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
