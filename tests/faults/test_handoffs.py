"""A handoff that fails after its client was answered: one browser server has the client in the end, or it is told why.

The fake browser server stands in for Playwright: it is frozen while a socket is on its way to it.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pwgrid.common.handshake import TRY_AGAIN_LATER
from tests.support.grid import Grid, eventually, running_grid
from tests.support.raw import connect, goes_on, head, read_all, session
from tests.support.row import comes_out_exact, workers

ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n"


def first_choice(grid: Grid) -> dict[str, Any]:
    """The worker that the selection takes as long as nothing changes: the one that has had most sessions."""
    with session(grid.port):
        found = eventually(lambda: [each for each in workers(grid).values() if each["active"]], "it is live")
    eventually(lambda: grid.active() == 0, "it has ended")
    chosen: dict[str, Any] = found[0]
    return chosen


def served(grid: Grid) -> int:
    """Sessions as the workers themselves have them."""
    return sum(worker["active"] for worker in workers(grid).values())


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def answered(sock: socket.socket) -> None:
    """Its upgrade is answered although no browser server has it."""
    sock.sendall(head())
    answer = sock.recv(4096)
    assert answer.startswith(ANSWER)
    assert answer.endswith(b"\r\n\r\n")


def test_a_client_whose_browser_server_does_not_take_it_goes_on_with_another() -> None:
    with running_grid("--chromium", "2", fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock:
            with frozen(victim["nodePid"]):
                answered(sock)
                assert goes_on(sock)
            eventually(lambda: workers(grid)[victim["id"]]["active"] == 0, "the late one has dropped it")
            assert goes_on(sock)
            assert grid.active() == 1


def test_a_client_that_has_used_the_api_on_its_connection_is_answered_by_whoever_takes_it() -> None:
    with running_grid("--chromium", "2", fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock, frozen(victim["nodePid"]):
            sock.sendall(b"GET /favicon.ico HTTP/1.1\r\nHost: grid\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 204 ")
            answered(sock)
            assert goes_on(sock)


def test_a_client_that_is_answered_and_then_has_no_worker_is_told_so_in_a_close_frame() -> None:
    environment = {"WORKER_SELECT_TIMEOUT": "3"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid, comes_out_exact(grid):
        with connect(grid.port) as sock, frozen(first_choice(grid)["nodePid"]):
            answered(sock)
            frame = read_all(sock)
        assert frame[0] == 0x88
        assert frame[1] == len(frame) - 2
        assert int.from_bytes(frame[2:4]) == TRY_AGAIN_LATER
        assert frame[4:].decode().startswith("no chromium slot came free within 3 s")


def test_a_browser_server_that_takes_the_client_of_a_dead_worker_late_is_the_only_one() -> None:
    with running_grid("--chromium", "2", fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock, connect(grid.port) as next_one:
            with frozen(victim["nodePid"]):
                answered(sock)
                answered(next_one)  # so the worker has sent the first one on
                os.kill(victim["pid"], signal.SIGKILL)
                eventually(lambda: "handoff_failed" in grid.output(), "the proxy knows", 2)
            for client in (sock, next_one):
                assert goes_on(client)
            eventually(lambda: "browser_server_taken_over" in grid.output(), "its worker is succeeded")
            eventually(lambda: grid.active() == 2, "both are live")
            eventually(lambda: served(grid) == 2, "and each in one browser server only")


def test_the_client_of_a_dead_worker_goes_to_another_once_the_browser_server_may_not_take_it_any_more() -> None:
    with running_grid("--chromium", "2", fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock:
            with frozen(victim["nodePid"]):
                answered(sock)
                os.kill(victim["pid"], signal.SIGKILL)
                assert goes_on(sock)
            # Had the other one got it earlier, two browser servers would have it now.
            eventually(lambda: victim["id"] not in workers(grid), "it is gone", 40)
            assert goes_on(sock)
            assert grid.active() == 1
