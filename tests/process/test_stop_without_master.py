"""`pwgrid stop` of a grid without a master: which signals its children get, and in which order."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from pwgrid.cli import stop
from pwgrid.cli.stop import stop_without_master
from pwgrid.runtime.child_files import ChildState
from pwgrid.runtime.directory import LockContent
from pwgrid.runtime.find_grids import GridWithoutMaster

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
OBEDIENT = "print(flush=True); input()"


@contextlib.contextmanager
def left_with(*programs: str) -> Iterator[tuple[GridWithoutMaster, list[int]]]:
    """A grid whose workers run these programs, beside a Redis; and their pids."""
    with contextlib.ExitStack() as stack:
        children, pids = [], []
        for kind, program in (("redis", STUBBORN), *(("worker", program) for program in programs)):
            command = (sys.executable, "-c", program)
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            children.append(SimpleNamespace(kind=kind, pid=process.pid, process=psutil.Process(process.pid)))
            pids += [process.pid] * (kind == "worker")
        lock = LockContent(1, 0.0, "")
        yield GridWithoutMaster(Path("/nonexistent"), 8080, lock, cast(tuple[ChildState, ...], tuple(children))), pids


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids of the processes that have got a SIGTERM, one after the other."""
    pids: list[int] = []

    def send(pidfd: int, signum: int, *rest: Any) -> None:
        assert signum == signal.SIGTERM
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
        pids.append(next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))
        really_send(pidfd, signum, *rest)

    really_send = signal.pidfd_send_signal
    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    return pids


def test_all_children_are_asked_before_any_is_asked_again(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "SECOND_SIGNAL_AFTER_S", 0.001)
    with left_with(STUBBORN, STUBBORN, STUBBORN) as (grid, pids):
        stop_without_master(grid, now=True)
        assert sorted(sent[:3]) == sorted(sent[3:]) == sorted(pids)


def test_who_ends_at_once_is_not_asked_again_and_nobody_waits_for_longer(
    sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "SECOND_SIGNAL_AFTER_S", 1000.0)
    with left_with(OBEDIENT, OBEDIENT) as (grid, pids):
        stop_without_master(grid, now=True)
        assert sorted(sent) == sorted(pids)


def test_a_stop_that_may_take_its_time_asks_once(sent: list[int]) -> None:
    with left_with(STUBBORN, OBEDIENT) as (grid, pids):
        stop_without_master(grid, now=False)
        assert sorted(sent) == sorted(pids)


def test_a_child_that_ends_while_it_is_looked_at_keeps_no_other_from_being_asked(sent: list[int]) -> None:
    class Going:
        kind, pid = "worker", 0

        def __init__(self, process: psutil.Process) -> None:
            self.looks = [process]

        @property
        def process(self) -> psutil.Process | None:
            return self.looks.pop() if self.looks else None

    with left_with(OBEDIENT, OBEDIENT) as (grid, pids):
        redis, going, stays = grid.children
        assert going.process is not None
        children = cast(tuple[ChildState, ...], (redis, Going(going.process), stays))
        stop_without_master(replace(grid, children=children), now=False)
        assert sorted(sent) == sorted(pids)
