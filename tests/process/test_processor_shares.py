"""A browser that takes more than its share of the processors, in a cgroup in which the kernel does not divide them by
browsers: real Chromium."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from pwgrid.master.processor_readings import may_restore_nice
from tests.support.grid import ROOT, Grid, eventually, running_grid
from tests.support.processor_group import inside, processor_group

USUAL = os.getpriority(os.PRIO_PROCESS, 0)
BURN = "() => { self.burning = Array.from({ length: 16 }, () => new Worker('data:text/javascript,for (;;);')); }"
REST = "() => { for (const each of self.burning) each.terminate(); }"
COMPUTE = """() => {
    self.computes = setInterval(() => { for (const end = performance.now() + 50; performance.now() < end;); }, 0);
}"""
COMPUTE_NO_MORE = "() => clearInterval(self.computes)"


@pytest.fixture
def group() -> Iterator[Path]:
    with processor_group() as group:
        yield group


@pytest.fixture
def grid(group: Path) -> Iterator[Grid]:
    """All of it in a cgroup for processors, which can be removed when nothing is left in it."""
    with contextlib.ExitStack() as stack:
        with inside(group):
            grid = stack.enter_context(running_grid("--chromium", "1", environment={"ISOLATION": "browser"}))
        yield grid


def connected(browser: Browser) -> tuple[Page, int]:
    """A page, and the pid of the browser that has it."""
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return browser.new_page(), next(each["id"] for each in found if each["type"] == "browser")


def lowered(grid: Grid) -> float:
    """How many browsers have a lower priority, by the metrics."""
    counts = re.findall(r"^pwgrid_browsers_lowered\{.*\} (\S+)$", grid.get("/metrics")[2].decode(), re.MULTILINE)
    assert counts
    return sum(map(float, counts))


def nices(*pids: int) -> set[int]:
    """Of all threads of these processes and of those below them."""
    found = set()
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            try:
                found |= {os.getpriority(os.PRIO_PROCESS, each.id) for each in process.threads()}
            except (psutil.Error, ProcessLookupError):  # it has ended meanwhile
                continue
    return found


def test_who_takes_more_than_its_share_gets_a_lower_priority_while_it_does_and_nobody_else(
    grid: Grid, group: Path
) -> None:
    with sync_playwright() as playwright:
        clients = [playwright.chromium.connect(grid.endpoint) for _ in range(2)]
        (hostile, of_hostile), (mine, of_mine) = map(connected, clients)
        assert nices(of_hostile, of_mine) == {USUAL}
        hostile.evaluate(BURN)
        mine.evaluate(COMPUTE)
        eventually(lambda: min(nices(of_hostile)) >= USUAL + 5, "all threads of the hostile one have a lower priority")
        eventually(lambda: lowered(grid) == 1, "the metrics count it")
        clients[0].new_context().new_page()
        eventually(lambda: min(nices(of_hostile)) >= USUAL + 5, "what it starts later has it, too")

        of_browsers = {each.pid for pid in (of_hostile, of_mine) for each in psutil.Process(pid).children(True)}
        of_grid = grid.processes().keys() - of_browsers - {of_hostile, of_mine}
        assert len(of_grid) >= 5  # master, proxy, worker, Node, Redis
        assert nices(of_mine) == {USUAL}
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in of_grid} == {USUAL}

        grid.kill_master()
        hostile.evaluate(REST)
        mine.evaluate(COMPUTE_NO_MORE)
        assert min(nices(of_hostile)) > USUAL
        with inside(group):
            grid.start_again()  # the next one knows it, too
        if may_restore_nice():
            eventually(lambda: nices(of_hostile) == {USUAL}, "it has its own priority back")
            eventually(lambda: lowered(grid) == 0, "nobody has a lower one any more")
        for client in clients:
            client.close()


KERNEL_SAYS = """
import os, signal, subprocess, sys
from pwgrid.master.processor_readings import may_restore_nice, usual_nice
child = subprocess.Popen(["sleep", "60"])
os.setpriority(os.PRIO_PROCESS, child.pid, usual_nice() + 5)
try:
    os.setpriority(os.PRIO_PROCESS, child.pid, usual_nice())
    can = True
except PermissionError:
    can = False
child.kill()
child.wait()
print(can, may_restore_nice())
"""
WITHOUT_RIGHT = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")


@pytest.mark.parametrize(
    ("under", "expected"),
    [
        ((), None),
        (WITHOUT_RIGHT, "False False"),
        ((*WITHOUT_RIGHT, "prlimit", "--nice=20"), "True True"),
        ((*WITHOUT_RIGHT, "prlimit", "--nice=19"), "False False"),
        ((*WITHOUT_RIGHT, "prlimit", "--nice=16", "nice", "-n", "4"), "True True"),
        (("unshare", "--user", "--map-root-user"), "False False"),
    ],
)
def test_whether_a_priority_can_be_restored_is_what_the_kernel_says(
    under: tuple[str, ...], expected: str | None
) -> None:
    """Each time the kernel's answer comes first, then that of pwgrid."""
    if under and (os.geteuid() != 0 or USUAL != 0 or not all(map(shutil.which, ("setpriv", "prlimit", "unshare")))):
        pytest.skip("only root can give up this right alone")
    command = [*under, sys.executable, "-c", KERNEL_SAYS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if under and ended.returncode and not ended.stdout:
        pytest.skip(f"not allowed here: {ended.stderr}")
    assert ended.stdout.strip() in ({"True True", "False False"} if expected is None else {expected}), ended.stderr
