"""The master is killed, left, upgraded, reloaded: no session is lost, no connect is refused, nothing is left."""

import asyncio
import json
import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.async_api import Playwright

from tests.conftest import need
from tests.support.grid import Grid, eventually, eventually_async, once_answered, processes_marked, running_grid
from tests.support.kill_table_row import STEADY, comes_out_exact, no_counter_was_repaired, row
from tests.support.load import Load, under_load
from tests.support.raw import answer, goes_on, head, session

pytestmark = pytest.mark.timeout(600)  # one grid is struck several times


def pids(grid: Grid) -> dict[str, int]:
    """The pids by worker id, and those of the proxy and of Redis."""
    status = grid.status()
    workers = {worker["id"]: worker["pid"] for worker in status["workers"]}
    return {**workers, "proxy": status["proxy"]["pid"], "redis": status["redis"]["pid"]}


async def test_a_master_that_is_killed_frozen_or_detaches_costs_nothing_and_the_next_one_takes_over(
    playwright: Playwright,
) -> None:
    """At last the proxy and Redis die with it: these are replaced. What counters lose with a Redis is repaired."""
    patience = {"DETACH_GRACE": "120", "WORKER_LOST_THRESHOLD": "120"}  # a busy machine takes its time
    environment = {**patience, "HEARTBEAT_INTERVAL": "1"}
    async with row(playwright, environment=environment, repaired=True) as (grid, load):
        before = await asyncio.to_thread(pids, grid)

        async def another_takes_over() -> None:
            await load.goes_on()
            await asyncio.to_thread(grid.start_again)
            assert await asyncio.to_thread(pids, grid) == before
            await load.goes_on()
            assert (load.lost, load.refused) == ({}, [])

        await asyncio.to_thread(grid.kill_master)
        await another_takes_over()
        live = len(load.clicks)
        await eventually_async(lambda: live <= grid.active() <= live + 1, "the counters are true")

        grid.process.send_signal(signal.SIGUSR1)
        assert await asyncio.to_thread(grid.process.wait, 20) == 0
        await another_takes_over()

        grid.process.send_signal(signal.SIGSTOP)
        try:
            await load.goes_on(beats=10, connects=5)
        finally:
            grid.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(pids, grid) == before
        await load.goes_on()
        assert (load.lost, load.refused) == ({}, [])

        grid.process.send_signal(signal.SIGSTOP)  # and killed, as by systemd's watchdog: test_systemd.py
        await load.goes_on()
        await asyncio.to_thread(grid.kill_master)
        await another_takes_over()

        assert no_counter_was_repaired(grid)
        grid.process.kill()
        os.kill(before["proxy"], signal.SIGKILL)
        os.kill(before["redis"], signal.SIGKILL)
        await asyncio.to_thread(grid.process.wait)
        await asyncio.to_thread(grid.start_again)
        await eventually_async(lambda: grid.active() >= live, "the counters are true again")
        after = pids(grid)
        await load.goes_on()
        assert load.lost == {}
        assert {name for name in before if before[name] == after[name]} == before.keys() - {"proxy", "redis"}
        await load.ends()
        assert pids(grid) == after


def test_an_adopted_worker_drains_and_is_replaced_as_any_other() -> None:
    """The fake browser server stands in for Playwright, as wherever no browser does or suffers anything."""
    with running_grid("--chromium", "1", environment=STEADY, fake=True) as grid, comes_out_exact(grid):
        grid.kill_master()
        grid.start_again()
        (old,) = [worker["pid"] for worker in grid.status()["workers"]]
        grid.ask("drain", {"all": True})

        def replaced() -> bool:
            return [worker["status"] for worker in grid.status()["workers"] if worker["pid"] != old] == ["available"]

        eventually(replaced, "a new worker serves")
        session(grid.port).close()


def test_what_died_while_there_was_no_master_is_replaced() -> None:
    with running_grid("--chromium", "2", environment=STEADY, fake=True) as grid, comes_out_exact(grid):
        before = pids(grid)
        grid.kill_master()
        dead = next(iter(before))
        os.kill(before[dead], signal.SIGKILL)
        grid.start_again()
        eventually(lambda: len([w for w in grid.status()["workers"] if w["status"] == "available"]) == 2, "full again")
        after = pids(grid)
        assert dead not in after
        assert {name: pid for name, pid in before.items() if name != dead}.items() <= after.items()
        eventually(lambda: grid.redis("KEYS", f"worker:*:{dead}") == [], "its record is gone")


def test_without_a_master_for_too_long_everything_ends() -> None:
    need("chromium")
    with running_grid("--chromium", "1", environment={"WORKER_LOST_THRESHOLD": "1"}) as grid:
        grid.kill_master()
        eventually(lambda: not processes_marked(grid.mark), "everything has ended", 30)
        grid.prove_gone()


def serving(grid: Grid) -> dict[str, int]:
    """The pids of those that serve, and of the proxy."""
    status = once_answered(lambda: grid.ask("status"))
    available = {worker["id"]: worker["pid"] for worker in status["workers"] if worker["status"] == "available"}
    return {**available, "proxy": status["proxy"]["pid"]}


def workers_of(grid: Grid) -> set[str]:
    """The ids of those that serve."""
    return serving(grid).keys() - {"proxy"}


def all_are_new(grid: Grid, old: dict[str, int]) -> bool:
    """Whether two workers are there that serve, and none of the old ones."""
    found, serve = once_answered(lambda: grid.ask("status"))["workers"], workers_of(grid)
    return len(serve) == len(found) == 2 and not serve & old.keys()


async def test_an_upgrade_and_a_reload_replace_everything_that_has_changed_and_lose_nothing(
    playwright: Playwright, tmp_path: Path
) -> None:
    file = tmp_path / "grid.toml"
    file.write_text("[workers]\nchromium_workers = 2\n")
    async with row(playwright, "--config", str(file), environment={"DRAIN_TIMEOUT": "1"}) as (grid, load):
        await an_upgrade_replaces_everything(grid, load)
        async with under_load(grid, playwright, 2) as other:
            await a_reload_scales_recycles_and_replaces_what_has_changed(grid, other, file)


async def an_upgrade_replaces_everything(grid: Grid, load: Load) -> None:
    before = serving(grid)
    redis = grid.status()["redis"]["pid"]
    upgrade = asyncio.create_task(asyncio.to_thread(grid.command, "upgrade", "--force", timeout_s=120))
    await eventually_async(lambda: "service_adopted" in grid.output(), "the new code has loaded")
    await eventually_async(lambda: workers_of(grid) - before.keys(), "a new worker serves")
    await eventually_async(lambda: serving(grid)["proxy"] not in (before["proxy"], None), "another proxy serves")
    await load.goes_on()
    # The sessions go on in the workers that began before: nobody waits for them.
    done = await upgrade
    assert done.returncode == 0, done.stderr
    assert " of 2 workers replaced" in done.stdout
    end = done.stdout.splitlines()[-1]
    assert end.startswith("the master, the proxy and 2 workers run the new code")
    assert re.search(r"; [34] live sessions go on in (1 old worker|2 old workers), for 3[0-9]{3} s at the most$", end)
    assert len(workers_of(grid)) == 2
    assert not workers_of(grid) & before.keys()
    await load.goes_on()
    status = grid.status()
    assert (status["master"]["pid"], status["redis"]["pid"]) == (grid.process.pid, redis)
    assert (load.lost, load.refused) == ({}, [])
    await load.ends()
    await eventually_async(lambda: all_are_new(grid, before), "all are new, and the old ones are gone")


async def a_reload_scales_recycles_and_replaces_what_has_changed(grid: Grid, load: Load, file: Path) -> None:
    before = serving(grid)
    file.write_text("[workers]\nchromium_workers = 3\n")
    done = await asyncio.to_thread(grid.command, "reload")
    assert (done.returncode, "scaled: chromium=3" in done.stdout) == (0, True), done
    await eventually_async(lambda: len(workers_of(grid)) == 3, "three workers serve")
    assert before.items() <= serving(grid).items()

    old = serving(grid)
    file.write_text("[workers]\nchromium_workers = 2\n[queue]\nmax_queue = 7\n[canary]\ncanary_timeout = 9\n")
    grid.process.send_signal(signal.SIGHUP)
    await eventually_async(lambda: serving(grid)["proxy"] not in (old["proxy"], None), "another proxy serves")
    await load.goes_on()
    assert (load.lost, load.refused) == ({}, [])
    await load.ends()
    await eventually_async(lambda: all_are_new(grid, old), "all are new, and the old ones are gone")


def test_an_upgrade_to_code_that_does_not_load_is_refused_and_changes_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as broken:
        # Found before the package itself once the check starts: the grid that runs has loaded its own long ago.
        hook = Path(broken) / "sitecustomize.py"
        hook.write_text("")
        with running_grid("--chromium", "1", environment={**STEADY, "PYTHONPATH": broken}, fake=True) as grid:
            before = pids(grid)
            hook.write_text("import sys\nsys.modules['redis'] = None\n")
            done = grid.command("upgrade", "--force")
            assert done.returncode == 1
            assert "redis" in done.stderr
            assert "the old one stays" in done.stderr
            hook.write_text("")
            assert pids(grid) == before
            assert "version_change_refused" in grid.output()


def test_a_bad_configuration_is_refused_whole_with_all_that_is_wrong() -> None:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        file = Path(directory) / "grid.toml"
        file.write_text("[workers]\nchromium_workers = 1\n")
        with running_grid("--config", str(file), environment=STEADY, fake=True) as grid:
            before = serving(grid)
            file.write_text("[workers]\nchromium_workers = -2\nmax_concurrent_sessions = 0\n")
            done = grid.command("reload")
            assert done.returncode == 2
            assert "chromium_workers" in done.stderr
            assert "max_concurrent_sessions" in done.stderr
            file.write_text("[workers]\nchromium_workers = 3\n[redis]\nredis_key_prefix = 'x:'\n")
            done = grid.command("reload")
            assert done.returncode == 2
            assert "cannot change while the grid runs: redis_key_prefix" in done.stderr
            assert serving(grid) == before
            a_reload_says_whether_the_proxy_knows(grid, file)


def a_reload_says_whether_the_proxy_knows(grid: Grid, file: Path) -> None:
    """It waits for the proxy, but not for ever, also where nothing has changed."""
    file.write_text("[workers]\nchromium_workers = 2\n")
    proxy = grid.status()["proxy"]["pid"]
    os.kill(proxy, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as beside:
            first = beside.submit(grid.command, "reload")
            eventually(lambda: "reloaded" in grid.output(), "the master has done it")
            unchanged = json.loads(grid.command("reload", "--json").stdout)
            done = first.result()
    finally:
        os.kill(proxy, signal.SIGCONT)
    assert done.stdout == ("changed: chromium_workers; scaled: chromium=2; the proxy has not confirmed it yet\n"), done
    assert (unchanged["changed"], unchanged["proxyKnows"]) == ([], False)
    eventually(lambda: json.loads(grid.command("reload", "--json").stdout)["proxyKnows"], "it knows")
    assert grid.status()["proxy"]["pid"] == proxy


def test_a_drain_that_the_killed_master_had_only_written_down_is_asked_for_again() -> None:
    with running_grid("--chromium", "1", environment=STEADY, fake=True) as grid, comes_out_exact(grid):
        before = serving(grid)
        grid.kill_master()
        (file,) = grid.runtime.glob("w/*/worker.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), "status": "draining", "reason": "new kernel"}))
        grid.start_again()
        eventually(lambda: serving(grid).keys().isdisjoint(before.keys() - {"proxy"}), "it is replaced")
        eventually(lambda: len(grid.status()["workers"]) == 1, "the old one is gone")
        assert "worker_lost" not in grid.output()


def test_a_worker_that_does_not_come_back_is_ended_and_replaced() -> None:
    environment = {**STEADY, "WORKER_LOST_THRESHOLD": "3"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid, comes_out_exact(grid):
        before = serving(grid)
        (hung,) = before.keys() - {"proxy"}
        os.kill(before[hung], signal.SIGSTOP)
        grid.kill_master()
        grid.start_again()
        eventually(lambda: serving(grid).keys() - {"proxy"} > set(), "another one serves", 30)
        eventually(lambda: hung not in pids(grid), "the hung one is gone", 30)


FROZEN = {**STEADY, "WORKER_LOST_THRESHOLD": "5", "DRAIN_TIMEOUT": "120"}
SAYS_NOTHING = "the master has said nothing for 5 s, as if it were frozen"


def is_ready(grid: Grid) -> bool:
    return grid.get("/health/ready")[0] == 200


def test_a_frozen_master_is_noticed_by_its_children_and_all_is_well_once_it_wakes() -> None:
    with running_grid("--chromium", "2", environment=FROZEN, fake=True) as grid, comes_out_exact(grid):
        eventually(lambda: is_ready(grid), "it is ready")
        with session(grid.port) as old:
            grid.process.send_signal(signal.SIGSTOP)
            # The workers notice it on their own, and may be the first.
            eventually(lambda: SAYS_NOTHING in grid.get("/health/ready")[2].decode(), "the proxy has noticed")
            status, headers, body = grid.get("/health/ready")
            assert (status, headers["retry-after"]) == (503, "5")
            assert json.loads(body)["error"] == SAYS_NOTHING
            status, _, refusal = answer(grid.port, head())
            assert (status, refusal["error"]) == (503, SAYS_NOTHING)
            eventually(lambda: grid.output().count("worker_draining reason='no master for too long'") >= 2, "they go")
            assert goes_on(old)
            grid.process.send_signal(signal.SIGCONT)
            eventually(lambda: is_ready(grid), "the grid takes clients again")
            session(grid.port).close()
            assert goes_on(old)
        assert not re.search("worker_lost|taken_over|proxy_silent|sessions_cut", grid.output())


def test_a_frozen_master_that_nobody_replaces_takes_everything_with_it_once_it_is_killed() -> None:
    with running_grid("--chromium", "2", environment={**FROZEN, "WORKER_LOST_THRESHOLD": "2"}, fake=True) as grid:
        grid.process.send_signal(signal.SIGSTOP)
        eventually(lambda: not is_ready(grid), "the proxy has noticed")
        grid.kill_master()
        eventually(lambda: not processes_marked(grid.mark), "everything has ended")
        grid.prove_gone()
