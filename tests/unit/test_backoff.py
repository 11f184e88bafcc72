"""The tally of early deaths."""

from __future__ import annotations

from dataclasses import replace

from pwgrid.master.policy.backoff import Backoff

NO_DEATHS = Backoff(first_s=0.5, cap_s=30.0, healthy_s=60.0, healthy_sessions=5)


def delays(deaths: int) -> list[float]:
    backoff, now, found = NO_DEATHS, 0.0, []
    for _ in range(deaths):
        backoff = backoff.died(now, "crashed", now)
        found.append(backoff.not_before - now)
        now = backoff.not_before + 1.0
    return found


def test_the_first_restart_is_at_once_then_the_delay_doubles_up_to_the_cap() -> None:
    assert delays(10) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_thousands_of_deaths_overflow_nothing() -> None:
    assert delays(5000)[-1] == 30.0


def test_a_long_run_clears_the_tally() -> None:
    backoff = replace(NO_DEATHS, deaths=6, died_at=0.0, not_before=16.0).died(100.0, "killed", 30.0, served_s=60.0)
    assert (backoff.deaths, backoff.not_before <= 100.0, backoff.reason) == (0, True, "killed")


def test_a_run_with_enough_sessions_clears_the_tally() -> None:
    assert replace(NO_DEATHS, deaths=6, died_at=0.0).died(100.0, "killed", 90.0, 2.0, 5).deaths == 0


def test_a_short_run_does_not_clear_the_tally() -> None:
    assert replace(NO_DEATHS, deaths=6, died_at=0.0).died(100.0, "killed", 30.0, 59.0, 4).deaths == 7


def test_siblings_that_die_together_count_once() -> None:
    backoff = NO_DEATHS.died(10.0, "first", 9.0)
    backoff = backoff.died(10.1, "second", 9.5).died(14.0, "third", 10.0)
    assert (backoff.deaths, backoff.reason) == (1, "third")
    assert backoff.died(14.0, "fourth", 10.1).deaths == 2


def test_a_healthy_run_of_another_worker_makes_it_as_new() -> None:
    assert replace(NO_DEATHS, deaths=6, not_before=90.0, reason="x").healthy() == NO_DEATHS
