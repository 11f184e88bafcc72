"""What a stop says, from the workers' figures and the time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from pwgrid.master.reports import StopReport


def worker(active: int, *, until: float = 130.0, told: bool = True) -> Any:
    return SimpleNamespace(active=active, has_told_drain=told, life=SimpleNamespace(sessions_until=until))


def test_it_waits_a_moment_for_the_workers_own_figures() -> None:
    said: list[str] = []
    report = StopReport(said.append, None)
    assert report.tell([worker(1, told=False), worker(1)], 100.0, 30.0, hurried=False) == 101.0
    assert said == []
    assert report.tell([worker(2), worker(1)], 100.2, 30.0, hurried=False) == math.inf
    assert said == ["stopping: 3 live sessions may go on for 30 s; Ctrl-C again (or SIGTERM) ends them now"]
    report.tell([worker(2)], 100.3, 30.0, hurried=False)
    assert len(said) == 1


def test_a_worker_that_does_not_answer_is_not_waited_for() -> None:
    said: list[str] = []
    report = StopReport(said.append, None)
    report.tell([worker(4, told=False)], 100.0, 30.0, hurried=False)
    report.tell([worker(4, told=False)], 101.0, 30.0, hurried=False)
    assert said[0].startswith("stopping: 4 live sessions may go on")


def test_it_counts_down_to_the_last_session_s_deadline_once_a_second() -> None:
    said: list[str] = []
    counted: list[str] = []
    report = StopReport(said.append, counted.append)
    busy = [worker(1, until=130.0), worker(1, until=125.0), worker(0, until=999.0)]
    assert report.tell(busy, 100.0, 30.0, hurried=False) == 101.0
    report.tell(busy, 100.5, 30.0, hurried=False)
    report.tell(busy[1:], 101.0, 30.0, hurried=False)
    assert counted == [
        "stopping: 2 live sessions, 30 s left, Ctrl-C ends them now",
        "stopping: 1 live session, 24 s left, Ctrl-C ends them now",
    ]
    assert report.tell([worker(0)], 102.0, 30.0, hurried=False) == math.inf


def test_a_second_signal_is_told_once_and_ends_the_countdown() -> None:
    said: list[str] = []
    counted: list[str] = []
    report = StopReport(said.append, counted.append)
    for now in (100.0, 101.0):
        assert report.tell([worker(2, told=False)], now, 30.0, hurried=True) == math.inf
    assert (said, counted) == (["stopping: ending 2 live sessions now"], [])


def test_without_sessions_there_is_nothing_to_wait_for() -> None:
    said: list[str] = []
    assert StopReport(said.append, said.append).tell([worker(0)], 100.0, 30.0, hurried=False) == math.inf
    assert said == ["stopping: no live session"]
