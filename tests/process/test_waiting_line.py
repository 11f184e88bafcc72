"""Real connections in line for the slots of a real grid; the browser servers alone are fake."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest

from tests.support.grid import NEVER, WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.raw import answer, connect, goes_on, head, session
from tests.support.runs import sessions_by_run

SLOTS = 6
IN_LINE = 200
BOUND_S = 30.0


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    environment = {
        "MAX_CONCURRENT_SESSIONS": str(SLOTS // 2),
        "MAX_LIFETIME_SESSIONS": NEVER,
        "WORKER_SELECT_TIMEOUT": "120",
        "MAX_QUEUE": str(IN_LINE),
    }
    with running_grid("--chromium", "2", environment=environment, fake=True) as grid:
        yield grid


def status(grid: Grid) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(grid.get("/v1/status")[2])
    return found


def waiting(grid: Grid) -> int:
    number: int = status(grid)["waiting"]
    return number


def stand_in_line(grid: Grid, stack: contextlib.ExitStack, target: str = "/") -> socket.socket:
    sock = stack.enter_context(connect(grid.port))
    sock.sendall(head(target=target))
    return sock


def vanish(sock: socket.socket, way: int) -> None:
    """The client goes: it closes, is killed (its kernel resets), or will send nothing more."""
    if way == 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if way == 1:
        sock.shutdown(socket.SHUT_WR)
    else:
        sock.close()


def served(waiting: set[socket.socket], bound_s: float = BOUND_S) -> list[socket.socket]:
    """Those of them that are answered next, each with its session."""
    readable, _, _ = select.select(waiting, [], [], bound_s)
    assert readable or not bound_s, f"none of {len(waiting)} in line is answered"
    for sock in readable:
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert goes_on(sock)
        waiting.remove(sock)
    return readable


def ended_well(grid: Grid) -> int:
    """How many sessions are on record as completed, when none is live."""
    eventually(lambda: grid.active() == 0, "every slot is free")
    outcomes: dict[str, int] = status(grid)["outcomes"]
    assert outcomes.keys() <= {"completed"}, outcomes
    return outcomes.get("completed", 0)


def test_of_200_in_line_half_vanish_and_each_slot_goes_to_the_next_of_the_others(grid: Grid) -> None:
    before, gone_before = ended_well(grid), status(grid)["clients"]["abandoned"]
    with contextlib.ExitStack() as stack:
        live = [stack.enter_context(session(grid.port)) for _ in range(SLOTS)]
        line = [stand_in_line(grid, stack)]
        # Before the first stands in line nobody does: those that come at the same moment all ask the registry.
        eventually(lambda: waiting(grid) == 1, "the first waits")
        line += [stand_in_line(grid, stack) for _ in range(IN_LINE - 1)]
        eventually(lambda: waiting(grid) == IN_LINE, "all wait")
        code, headers, body = answer(grid.port, head())
        assert (code, headers["retry-after"]) == (503, "30")
        assert body == {
            "error": f"{IN_LINE} clients wait for a slot already: come back later, or add workers",
            "retryAfterS": 30,
            "reason": "queue full",
            "queueLength": IN_LINE,
            "position": IN_LINE + 1,
        }
        leaving = sorted(random.sample(range(IN_LINE), IN_LINE // 2))
        for number in leaving:
            vanish(line[number], number % 3)
        eventually(lambda: waiting(grid) == IN_LINE // 2, "who has gone waits no longer")
        assert status(grid)["clients"]["abandoned"] == gone_before + IN_LINE // 2
        staying = [sock for number, sock in enumerate(line) if number not in leaving]
        others = set(staying)
        for sock in staying:
            live.pop(0).close()
            assert served(others) == [sock]
            live.append(sock)
        assert waiting(grid) == 0
    assert ended_well(grid) == before + SLOTS + IN_LINE // 2  # no slot was ever given to one who had gone


def test_clients_that_vanish_while_slots_come_free_take_none(grid: Grid) -> None:
    before = ended_well(grid)
    with contextlib.ExitStack() as stack:
        live = [stack.enter_context(session(grid.port)) for _ in range(SLOTS)]
        line = [stand_in_line(grid, stack) for _ in range(IN_LINE)]
        eventually(lambda: waiting(grid) == IN_LINE, "all wait")
        leaving = random.sample(range(IN_LINE), IN_LINE // 2)
        staying = {sock for number, sock in enumerate(line) if number not in leaving}
        for sock in live:
            sock.close()
        for number in leaving:  # some of them while the grid is about to give them a slot, or just has
            vanish(line[number], number % 3)
            for sock in served(staying, 0):
                sock.close()
        while staying:
            for sock in served(staying):
                sock.close()
        eventually(lambda: waiting(grid) == 0, "nobody waits")
    eventually(lambda: grid.active() == 0, "every slot is free")
    # Besides, some had a session before they vanished. Who vanished while a slot was on its way gave it back.
    assert before + SLOTS + IN_LINE // 2 <= ended_well(grid) <= before + SLOTS + IN_LINE


def test_a_slot_goes_to_the_first_in_line_who_may_have_it(grid: Grid) -> None:
    here, there = (
        urlsplit(grid.redis("HGET", f"worker:chromium:{worker['id']}", "wsEndpoint").decode()).path
        for worker in grid.status()["workers"]
    )
    with contextlib.ExitStack() as stack:
        live = {
            path: [stack.enter_context(session(grid.port, path)) for _ in range(SLOTS // 2)] for path in (here, there)
        }
        choosy = stand_in_line(grid, stack, here)
        eventually(lambda: waiting(grid) == 1, "it waits for this one worker")
        other = stand_in_line(grid, stack)
        eventually(lambda: waiting(grid) == 2, "both wait")
        line = {choosy, other}
        live[there].pop().close()
        assert served(line) == [other]
        live[here].pop().close()
        assert served(line) == [choosy]


def test_the_status_says_how_many_wait_and_for_which_runs(grid: Grid) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(SLOTS):
            stack.enter_context(session(grid.port))
        for _ in range(3):
            stand_in_line(grid, stack)
        expected = [{"pool": "chromium", "run": "", "token": "", "waiting": 3}]
        eventually(lambda: status(grid)["waitingByRun"] == expected, "the API says so")
        eventually(lambda: grid.status()["waitingByRun"] == expected, "the master says so")
        assert grid.status()["waiting"] == 3
        shown = [line.split() for line in grid.command("status").stdout.splitlines()]
        assert shown[shown.index(["WAITING", "FOR", "RUN", "TOKEN", "CLIENTS"]) + 1] == ["chromium", "3"]
    eventually(lambda: grid.status()["waitingByRun"] == [], "nobody waits")
    assert "WAITING FOR" not in grid.command("status").stdout


async def test_three_runs_with_4_10_and_40_clients_get_a_third_of_the_sessions_each(grid: Grid) -> None:
    total, clients = 600, {"few": 4, "some": 10, "many": 40}
    had = await sessions_by_run(grid.port, clients, total)
    assert had.keys() == clients.keys()
    for run, sessions in had.items():
        assert 0.9 <= sessions / (total / len(clients)) <= 1.1, (run, had)


def test_a_run_at_its_cap_waits_beside_free_slots_until_one_of_its_sessions_ends_in_whatever_pool() -> None:
    environment = {
        "POOL_CONFIG": "AppA:Chromium:UAT=1,AppB:Firefox:UAT=1",
        "MAX_SESSIONS_PER_RUN": "2",
        "WORKER_SELECT_TIMEOUT": "10",
    }
    app_a, app_b = (f"/?labels={key}&name=nightly" for key in ("AppA:Chromium:UAT", "AppB:Firefox:UAT"))
    with (
        running_grid("--chromium", "0", environment=environment, fake=True) as grid,
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(session(grid.port, app_a))
        other_pool = stack.enter_context(session(grid.port, app_b))
        third = stand_in_line(grid, stack, app_a)
        eventually(lambda: waiting(grid) == 1, "the third of this run waits")
        stack.enter_context(session(grid.port, app_a.replace("nightly", "smoke")))
        other_pool.close()
        assert served({third}) == [third]
        code, headers, body = answer(grid.port, head(target=app_b))
        assert (code, headers["retry-after"]) == (503, "30")
        assert body == {
            "error": "run 'nightly' has 2 sessions already, as many as it may have at once: end some of them first",
            "retryAfterS": 30,
            "reason": "run cap reached",
            "queueLength": 1,
            "position": 1,
        }


def test_a_proxy_that_serves_its_last_clients_is_not_taken_for_the_one_that_listens(tmp_path: Path) -> None:
    """A reload has replaced it when the new proxy and the master are killed: the next master starts another proxy."""
    file = tmp_path / "grid.toml"
    file.write_text("[queue]\nmax_queue = 5\n")
    environment = {**WITHOUT_SPARES, "MAX_CONCURRENT_SESSIONS": "1", "WORKER_SELECT_TIMEOUT": "120"}
    with (
        running_grid("--chromium", "1", "--config", str(file), environment=environment, fake=True) as grid,
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(session(grid.port))
        in_line = stand_in_line(grid, stack)
        eventually(lambda: waiting(grid) == 1, "the second client waits")
        retiring = grid.status()["proxy"]["pid"]
        file.write_text("[queue]\nmax_queue = 6\n")
        assert grid.command("reload").returncode == 0
        eventually(lambda: grid.status()["proxy"]["pid"] != retiring, "another proxy listens")
        listening = grid.status()["proxy"]["pid"]
        grid.kill_master()
        os.kill(listening, signal.SIGKILL)
        grid.start_again()
        assert grid.get("/health")[0] == 200
        assert psutil.pid_exists(retiring)
        first.close()
        assert served({in_line}) == [in_line]
        eventually(lambda: not psutil.pid_exists(retiring), "its last client is served")


def test_who_waits_in_vain_for_one_of_the_own_browsers_to_end_is_not_to_blame(tmp_path: Path) -> None:
    hold, settings = tmp_path / "hold", {"MAX_OWN_BROWSERS": "1", "WORKER_SELECT_TIMEOUT": "1"}
    environment = {**WITHOUT_SPARES, **settings, "MAX_CONCURRENT_SESSIONS": "2", "FAKE_HOLD_OWN": str(hold)}
    wanted = quote(json.dumps({"slowMo": 50, "timeout": 1000}))
    with (
        running_grid("--chromium", "1", environment=environment, fake=True) as grid,
        session(grid.port, "/?isolation=browser") as has_it,
    ):
        assert goes_on(has_it)
        hold.touch()  # as Node does while its only place is taken
        code, headers, body = answer(grid.port, head(target=f"/?launch-options={wanted}"))
        assert (code, "retry-after" in headers) == (503, True)
        assert "all 1 of its worker are in use (MAX_OWN_BROWSERS)" in body["error"]
