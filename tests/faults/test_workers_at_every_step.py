"""SIGKILL and SIGSTOP of workers and browsers at each step of their life: counters stay right, nothing is left."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Playwright

from tests.conftest import counters_are_exact, need
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, eventually_async, running_grid
from tests.support.kill_table_row import comes_out_exact, failures, workers
from tests.support.raw import goes_on, session

# The fake browser server stands in for Playwright here: it starts late, or ignores what it is told, on demand.


def serves_without(grid: Grid, worker_id: str) -> bool:
    found = workers(grid)
    return worker_id not in found and any(worker["status"] == "available" for worker in found.values())


def nothing_is_left_of(grid: Grid, worker_id: str) -> bool:
    mark = f"/w/{worker_id}"
    return not (grid.runtime / "w" / worker_id).exists() and not any(mark in line for line in grid.processes().values())


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No browser server of the shared grid gets ready while this file is there."""
    return tmp_path_factory.mktemp("held") / "hold"


@pytest.fixture(scope="module")
def shared(hold: Path) -> Iterator[Grid]:
    environment = {**WITHOUT_SPARES, "FAKE_START_HELD_BY": str(hold)}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        yield grid


@pytest.fixture
def grid(shared: Grid) -> Iterator[Grid]:
    with comes_out_exact(shared):
        yield shared


def test_a_worker_that_is_killed_while_it_starts_is_replaced(grid: Grid, hold: Path) -> None:
    (first,) = workers(grid)
    hold.touch()
    assert grid.command("drain", first).returncode == 0
    starting = eventually(
        lambda: next((each for each in workers(grid).values() if each["status"] == "starting"), None), "one starts"
    )
    os.kill(starting["pid"], signal.SIGKILL)
    hold.unlink()
    eventually(lambda: serves_without(grid, starting["id"]), "another one serves")
    eventually(lambda: nothing_is_left_of(grid, starting["id"]), "nothing is left of it", 5)


def test_a_worker_that_is_killed_while_it_is_idle_leaves_nothing(grid: Grid) -> None:
    (victim,) = workers(grid).values()
    os.kill(victim["pid"], signal.SIGKILL)
    eventually(lambda: serves_without(grid, victim["id"]), "another one serves")
    eventually(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)


def test_a_worker_that_is_killed_while_it_drains_still_sees_its_sessions_to_their_end(grid: Grid) -> None:
    (victim,) = workers(grid).values()
    with session(grid.port) as sock:
        assert grid.command("drain", victim["id"]).returncode == 0
        eventually(lambda: workers(grid)[victim["id"]]["status"] == "draining", "it drains")
        os.kill(victim["pid"], signal.SIGKILL)
        eventually(lambda: workers(grid)[victim["id"]]["pid"] != victim["pid"], "it is succeeded")
        assert goes_on(sock)
    eventually(lambda: serves_without(grid, victim["id"]), "it is gone")
    eventually(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)


def reload(grid: Grid) -> None:
    assert grid.command("reload").returncode == 0


def restart(grid: Grid) -> None:
    grid.kill_master()
    grid.start_again()


def upgrade(grid: Grid) -> None:
    assert grid.command("upgrade", "--force").returncode == 0


@pytest.mark.parametrize("take_in", [reload, restart, upgrade])
def test_a_worker_whose_pool_the_configuration_has_no_more_is_succeeded_all_the_same(
    tmp_path: Path, take_in: Callable[[Grid], None]
) -> None:
    config, name = tmp_path / "grid.toml", '[[pools]]\nname = "%s"\nbrowser = "chromium"\n'
    config.write_text(name % "stays" + name % "goes" + 'labels = ["AppA:Chromium"]\n')
    environment = {**WITHOUT_SPARES, "PWGRID_CONFIG": str(config)}
    with running_grid(environment=environment, fake=True) as grid:
        victim = next(each for each in workers(grid).values() if each["pool"] == "goes")
        with session(grid.port, "/?labels=AppA:Chromium") as sock:
            config.write_text(name % "stays")
            take_in(grid)
            said = re.compile(rf"worker_draining .*worker={victim['id']}")
            eventually(lambda: said.search(grid.output()), "the master has told it to drain")
            os.kill(victim["pid"], signal.SIGKILL)
            eventually(lambda: workers(grid)[victim["id"]]["pid"] != victim["pid"], "it is succeeded")
            eventually(lambda: "browser_server_taken_over" in grid.output(), "its session is taken over")
            assert goes_on(sock)
        eventually(lambda: victim["id"] not in workers(grid), "it is gone")
        eventually(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it")
        counters_are_exact(grid)
        assert failures(grid).total() == 0


def test_an_end_that_the_dead_worker_could_not_write_down_is_written_by_its_successor() -> None:
    with running_grid("--chromium", "1", environment={**WITHOUT_SPARES, "HEARTBEAT_INTERVAL": "1"}, fake=True) as grid:
        (victim,) = workers(grid).values()
        redis = grid.status()["redis"]["pid"]
        first, second = session(grid.port), session(grid.port)
        eventually(lambda: len(grid.redis("KEYS", "sessions:live:*")) == 1 and grid.active() == 2, "both are live")
        os.kill(redis, signal.SIGSTOP)
        first.close()
        # Its end waits in the frozen Redis' own buffer; the end of the second one is known to the worker alone.
        eventually(lambda: "registry_write_kept" in grid.output(), "the worker knows that Redis is away")
        second.close()
        eventually(lambda: workers(grid)[victim["id"]]["active"] == 0, "both have ended")
        os.kill(victim["pid"], signal.SIGKILL)
        eventually(lambda: "successor_started" in grid.output(), "it is succeeded")
        os.kill(redis, signal.SIGCONT)
        eventually(lambda: serves_without(grid, victim["id"]), "it is gone", 40)
        counters_are_exact(grid)
        ends = [grid.redis("HMGET", key, "status", "reason") for key in grid.redis("KEYS", "session:*")]
        assert ends == [[b"completed", b"client disconnected"]] * 2


def test_a_worker_whose_successor_dies_too_is_ended_with_its_tree(grid: Grid) -> None:
    failed = failures(grid).total()
    (victim,) = workers(grid).values()
    with session(grid.port) as sock:
        os.kill(victim["pid"], signal.SIGKILL)
        successor = eventually(
            lambda: next(
                (
                    each
                    for each in workers(grid).values()
                    if each["id"] == victim["id"] and each["pid"] != victim["pid"]
                ),
                None,
            ),
            "it is succeeded",
        )
        os.kill(successor["pid"], signal.SIGKILL)
        while sock.recv(4096):
            pass
    eventually(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)
    eventually(lambda: failures(grid).total() == failed + 1, "its session is on record")


IGNORES = ("FAKE_IGNORE_CLOSE", "FAKE_IGNORE_STOP")


@pytest.fixture(scope="module")
def ignoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Grid, dict[str, Path]]]:
    """A grid, and the files that make its browser servers ignore something while they are there."""
    files = {what: tmp_path_factory.mktemp("ignored") / what for what in IGNORES}
    environment = {**WITHOUT_SPARES, "DRAIN_TIMEOUT": "0.5", **{what: str(file) for what, file in files.items()}}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid:
        yield grid, files


@pytest.mark.parametrize("what", IGNORES)
def test_a_browser_server_that_ignores_its_end_is_cut_off_at_the_deadline(
    what: str, ignoring: tuple[Grid, dict[str, Path]]
) -> None:
    grid, files = ignoring
    ignores = files[what]
    with comes_out_exact(grid):
        (victim,) = workers(grid).values()
        ignores.touch()
        with session(grid.port):
            assert grid.command("drain", victim["id"]).returncode == 0
            eventually(lambda: serves_without(grid, victim["id"]), "another one serves", 40)
        eventually(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)
        ignores.unlink()  # the end of the grid is not what is tested


async def test_a_frozen_browser_is_found_by_the_canary_and_recycled(playwright: Playwright) -> None:
    need("chromium")
    environment = {**WITHOUT_SPARES, "CANARY_INTERVAL": "0.5", "CANARY_TIMEOUT": "1"}
    with running_grid("--chromium", "1", environment=environment) as grid, comes_out_exact(grid):
        (victim,) = workers(grid).values()
        browsers = [
            pid for pid, line in grid.processes().items() if "--remote-debugging-pipe" in line and "--type=" not in line
        ]
        assert len(browsers) == 1
        os.kill(browsers[0], signal.SIGSTOP)
        await eventually_async(lambda: serves_without(grid, victim["id"]), "a replacement serves", 40)
        await eventually_async(lambda: nothing_is_left_of(grid, victim["id"]), "nothing is left of it", 5)
        assert "canary_failed" in grid.output()
        browser = await playwright.chromium.connect(grid.endpoint)
        assert await (await browser.new_page()).evaluate("6 * 7") == 42
        await browser.close()
