"""SIGKILL to everything at once: the next start finds what is left of it, removes that, and nothing else."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
from playwright.async_api import Playwright

from tests.support.grid import Grid, eventually, processes_marked
from tests.support.kill_table_row import row
from tests.support.redis import RedisServer


@contextlib.contextmanager
def a_stranger(directory: Path, grid: Grid) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives in a directory next to the grid's, as the browser of another grid would."""
    (directory / "tmp").mkdir(parents=True)
    environment = {**grid.environment, "TMPDIR": str(directory / "tmp")}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
    (directory / "tmp").rmdir()
    directory.rmdir()


def browsers(grid: Grid) -> list[psutil.Process]:
    """The browsers' main processes."""
    return [
        browser
        for worker in grid.status()["workers"]
        for browser in psutil.Process(worker["nodePid"]).children()
        if "--type=" not in " ".join(browser.cmdline())
    ]


def whole_trees(grid: Grid) -> list[psutil.Process]:
    """Every process of the grid."""
    tops = [psutil.Process(pid) for pid in (grid.process.pid, *grid.processes())]
    return list({each.pid: each for top in tops for each in (top, *top.children(recursive=True))}.values())


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone; as an orphan it may be a zombie until init comes to it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_after_the_death_of_everything_a_new_grid_starts_clean(
    playwright: Playwright, own_redis: RedisServer
) -> None:
    environment = {"REDIS_URL": own_redis.url, "HEARTBEAT_INTERVAL": "1"}
    # Redis lives on, and with it the records of workers and sessions that do not.
    async with row(playwright, environment=environment) as (grid, load):
        old = {worker["id"] for worker in grid.status()["workers"]}
        orphan, *_ = browsers(grid)
        dying = [each for each in whole_trees(grid) if each.pid != orphan.pid]
        grid.redis("SET", "somebody:else", "kept")
        neighbour = grid.runtime.with_name(f"{grid.port}0")  # whose name begins like the grid's
        with a_stranger(neighbour, grid) as stranger:
            os.kill(orphan.pid, signal.SIGSTOP)  # else it would see that Node is gone, and end itself
            for process in dying:
                with contextlib.suppress(psutil.NoSuchProcess):  # it went with one before it
                    process.kill()
            await asyncio.to_thread(grid.process.wait)
            await load.all_lost()
            # What is left for the next one: an orphan, sockets, directories, records.
            eventually(lambda: orphan.ppid() not in {each.pid for each in dying}, "it is an orphan")
            assert {path.name for path in (grid.runtime / "w").iterdir()} == old
            assert (grid.runtime / "control.sock").exists()
            assert grid.active() >= len(load.clicks)
            assert len(grid.redis("KEYS", "session:*")) >= len(load.clicks)

            await asyncio.to_thread(grid.start_again)
            load.refused.clear()  # nobody listened
            await load.goes_on()
            assert load.refused == []

            assert has_ended(orphan)
            new = {worker["id"] for worker in grid.status()["workers"]}
            assert len(new) == 2
            assert not new & old
            assert {path.name for path in (grid.runtime / "w").iterdir()} == new
            eventually(lambda: {key.decode()[-8:] for key in grid.redis("KEYS", "worker:*")} == new, "no stale records")
            assert stranger.poll() is None
            assert neighbour.is_dir()
            assert grid.redis("GET", "somebody:else") == b"kept"
        assert processes_marked(str(neighbour)) == {}
