"""What the master does with browsers' priorities where nobody has to change them any more: real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from pwgrid.common.selectors_loop import Loop
from pwgrid.common.types import Isolation
from pwgrid.master import processor_watch
from pwgrid.master.processor_readings import may_restore_nice, nice_of, usual_nice
from pwgrid.master.processor_watch import ProcessorWatch
from pwgrid.runtime.browser_process_tree import Table

SOON_S = 0.01
NODE = 1_000_000
"""No process has this pid."""


@pytest.fixture
def browser() -> Iterator[psutil.Process]:
    """What a browser server has started, with a lower priority."""
    with subprocess.Popen(["sleep", "60"]) as popen:
        os.setpriority(os.PRIO_PROCESS, popen.pid, usual_nice() + 5)
        yield psutil.Process(popen.pid)
        popen.kill()


class Master:
    """Looks at this browser, a single time."""

    def __init__(self, browser: psutil.Process, processor_shares: str) -> None:
        life, pool = (
            SimpleNamespace(has_process=True),
            SimpleNamespace(settings=SimpleNamespace(isolation=Isolation.BROWSER)),
        )
        self.worker = SimpleNamespace(worker_id="w", life=life, pool=pool, launched={"nodePid": NODE})
        self.worker.lowered_browsers = frozenset()
        self.by_id = {"w": self.worker}
        self.table = Table({browser.pid: browser}, {NODE: [browser]})
        self.looks = 0
        config = SimpleNamespace(settings=SimpleNamespace(processor_shares=processor_shares))
        self.loop = Loop()
        self.processors = ProcessorWatch(self.loop, cast("Any", config), cast("Any", self))

    def learn_trees(self) -> Table:
        self.looks += 1
        return self.table

    def look(self) -> None:
        self.loop.wait()
        while not self.loop.has_fired:
            self.loop.wait()


@pytest.mark.parametrize(("setting", "by_sessions"), [("off", False), ("auto", True)])
@pytest.mark.parametrize("may_restore", [True, False])
def test_a_lower_priority_is_restored_once_where_nobody_is_to_have_one(
    monkeypatch: pytest.MonkeyPatch, browser: psutil.Process, setting: str, by_sessions: bool, may_restore: bool
) -> None:
    if may_restore and not may_restore_nice():
        pytest.skip("this process may not restore a priority")
    monkeypatch.setattr(processor_watch, "LOOK_S", SOON_S)
    monkeypatch.setattr(processor_watch, "OTHERWISE_S", SOON_S)
    monkeypatch.setattr(processor_watch, "is_shared_by_sessions", lambda: by_sessions)
    monkeypatch.setattr(processor_watch, "may_restore_nice", lambda: may_restore)
    master = Master(browser, setting)
    for _ in range(3):
        master.look()
    assert nice_of(browser) == usual_nice() + (0 if may_restore else 5)
    assert master.looks == 1
    assert master.worker.lowered_browsers == (frozenset() if may_restore else {browser})


def test_a_worker_is_told_which_of_its_browsers_have_a_lower_priority_now(
    monkeypatch: pytest.MonkeyPatch, browser: psutil.Process
) -> None:
    monkeypatch.setattr(processor_watch, "LOOK_S", SOON_S)
    monkeypatch.setattr(processor_watch, "is_shared_by_sessions", lambda: False)
    monkeypatch.setattr(processor_watch, "may_restore_nice", lambda: False)
    master = Master(browser, "auto")
    while not master.worker.lowered_browsers:
        master.look()
    assert master.worker.lowered_browsers == {browser}
    master.table = Table({}, {})
    while master.worker.lowered_browsers:  # it has ended
        master.look()


def test_while_nothing_waits_for_a_processor_nobody_looks_at_browsers(
    monkeypatch: pytest.MonkeyPatch, browser: psutil.Process
) -> None:
    monkeypatch.setattr(processor_watch, "LOOK_S", SOON_S)
    monkeypatch.setattr(processor_watch, "is_shared_by_sessions", lambda: False)
    monkeypatch.setattr(processor_watch, "short_of_cpu_s", lambda: 7.0)
    monkeypatch.setattr(processor_watch, "usual_nice", lambda: nice_of(browser))
    master = Master(browser, "auto")
    for _ in range(9):
        master.look()
    assert master.looks == 2  # a master does not know at first whether another one has lowered a priority


def test_a_kernel_that_does_not_tell_of_waiting_is_no_reason_not_to_look(
    monkeypatch: pytest.MonkeyPatch, browser: psutil.Process
) -> None:
    monkeypatch.setattr(processor_watch, "LOOK_S", SOON_S)
    monkeypatch.setattr(processor_watch, "is_shared_by_sessions", lambda: False)
    monkeypatch.setattr(processor_watch, "short_of_cpu_s", lambda: None)
    master = Master(browser, "auto")
    for _ in range(9):
        master.look()
    assert master.looks >= 9  # more if one of them was late
