"""A planned recycle cuts nobody: sessions go on in a worker that is replaced, unless somebody may not wait for them.

DRAIN_TIMEOUT is half a second here: whatever it holds for is over soon. The fake browser server stands in for
Playwright, but for the first test.
"""

import contextlib
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.async_api import Playwright

from tests.conftest import counters_are_exact, need
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.raw import goes_on, read_all, session

SHORT_S = 0.5
ENVIRONMENT = {
    "DRAIN_TIMEOUT": str(SHORT_S),
    "MAX_LIFETIME_SESSIONS": "1",
    "HEARTBEAT_INTERVAL": "0.2",  # so the worker reads at once what the selection of its last session left in Redis
    "CANARY_INTERVAL": "600",
}


def draining(grid: Grid) -> list[dict[str, Any]]:
    return [worker for worker in grid.ask("status")["workers"] if worker["status"] == "draining"]


def outlives_the_short_timeout(grid: Grid, worker_id: str) -> None:
    """Returns once the worker has beaten for much longer than DRAIN_TIMEOUT, draining all the time."""
    key = f"worker:chromium:{worker_id}"

    def beat() -> float:
        status, beat = grid.redis("HMGET", key, "status", "lastHeartbeat")
        assert status == b"draining"
        return float(beat)

    first = beat()
    eventually(lambda: beat() > first + 4 * SHORT_S, "it beats on")


@contextlib.contextmanager
def lingering(*arguments: str, **environment: str) -> Iterator[tuple[Grid, socket.socket, str]]:
    """A grid of one worker beside one that is used up and has a live session: the session, and that worker's id."""
    arguments = arguments or ("--chromium", "1")
    with running_grid(*arguments, environment=ENVIRONMENT | environment, fake=True) as grid:
        with session(grid.port) as sock:
            (worker,) = eventually(lambda: draining(grid), "it is used up")
            eventually(lambda: grid.status()["pools"][0]["available"] == 1, "another one serves")
            yield grid, sock, worker["id"]
        if grid.process.poll() is None:
            eventually(lambda: not draining(grid), "it is gone")
            counters_are_exact(grid)


def reasons(grid: Grid) -> list[str]:
    """The reasons of the sessions that failed."""
    found = json.loads(grid.command("sessions", "--json", "--status", "failed").stdout)
    return [each["reason"] for each in found]


async def test_a_session_goes_on_in_a_used_up_worker_for_longer_than_a_drain_takes(playwright: Playwright) -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment=ENVIRONMENT) as grid:
        browser = await playwright.chromium.connect(grid.endpoint)
        page = await browser.new_page()
        (worker,) = await eventually_async(lambda: draining(grid), "it is used up")
        assert worker["reason"] == "lifetime limit"
        assert worker["drainLeftS"] > 3000
        outlives_the_short_timeout(grid, worker["id"])
        assert await page.evaluate("6 * 7") == 42
        await (await playwright.chromium.connect(grid.endpoint)).close()  # others are served meanwhile
        await browser.close()
        await eventually_async(lambda: not draining(grid), "it is gone")
        assert reasons(grid) == []


def test_a_dead_worker_s_sessions_have_the_time_that_it_had() -> None:
    with lingering() as (grid, sock, worker_id):
        (before,) = draining(grid)
        os.kill(before["pid"], signal.SIGKILL)
        eventually(lambda: [each["pid"] for each in draining(grid)] not in ([], [before["pid"]]), "it is succeeded")
        (after,) = draining(grid)
        assert 3000 < after["drainLeftS"] <= before["drainLeftS"]
        outlives_the_short_timeout(grid, worker_id)
        assert goes_on(sock)


def test_another_master_knows_how_long_sessions_may_go_on() -> None:
    with lingering() as (grid, sock, worker_id):
        (before,) = draining(grid)
        grid.kill_master()
        grid.start_again()
        eventually(lambda: [each["phase"] for each in draining(grid)] == ["running"], "it has come back")
        (after,) = draining(grid)
        assert 3000 < after["drainLeftS"] <= before["drainLeftS"]
        outlives_the_short_timeout(grid, worker_id)
        assert goes_on(sock)


def test_an_operator_does_not_wait_for_a_worker_that_lingers() -> None:
    with lingering() as (grid, sock, worker_id):
        done = grid.command("drain", worker_id, "--wait")
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1] == f"{worker_id}: gone, 1 session cut: its time ran out"
        assert b"an operator drained its worker and DRAIN_TIMEOUT=0.5 s was over" in read_all(sock)
        assert len(reasons(grid)) == 1


def test_the_end_of_the_grid_does_not_wait_for_a_worker_that_lingers() -> None:
    with lingering() as (grid, sock, _):
        grid.process.send_signal(signal.SIGTERM)
        assert b"the grid was stopping and DRAIN_TIMEOUT=0.5 s was over" in read_all(sock)
        assert grid.process.wait(40) == 0
        assert re.search(r"sessions_cut .*reason=shutdown", grid.output())


def test_on_a_host_that_is_short_of_memory_a_worker_that_lingers_has_less_time() -> None:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        file = Path(directory) / "grid.toml"
        file.write_text("[workers]\nchromium_workers = 1\n")
        with lingering("--config", str(file), MEMORY_CHECK_INTERVAL="0.2") as (grid, sock, worker_id):
            file.write_text("[workers]\nchromium_workers = 1\n[memory]\nmin_host_available_mib = 10000000\n")
            assert grid.command("reload").returncode == 0
            assert b"its worker was being replaced and DRAIN_TIMEOUT=0.5 s was over" in read_all(sock)
            assert re.search(r"sessions_cut .*reason='the host is short of memory'", grid.output())
            file.write_text("[workers]\nchromium_workers = 1\n")
            assert grid.command("reload").returncode == 0
            eventually(lambda: worker_id not in {each["id"] for each in draining(grid)}, "it is gone")
            eventually(lambda: grid.status()["pools"][0]["available"] == 1, "one serves again")


def test_having_fewer_workers_cuts_nobody() -> None:
    one_each = ENVIRONMENT | WITHOUT_SPARES | {"MAX_CONCURRENT_SESSIONS": "1"}
    with running_grid("--chromium", "2", environment=one_each, fake=True) as grid:
        with session(grid.port) as one, session(grid.port) as other:
            assert grid.command("scale", "chromium=1").returncode == 0
            (worker,) = eventually(lambda: draining(grid), "one drains")
            assert worker["reason"] == "scaled down"
            outlives_the_short_timeout(grid, worker["id"])
            assert goes_on(one)
            assert goes_on(other)
        eventually(lambda: not draining(grid), "it is gone")
