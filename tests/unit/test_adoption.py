"""What a master does with what the one before it has left. For what an adopted worker says see
test_worker_state_machine.py."""

from pwgrid.master.policy.adoption import Found, Verdict, verdicts

ADOPT, RETIRE, END, REMOVE = Verdict.ADOPT, Verdict.RETIRE, Verdict.END, Verdict.REMOVE


def found(kind: str, *, alive: bool = True, registry: str = "r", start: float = 1.0, accepts: bool = True) -> Found:
    return Found(kind, alive, registry, start, accepts)  # type: ignore[arg-type]


def test_what_lives_and_uses_the_same_redis_is_adopted() -> None:
    assert verdicts([found("worker"), found("proxy"), found("redis")], "r") == [ADOPT] * 3


def test_what_is_dead_is_removed_whatever_it_used() -> None:
    dead = [found("worker", alive=False), found("redis", alive=False, registry="other")]
    assert verdicts(dead, "r") == [REMOVE, REMOVE]


def test_what_uses_another_redis_is_ended() -> None:
    assert verdicts([found("worker", registry="other")], "r") == [END]


def test_of_several_proxies_the_newest_is_adopted_and_the_others_retire() -> None:
    proxies = [found("proxy", start=1), found("proxy", start=3), found("proxy", start=2)]
    assert verdicts(proxies, "r") == [RETIRE, ADOPT, RETIRE]


def test_a_proxy_that_retires_is_never_the_one_for_new_clients() -> None:
    proxies = [found("proxy", start=1), found("proxy", start=2, accepts=False)]
    assert verdicts(proxies, "r") == [ADOPT, RETIRE]
    assert verdicts([found("proxy", accepts=False)], "r") == [RETIRE]


def test_a_dead_proxy_does_not_count_as_the_newest() -> None:
    proxies = [found("proxy", start=1), found("proxy", start=2, alive=False)]
    assert verdicts(proxies, "r") == [ADOPT, REMOVE]


def test_a_proxy_of_another_redis_does_not_count_as_the_newest() -> None:
    proxies = [found("proxy", start=1), found("proxy", start=2, registry="other")]
    assert verdicts(proxies, "r") == [ADOPT, END]
