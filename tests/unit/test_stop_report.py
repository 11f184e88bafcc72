"""What a stop says, from the workers' figures and the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pwgrid.master.reports import Reports

ASKED_AT = 100.0


def worker(active: int, *, until: float = 130.0, told: bool = True) -> Any:
    return SimpleNamespace(active=active, has_told_drain=told, life=SimpleNamespace(sessions_until=until))


class Stop:
    """A grid that stops, with 30 s for its sessions. `said` has the lines that stay."""

    def __init__(self, count_down: Callable[[str], None] | None = None) -> None:
        self.said: list[str] = []
        self.forwarded: list[str] = []
        self._workers = SimpleNamespace(by_id={})
        self._shutdown = SimpleNamespace(is_hurried=False, asked_at=ASKED_AT)
        config = SimpleNamespace(
            settings=SimpleNamespace(drain_timeout=30.0),
            messages=SimpleNamespace(stopping=self.said.append, count_down=count_down),
            kept_open=None,
            leftovers=SimpleNamespace(workers=[]),
        )
        services = SimpleNamespace(proxies=None, forwarder=SimpleNamespace(parked=self.forwarded), tls=None, redis=None)
        stand_ins: Any = (config, self._workers, services, None, self._shutdown)
        self._reports = Reports(*stand_ins)

    def tell(self, records: list[Any], now: float, *, hurried: bool = False) -> float:
        self._workers.by_id, self._shutdown.is_hurried = dict(enumerate(records)), hurried
        return self._reports.tell_stop(now)


def test_it_waits_a_moment_for_the_workers_own_figures() -> None:
    stop = Stop()
    assert stop.tell([worker(1, told=False), worker(1)], 100.0) == 101.0
    assert stop.said == []
    assert stop.tell([worker(2), worker(1)], 100.2) == math.inf
    assert stop.said == ["stopping: 3 live sessions may go on for 30 s; Ctrl-C again (or SIGTERM) ends them now"]
    stop.tell([worker(2)], 100.3)
    assert len(stop.said) == 1


def test_a_worker_that_does_not_answer_is_not_waited_for() -> None:
    stop = Stop()
    stop.tell([worker(4, told=False)], 100.0)
    stop.tell([worker(4, told=False)], 101.0)
    assert stop.said[0].startswith("stopping: 4 live sessions may go on")


def test_it_counts_down_to_the_last_session_s_deadline_once_a_second() -> None:
    counted: list[str] = []
    stop = Stop(counted.append)
    busy = [worker(1, until=130.0), worker(1, until=125.0), worker(0, until=999.0)]
    assert stop.tell(busy, 100.0) == 101.0
    stop.tell(busy, 100.5)
    stop.tell(busy[1:], 101.0)
    assert counted == [
        "stopping: 2 live sessions, 30 s left, Ctrl-C ends them now",
        "stopping: 1 live session, 24 s left, Ctrl-C ends them now",
    ]
    assert stop.tell([worker(0)], 102.0) == math.inf


def test_a_second_signal_is_told_once_and_ends_the_countdown() -> None:
    counted: list[str] = []
    stop = Stop(counted.append)
    for now in (100.0, 101.0):
        assert stop.tell([worker(2, told=False)], now, hurried=True) == math.inf
    assert (stop.said, counted) == (["stopping: ending 2 live sessions now"], [])


def test_without_sessions_there_is_nothing_to_wait_for() -> None:
    counted: list[str] = []
    stop = Stop(counted.append)
    assert stop.tell([worker(0)], 100.0) == math.inf
    assert (stop.said, counted) == (["stopping: no live session"], [])


def test_sessions_that_are_forwarded_to_another_host_count_too() -> None:
    stop = Stop()
    stop.forwarded += ["a", "b"]
    stop.tell([worker(1)], 100.0)
    assert stop.said == ["stopping: 3 live sessions may go on for 30 s; Ctrl-C again (or SIGTERM) ends them now"]
