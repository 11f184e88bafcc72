"""Pools that start on demand: real master, proxy and workers. Only the browser servers are fake, and the drivers of the
other versions have no code but their names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pwgrid.settings.own_playwright import own_minor
from tests.support.fake_drivers import fake_drivers
from tests.support.grid import Grid, eventually, running_grid, wait_for_end
from tests.support.raw import connect, goes_on, head

OLD, OLDER = "1.58", "1.57"
POOL = f"chromium-{OLD}"
IDLE_S = 5.0


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def grid(place: Path) -> Iterator[Grid]:
    environment = {
        "DRIVERS_DIR": str(fake_drivers(place / "drivers", f"{OLD}.0")),
        "ON_DEMAND_IDLE": str(IDLE_S),
        "MAX_CONCURRENT_SESSIONS": "2",
        "WORKER_SELECT_TIMEOUT": "30",
        "FAKE_START_HELD_BY": str(place / "held"),
        "FAKE_FAIL_START": "the browser is broken",
        "FAKE_FAIL_WHILE": str(place / "broken"),
        "FAKE_SICK_BROWSER": str(place / "sick"),
        "BROWSER_READ_PATHS": str(place),
        "CANARY_TIMEOUT": "2",
        "CANARY_INTERVAL": "10",
    }
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        yield grid


def client(stack: contextlib.ExitStack, grid: Grid, version: str, target: str = "/") -> socket.socket:
    """A client of this Playwright has asked for a browser."""
    sock = stack.enter_context(connect(grid.port))
    sock.sendall(head(target=target, User_Agent=f"Playwright/{version}.0 (x64; debian 12) node/24.0"))
    return sock


def answer(sock: socket.socket) -> str:
    sock.settimeout(60.0)
    return sock.recv(65536).decode()


def is_served(sock: socket.socket) -> bool:
    return answer(sock).startswith("HTTP/1.1 101 ") and goes_on(sock)


def pool(grid: Grid, name: str = POOL) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in grid.ask("status")["pools"] if each["name"] == name)
    return found


def workers(grid: Grid) -> list[dict[str, Any]]:
    return [worker for worker in grid.ask("status")["workers"] if worker["pool"] == POOL]


def is_idle(grid: Grid) -> bool:
    return not workers(grid) and pool(grid)["wanted"] == 0


def ends(grid: Grid) -> None:
    """Returns once the pool has ended, as it does when nobody has used it for a while: its processes tell."""
    for worker in workers(grid):
        with contextlib.suppress(ProcessLookupError):
            wait_for_end(worker["pid"])
    eventually(lambda: is_idle(grid), f"the master knows that {POOL} has ended")


def names(grid: Grid) -> list[str]:
    return [each["name"] for each in grid.ask("status")["pools"]]


def api(grid: Grid, path: str) -> Any:
    return json.loads(grid.get(path)[2])


def test_the_first_client_of_a_version_starts_its_pool_which_ends_when_nobody_uses_it(grid: Grid) -> None:
    assert grid.get("/health/ready")[0] == 200
    assert [(each["name"], each["wanted"], each["onDemand"]) for each in api(grid, "/v1/pools")["pools"]] == [
        ("chromium", 2, False),
        ("firefox", 0, False),
        ("webkit", 0, False),
        (POOL, 0, True),
    ]
    with contextlib.ExitStack() as stack:
        first = [client(stack, grid, OLD) for _ in range(2)]
        newest = client(stack, grid, own_minor())
        unknown = stack.enter_context(connect(grid.port))
        unknown.sendall(head(User_Agent="curl/8"))
        assert all(map(is_served, [newest, unknown, *first]))
        eventually(lambda: [each["playwrightVersion"] for each in workers(grid)] == [f"{OLD}.0"], "one for both")
        assert api(grid, "/v1/capacity")["versions"][OLD] == {"slots": 2, "busy": 2, "waiting": 0, "spare": 0}
        versions = {each["pool"]: each["playwrightVersion"] for each in api(grid, "/v1/workers")["workers"]}
        assert versions[POOL] == f"{OLD}.0"
        # All its slots are taken: it grows, up to the number of workers of the pool that it is made after.
        third = client(stack, grid, OLD)
        assert is_served(third)
        assert len(workers(grid)) == 2
        more = [client(stack, grid, OLD) for _ in range(2)]
        assert is_served(more[0])
        third.close()
        assert is_served(more[1])
        assert (pool(grid)["wanted"], pool(grid)["available"]) == (2, 2)
        assert grid.command("scale", f"{POOL}=3").returncode
    ends(grid)
    assert grid.get("/health/ready")[0] == 200


def test_a_version_that_is_not_there_hears_which_ones_are_and_how_it_is_added(grid: Grid) -> None:
    with contextlib.ExitStack() as stack:
        said = answer(client(stack, grid, OLDER))
        named = answer(client(stack, grid, OLD, "/?pool=chromium"))
    assert said.startswith("HTTP/1.1 428 ")
    body = json.loads(said.partition("\r\n\r\n")[2])
    assert body["versions"] == [OLD, own_minor()]
    assert body["command"] == f"pwgrid setup --playwright {OLDER}"
    assert named.startswith("HTTP/1.1 428 ")
    assert "leave out ?pool=" in named


def test_a_pool_that_cannot_start_says_why_and_is_tried_again_later(grid: Grid, place: Path) -> None:
    (place / "broken").touch()
    with contextlib.ExitStack() as stack:
        waiting = [client(stack, grid, OLD) for _ in range(3)]
        answers = [*map(answer, waiting)]
        (place / "broken").unlink()
        for said in answers:
            assert said.startswith("HTTP/1.1 503 ")
            assert "retry-after:" in said.lower()
            assert f"pool {POOL}, which starts when a client comes, does not start now: " in said
            assert "the browser is broken" in said
        eventually(lambda: pool(grid)["reason"] is None, "the pool may be tried again")
        assert is_served(client(stack, grid, OLD))
    ends(grid)


def test_a_pool_whose_driver_is_broken_says_so_and_starts_no_worker(grid: Grid, place: Path) -> None:
    node = place / "drivers" / f"{OLD}.0" / "node"
    node.rename(away := node.with_name("away"))
    with contextlib.ExitStack() as stack:
        answers = [*map(answer, [client(stack, grid, OLD) for _ in range(2)])]
    away.rename(node)
    for said in answers:
        assert said.startswith("HTTP/1.1 503 ")
        assert f"pool {POOL} wants Playwright {OLD}, which is not installed here" in said
    assert is_idle(grid)


def test_a_master_that_is_killed_leaves_its_pools_on_demand_to_the_next_one(grid: Grid, place: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = client(stack, grid, OLD)
        assert is_served(served)
        had = {worker["id"] for worker in workers(grid)}
        grid.kill_master()
        grid.start_again()
        assert goes_on(served)
        assert {worker["id"] for worker in workers(grid)} == had
        assert pool(grid)["wanted"] == 1
        served.close()
        ends(grid)

        (place / "held").touch()
        waiting = [client(stack, grid, OLD) for _ in range(2)]
        eventually(lambda: [worker["status"] for worker in workers(grid)] == ["starting"], "its worker starts")
        os.kill(workers(grid)[0]["pid"], signal.SIGKILL)  # the first restart is at once
        eventually(lambda: "starting" in {worker["status"] for worker in workers(grid)}, "another one starts")
        grid.kill_master()
        grid.start_again()
        (place / "held").unlink()
        assert all(map(is_served, waiting))  # perhaps before their worker has reached the new master
        eventually(lambda: [worker["status"] for worker in workers(grid)].count("available") == 1, "one serves")
    ends(grid)


def test_the_canaries_of_a_pool_on_demand_name_the_version_whose_browser_is_sick(grid: Grid, place: Path) -> None:
    def failures() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(grid.get("/metrics")[2].decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (sample.labels["pool"], sample.labels["playwright"]): sample.value
            for sample in samples
            if sample.name == "pwgrid_canary_failures_total" and sample.labels["browser_type"] == "chromium"
        }

    assert failures() == {("chromium", own_minor()): 0, (POOL, OLD): 0}
    with contextlib.ExitStack() as stack:
        assert is_served(client(stack, grid, OLD))
        (worker,) = workers(grid)
        stack.callback((place / "sick").unlink)
        (place / "sick").write_text(str(worker["nodePid"]))
        eventually(lambda: failures()[POOL, OLD] >= 2, "its canaries fail")
        assert failures()["chromium", own_minor()] == 0
        shown = next(line for line in grid.command("status").stdout.splitlines() if line.startswith(worker["id"]))
        assert f"Playwright {OLD}.0; canary failed" in shown
        assert f"playwright={OLD}.0" in next(line for line in grid.output().splitlines() if "browser_sick" in line)


def test_a_version_is_removed_when_its_last_session_has_ended_and_nobody_new_gets_it_meanwhile(
    grid: Grid, place: Path
) -> None:
    driver = place / "drivers" / f"{OLD}.0"
    with contextlib.ExitStack() as stack:
        old = client(stack, grid, OLD)
        assert is_served(old)
        (place / "held").touch()
        stack.callback((place / "held").unlink, missing_ok=True)
        waiting = [client(stack, grid, OLD) for _ in range(2)]
        first = waiting.pop(0)
        assert is_served(first)  # the worker has two slots
        eventually(lambda: pool(grid)["starting"] == 1, "another worker starts")
        removes = stack.enter_context(grid.starts("setup", "--remove", OLD, "--when-idle"))
        stack.callback(removes.kill)
        assert answer(waiting[0]).startswith("HTTP/1.1 428 ")  # it stood in line
        said = answer(client(stack, grid, OLD))
        assert (said[:13], f'"versions":["{own_minor()}"]' in said) == ("HTTP/1.1 428 ", True)
        (place / "held").unlink()
        assert removes.stdout is not None
        waits = next(line for line in removes.stdout if "waits for" in line)
        assert goes_on(old)
        first.close()
        assert removes.poll() is None
        assert driver.is_dir()
        old.close()
        output, _ = removes.communicate(timeout=60)
    assert removes.returncode == 0
    assert f"Playwright {OLD}: no new client gets it; waits for pool {POOL} (2 sessions) of the grid at" in waits
    assert f"Playwright {OLD}: removed {driver}" in output
    assert os.listdir(place / "drivers") == []
    fake_drivers(place / "drivers", f"{OLD}.0")
    eventually(lambda: POOL in names(grid), "the pool is there again")


def test_a_running_grid_finds_what_was_installed_and_removed_meanwhile(grid: Grid, place: Path) -> None:
    with contextlib.ExitStack() as stack:
        old = client(stack, grid, OLD)
        assert is_served(old)
        fake_drivers(place / "drivers", f"{OLDER}.1")
        shutil.rmtree(place / "drivers" / f"{OLD}.0")
        eventually(lambda: f"chromium-{OLDER}" in names(grid), "there is a pool of the new version")
        assert is_served(client(stack, grid, OLDER))
        eventually(lambda: pool(grid)["removed"], "the pool of the removed version takes nobody")
        assert answer(client(stack, grid, OLD)).startswith("HTTP/1.1 428 ")
        assert goes_on(old)  # it has the time of a recycle
        grid.kill_master()
        grid.start_again()
        assert (pool(grid)["playwright"], pool(grid)["removed"]) == (OLD, True)
        assert answer(client(stack, grid, OLD)).startswith("HTTP/1.1 428 ")
        assert goes_on(old)
        old.close()
        eventually(lambda: not workers(grid), "the last worker of the removed version has ended")
