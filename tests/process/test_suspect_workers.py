"""Workers whose browsers may be sick: nobody new gets them, with and without Redis, and the healthy ones serve all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.kill_table_row import workers
from tests.support.leases import CHROMIUM, borrow, give_back
from tests.support.raw import answer, connect, goes_on, head, session

SLOTS = 4
SIGN = "the fake is told to be sick"


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the pids of browser servers whose browsers are sick."""
    return tmp_path_factory.mktemp("sick") / "pids"


@pytest.fixture(scope="module")
def grid(sick: Path) -> Iterator[Grid]:
    environment = {
        **WITHOUT_SPARES,
        "POOL_CONFIG": f"{CHROMIUM}=2",
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
        "WORKER_SELECT_TIMEOUT": "60",
        "REDIS_TIMEOUT": "0.5",
        "HEARTBEAT_INTERVAL": "1",
        "WORKER_LOST_THRESHOLD": "120",  # for longer than these tests take
        "CANARY_TIMEOUT": "60",
        "FAKE_SICK_BROWSER": str(sick),
        "BROWSER_READ_PATHS": str(sick.parent),
    }
    with running_grid(environment=environment, fake=True) as grid:
        yield grid


@pytest.fixture(autouse=True)
def well(sick: Path) -> Iterator[None]:
    """Whatever a test does, all browsers are well again after it."""
    yield
    sick.unlink(missing_ok=True)


def suspects(grid: Grid) -> dict[str, str | None]:
    return {worker["id"]: worker["suspect"] for worker in workers(grid).values()}


def active(grid: Grid, worker_id: str) -> int:
    return int(grid.redis("HGET", "cluster:active_connections", f"chromium:{worker_id}") or 0)


def waiting(grid: Grid) -> int:
    number: int = json.loads(grid.get("/v1/status")[2])["waiting"]
    return number


def get_sick(grid: Grid, sick: Path, *victims: dict[str, Any]) -> None:
    """Returns once this is known."""
    text = " ".join(str(victim["nodePid"]) for victim in victims)
    sick.with_suffix(".new").write_text(text)
    sick.with_suffix(".new").rename(sick)
    eventually(lambda: all(suspects(grid)[victim["id"]] for victim in victims), "they are suspected")


def test_a_grid_with_a_sick_worker_and_a_well_one_serves_every_client(grid: Grid, sick: Path) -> None:
    victim, healthy = workers(grid).values()
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(session(grid.port))
        if not active(grid, victim["id"]):
            victim, healthy = healthy, victim
        get_sick(grid, sick, victim)
        for _ in range(2):  # the selection prefers the worker that has sessions, which is the sick one
            stack.enter_context(session(grid.port))
        assert (active(grid, victim["id"]), active(grid, healthy["id"])) == (1, 2)
        assert goes_on(old)
        assert grid.get("/health/ready")[0] == 200
        shown = json.loads(grid.get("/v1/workers")[2])["workers"]
        assert {each["id"]: each["suspect"] for each in shown} == {victim["id"]: SIGN, healthy["id"]: None}
        assert "pwgrid_workers_suspect{" in (metrics := grid.get("/metrics")[2].decode())
        assert [line[-4:] for line in metrics.splitlines() if line.startswith("pwgrid_workers_suspect{")] == [" 1.0"]
        redis = grid.status()["redis"]["pid"]
        os.kill(redis, signal.SIGSTOP)
        try:
            for _ in range(2):
                stack.enter_context(session(grid.port))
        finally:
            os.kill(redis, signal.SIGCONT)
        eventually(lambda: active(grid, healthy["id"]) == SLOTS, "Redis knows of them")
        last = stack.enter_context(connect(grid.port))
        last.sendall(head())
        eventually(lambda: waiting(grid) == 1, "the last one waits")
        sick.unlink()
        assert last.recv(4096).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: active(grid, victim["id"]) == 2, "it has the worker that is well again")


def test_clients_of_its_leases_get_a_suspect_worker_and_all_others_wait_where_there_is_no_other(
    grid: Grid, sick: Path
) -> None:
    lease = borrow(grid, CHROMIUM)
    get_sick(grid, sick, *workers(grid).values())
    with session(grid.port, lease["target"]) as holder:
        assert goes_on(holder)
        status, _, body = answer(grid.port, head(target="/health/ready", Upgrade=None, Connection="close"))
        why = "no appa-chromium-uat worker takes clients now: the browser of each may be sick, and is being tried"
        assert (status, body["error"]) == (503, why)
        with connect(grid.port) as client:
            client.sendall(head())
            eventually(lambda: waiting(grid) == 1, "it waits")
            sick.unlink()
            assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
    give_back(grid, lease)  # unless it has ended with its client already


def test_a_client_on_its_way_to_a_browser_server_that_hangs_is_served_elsewhere_and_no_session_there() -> None:
    environment = {**WITHOUT_SPARES, "POOL_CONFIG": f"{CHROMIUM}=2", "WORKER_LOST_THRESHOLD": "3"}
    with running_grid(environment=environment, fake=True) as grid, session(grid.port):
        victim = next(each for each in workers(grid).values() if each["active"])
        os.kill(victim["nodePid"], signal.SIGSTOP)
        with session(grid.port):  # selections prefer the worker that has had a session
            eventually(lambda: victim["id"] not in workers(grid), "it has ended")
            sessions = json.loads(grid.get("/v1/sessions")[2])["sessions"]
            assert [(each["workerId"] == victim["id"], each["reasonKind"]) for each in sessions] == [
                (False, None),
                (True, "hung"),
            ]
