"""The clean-up after ended workers, with a tree that stands in for processes that the kernel does not let end.

tests/process/test_master_unkillable.py has real ones, where the kernel's freezer can make them."""

from __future__ import annotations

import errno
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from pwgrid.common.selectors_loop import Loop
from pwgrid.master.workers import clean_up
from pwgrid.master.workers.clean_up import LONGEST_S, SHORTAGE_S, SHORTEST_S, CleanUp, pause_s
from pwgrid.runtime.browser_process_tree import Table
from pwgrid.runtime.process_identity import KILL_S

MINUTE_S, HOUR_S = 60.0, 3600.0


class Clock(Loop):
    """A loop whose time passes only when told to."""

    def __init__(self) -> None:
        self.time = 1000.0
        super().__init__()

    def now(self) -> float:  # type: ignore[override]
        return self.time

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        while not self.scheduler.empty() and self.scheduler.queue[0].time <= until:
            self.time = max(self.time, self.scheduler.queue[0].time)
            self.scheduler.run(blocking=False)
        self.time = until


class Processes:
    """Stands in for a tree of one process, and counts how often that was signalled."""

    def __init__(self) -> None:
        self.known = {psutil.Process()}
        self.live = True
        self.signals = 0

    def kill(self, _table: Table) -> int:
        self.signals += self.live
        return int(self.live)


class Runtime:
    def __init__(self) -> None:
        self.removed: list[str] = []
        self.fails = False

    def remove_worker_dir(self, worker_id: str) -> bool:
        if self.fails:
            raise OSError(errno.EMFILE, "Too many open files")
        self.removed.append(worker_id)
        return True


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clean_up, "process_table", Table)
        monkeypatch.setattr(clean_up, "is_alive", lambda _process: True)
        self.clock, self.runtime, self.over = Clock(), Runtime(), list[str]()
        stand_in: Any = self.runtime
        self.clean_up = CleanUp(self.clock, stand_in, self.over.append)

    def begin(self, worker_id: str) -> Processes:
        processes = Processes()
        stand_in: Any = processes
        self.clean_up.begin(worker_id, stand_in)
        return processes


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_pauses_grow_from_the_shortest_to_the_longest() -> None:
    assert [pause_s(lasted_s) for lasted_s in (0, 0.01, 0.3, 7, HOUR_S)] == [SHORTEST_S, SHORTEST_S, 0.3, 7, LONGEST_S]


def test_what_ends_at_once_is_cleaned_up_in_the_shortest_time(world: World) -> None:
    processes = world.begin("a")
    world.clock.advance(0)
    assert (processes.signals, world.over, world.runtime.removed) == (1, [], [])
    processes.live = False
    world.clock.advance(SHORTEST_S)
    assert (world.over, world.runtime.removed, world.clean_up.left()) == (["a"], ["a"], [])
    world.clock.advance(HOUR_S)
    assert world.over == ["a"]


def test_one_whose_directory_cannot_be_looked_at_is_not_forgotten(world: World) -> None:
    world.begin("a").live = False
    world.runtime.fails = True
    world.clock.advance(SHORTAGE_S / 2)
    world.runtime.fails = False
    world.clock.advance(SHORTAGE_S)
    assert (world.over, world.runtime.removed) == (["a"], ["a"])


def test_what_cannot_be_killed_is_given_up_once_and_tried_and_told_ever_more_rarely(world: World) -> None:
    with capture_logs() as logs:
        processes = world.begin("a")
        world.clock.advance(KILL_S)
        assert world.over == []
        world.clock.advance(KILL_S)
        assert (world.over, world.clean_up.left()) == (["a"], [psutil.Process().pid])
        at_first = processes.signals
        world.clock.advance(HOUR_S)
        assert at_first < 15
        assert 50 < processes.signals - at_first < 70
        processes.live = False
        world.clock.advance(LONGEST_S)
    assert (world.over, world.runtime.removed, world.clean_up.left()) == (["a"], ["a"], [])
    told = [each["event"] for each in logs if each["log_level"] in ("info", "error")]
    assert told == ["tree_killed", *["processes_not_killed"] * 6, "processes_ended_after_all"]


def test_one_that_cannot_be_killed_keeps_no_other_waiting(world: World) -> None:
    world.begin("stuck")
    world.clock.advance(HOUR_S)
    other = world.begin("other")
    world.clock.advance(0)
    other.live = False
    world.clock.advance(SHORTEST_S)
    assert world.over == ["stuck", "other"]
