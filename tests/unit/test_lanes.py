"""How the files of tests are shared out: who gets which, and that none is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.support.xdist_lanes import MOSTLY_WAIT, UNDER_LOAD, Lanes, scheduler

ROOT = Path(__file__).resolve().parents[2]
WAITING, BUSY = MOSTLY_WAIT[:3], tuple(f"tests/unit/test_{number}.py" for number in range(4))


@dataclass(eq=False)
class Process:
    """A process of xdist, as its scheduler sees it."""

    number: int
    asked: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=f"gw{self.number}")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.asked += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def config(processes: int, dist: str = "loadfile") -> Any:
    values = {"tx": ["popen"] * processes, "dist": dist}
    return SimpleNamespace(getvalue=values.__getitem__, option=SimpleNamespace(loadscopereorder=False, tx=values["tx"]))


def run(files: tuple[str, ...], order: tuple[int, ...]) -> list[set[str]]:
    """The files of each process; they do all of their work one after the other, in this order."""
    collection = [f"{name}::test_{number}" for name in files for number in range(3)]
    lanes, processes = Lanes(config(len(order))), [Process(number) for number in range(len(order))]
    for process in processes:
        lanes.add_node(cast(Any, process))
        lanes.add_node_collection(cast(Any, process), collection)
    lanes.schedule()
    for process in (processes[number] for number in order):
        for index in process.asked:  # which grows meanwhile
            lanes.mark_test_complete(cast(Any, process), index)
    assert all(process.shutting_down for process in processes)
    assert not lanes.has_pending
    assert sorted(index for process in processes for index in process.asked) == list(range(len(collection)))
    return [{collection[index].partition("::")[0] for index in process.asked} for process in processes]


def test_the_files_that_are_named_are_there() -> None:
    assert [name for name in (*MOSTLY_WAIT, *UNDER_LOAD) if not (ROOT / name).is_file()] == []
    assert not {*MOSTLY_WAIT} & {*UNDER_LOAD}


def test_no_two_files_that_kill_processes_under_load_run_at_once() -> None:
    for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
        shares = run((*UNDER_LOAD, *BUSY, *WAITING), order)
        assert [{*UNDER_LOAD} & share for share in shares] == [{*UNDER_LOAD}, set(), set(), set()]


def test_all_but_two_processes_begin_with_what_waits() -> None:
    assert run((*BUSY, *WAITING), (2, 0, 1))[2] >= {*WAITING}
    assert run((*BUSY[:2], *WAITING), (2, 0, 1)) == [{BUSY[0]}, {BUSY[1]}, {*WAITING}]
    assert set().union(*run((*BUSY, *WAITING), (3, 2, 1, 0))[2:]) >= {*WAITING}


def test_the_others_begin_with_what_does_not() -> None:
    first, second, last = run((*BUSY, *WAITING, *MOSTLY_WAIT[3:6]), (0, 1, 2))
    assert first > {*MOSTLY_WAIT[3:6]}
    assert first | second >= {*BUSY}
    assert last == {MOSTLY_WAIT[0]}


def test_who_has_nothing_of_its_own_kind_left_takes_the_other() -> None:
    assert all(run(BUSY, (0, 1, 2)))
    assert all(run(MOSTLY_WAIT[:4], (0, 1, 2)))


def test_two_processes_or_another_way_to_share_are_left_to_xdist() -> None:
    assert scheduler(config(2), cast(Any, None)) is None
    assert scheduler(config(3, "load"), cast(Any, None)) is None
    assert scheduler(config(3), cast(Any, None)) is not None
