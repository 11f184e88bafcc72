"""A full disk below the runtime directory: sessions go on, new ones come, status says what is wrong."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Playwright

from pwgrid.registry.session_update import SessionUpdate
from pwgrid.registry.spool import write_spool_file
from tests.support import disk
from tests.support.disk import fill
from tests.support.grid import ROOT, WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.kill_table_row import comes_out_exact, failures, row
from tests.support.raw import goes_on, session


@pytest.fixture
def small_disk() -> Iterator[Path]:
    try:
        with disk.small_disk() as directory:
            yield directory
    except disk.NoDiskError as reason:
        pytest.skip(f"no small file system can be mounted here: {reason}")


async def test_a_full_disk_costs_no_session_and_refuses_nobody(small_disk: Path, playwright: Playwright) -> None:
    async with row(playwright, environment={"PWGRID_RUNTIME_DIR": str(small_disk)}) as (grid, load):
        assert grid.status()["problems"] == []
        filler = fill(small_disk)
        await load.goes_on(beats=8, connects=5)
        (problem,) = grid.status()["problems"]
        assert f"only 0 MiB are left for the runtime directory {small_disk}" in problem
        # A session that ends meanwhile may give the room of its files back: then the disk is filled again.
        await eventually_async(
            lambda: fill(small_disk) and "PROBLEM: only 0 MiB" in grid.command("status").stdout, "the command says so"
        )
        filler.unlink()
        await load.goes_on()
        assert grid.status()["problems"] == []
        assert (load.lost, load.refused) == ({}, [])
        await load.ends()
        assert failures(grid) == {}


def workers_of(grid: Grid) -> dict[str, str]:
    return {worker["id"]: worker["status"] for worker in grid.status()["workers"]}


# No browser starts without room for its profile, so the fake browser server shows what the grid itself does meanwhile.
def test_on_a_full_disk_a_killed_worker_is_succeeded_and_replaced(small_disk: Path) -> None:
    environment = {**WITHOUT_SPARES, "PWGRID_RUNTIME_DIR": str(small_disk)}
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid, comes_out_exact(grid):
        with session(grid.port) as before:
            filler = fill(small_disk)
            assert grid.status()["problems"]
            assert goes_on(before)
            with session(grid.port) as after:
                assert goes_on(after)
                busy = next(worker for worker in grid.status()["workers"] if worker["active"])
                os.kill(busy["pid"], signal.SIGKILL)
                eventually(
                    lambda: busy["pid"] not in {worker["pid"] for worker in grid.status()["workers"]}, "it is succeeded"
                )
                assert goes_on(before)
                assert goes_on(after)
                with session(grid.port) as another:
                    assert goes_on(another)
            fill(small_disk)  # the dead one has left some room
            grid.ask("drain", {"all": True})
            eventually(lambda: "child_file_not_written" in grid.output(), "there is no room to write who is there")
            filler.unlink()
        eventually(lambda: list(workers_of(grid).values()) == ["available"] * 2, "it is complete", 60)
        assert grid.status()["problems"] == []
        eventually(
            lambda: {file.parent.name for file in grid.runtime.glob("w/*/worker.json")} == set(workers_of(grid)),
            "the next master would know all of them",
        )


def test_what_finds_no_room_gives_back_what_it_took(small_disk: Path) -> None:
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - 3 * 4096)  # some room, and not enough
    before = os.statvfs(small_disk).f_bfree
    assert before > 0
    entries = [SessionUpdate(f"{number:016x}") for number in range(10_000)]
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            write_spool_file(small_disk, "chromium", "0000000a", entries)
        assert list((small_disk / "unwritten").iterdir()) == []
        (small_disk / "unwritten").rmdir()
        assert os.statvfs(small_disk).f_bfree == before


def test_a_full_disk_at_the_start_is_told_in_a_sentence_and_nothing_of_it_stays(small_disk: Path) -> None:
    fill(small_disk)
    environment = {**os.environ, "PWGRID_RUNTIME_DIR": str(small_disk / "grids")}
    command = [sys.executable, "-m", "pwgrid", "serve", "--port", "0", "--chromium", "1"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert re.search(rf"cannot write into the runtime directory {small_disk}/grids/\d+: No space left", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (small_disk / "grids").exists()
