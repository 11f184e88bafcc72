"""The tests' own entry point for grids without a browser: what it replaces stays so in every process of the grid."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, running_grid

SAY_LAUNCHERS = """
from pathlib import Path
from pwgrid.cli.ask_grid import find_grid, status
for worker in status(find_grid(None, None))["workers"]:
    command = Path(f"/proc/{worker['nodePid']}/cmdline").read_text().split("\\0")
    print(next(argument for argument in command if argument.endswith(".cjs")))
"""

FAILS = """
from tests.support.grid import RUNNING

class Frozen:
    def description(self):
        return "it is frozen"

RUNNING.append(Frozen())

def test_that_fails():
    assert not RUNNING

def test_that_passes():
    assert RUNNING
"""


def worker_after(grid: Grid, last: str = "") -> dict[str, Any]:
    """The only worker of the grid, once it is available and no longer the one of the id `last`."""

    def found() -> dict[str, Any] | None:
        workers: list[dict[str, Any]] = grid.status()["workers"]
        return (
            workers[0] if [(each["status"], each["id"] != last) for each in workers] == [("available", True)] else None
        )

    worker: dict[str, Any] = eventually(found, "one worker is available")
    return worker


def is_fake(worker: dict[str, Any]) -> bool:
    return b"fake_launcher.cjs" in Path(f"/proc/{worker['nodePid']}/cmdline").read_bytes()


def test_a_fake_grid_stays_one_when_it_executes_itself_and_when_another_master_adopts_it() -> None:
    with running_grid("--chromium", "1", environment=WITHOUT_SPARES, fake=True) as grid:
        first = worker_after(grid)
        assert is_fake(first)
        done = grid.command("upgrade", "--force")
        assert done.returncode == 0, done.stderr
        second = worker_after(grid, first["id"])
        assert is_fake(second)
        grid.kill_master()
        grid.start_again()
        assert worker_after(grid)["id"] == second["id"]
        os.kill(second["pid"], signal.SIGKILL)
        assert is_fake(worker_after(grid, second["id"]))


def test_the_private_grid_of_a_command_is_a_fake_one_too() -> None:
    run = [sys.executable, "-m", "tests.support.fake_grid", "run", "--chromium", "1", "--"]
    done = subprocess.run(
        [*run, sys.executable, "-c", SAY_LAUNCHERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [Path(line).name for line in done.stdout.split()] == ["fake_launcher.cjs"]


def test_a_grid_describes_itself_also_without_a_master() -> None:
    with running_grid("--chromium", "1", environment=WITHOUT_SPARES, fake=True) as grid:
        worker = worker_after(grid)
        description = grid.description()
        counted = f"{worker['id']}  chromium"
        record = f"worker:chromium:{worker['id']} "
        process = f"\n{worker['nodePid']} "
        for part in (counted, record, process, "worker_available"):
            assert part in description, part
        grid.process.send_signal(signal.SIGSTOP)
        try:
            frozen = grid.description()
        finally:
            grid.process.send_signal(signal.SIGCONT)
        assert "does not answer" in frozen
        assert counted not in frozen
        for part in (record, process, "worker_available"):
            assert part in frozen, part


def test_a_failed_test_shows_what_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done
    assert done.stdout.count("it is frozen") == 1
