"""A handoff that fails on its way: one browser server has the client in the end, or it is told why.

The fake browser server stands in for Playwright: it is frozen while a socket is on its way to it.
"""

import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.grid import WITHOUT_SPARES, Grid, eventually, free_port, running_grid
from tests.support.kill_table_row import comes_out_exact, workers
from tests.support.raw import answer, connect, goes_on, head, is_passed_on, is_passed_on_at, session

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


def handed_off(grid: Grid) -> float:
    """Clients that the proxy counts as handed over."""
    found = re.search(rb"^pwgrid_upgrades_handed_off_total (\S+)$", grid.get("/metrics")[2], re.MULTILINE)
    assert found
    return float(found[1])


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_answered(sock: socket.socket) -> None:
    """A browser server has taken this client."""
    answered = sock.recv(4096)
    assert answered.startswith(ANSWER)
    assert answered.endswith(b"\r\n\r\n")
    assert goes_on(sock)


def test_who_sends_more_than_a_worker_can_read_is_refused_and_ends_nobody_s_link() -> None:
    sentence = "bad WebSocket handshake: too much comes behind it before it is answered"
    with running_grid("--chromium", "1", fake=True) as grid:
        with session(grid.port):  # the link is there from here on
            pass
        for early in (b"\x01" * 30_000, b"\x01" * 60_000):  # as JSON more than a packet, more than a socket's buffer
            status, _, body = answer(grid.port, head() + early)
            assert (status, body["error"]) == (400, sentence)
            assert list(grid.redis("HGETALL", "cluster:lifetime_connections").values()) == [b"1"]  # it is given back
        with session(grid.port):
            pass
        assert "handoff_packet_corrupt" not in grid.output()
        assert "offer_failed" not in grid.output()


def passed_on(grid: Grid, *clients: socket.socket) -> None:
    """They have sent their heads, and a worker has sent their connections on to its frozen browser server."""
    proxy = grid.status()["proxy"]["pid"]
    for client in clients:
        client.sendall(head())
        eventually(lambda client=client: is_passed_on(proxy, client), "its worker has passed it on")


def test_a_client_whose_browser_server_does_not_take_it_goes_on_with_another() -> None:
    with running_grid("--chromium", "2", environment=WITHOUT_SPARES, fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock:
            with frozen(victim["nodePid"]):
                passed_on(grid, sock)
                is_answered(sock)
            eventually(lambda: workers(grid)[victim["id"]]["active"] == 0, "the late one has dropped it")
            assert goes_on(sock)
            assert grid.active() == 1


def test_a_client_that_has_used_the_api_on_its_connection_goes_on_with_another_too() -> None:
    with running_grid("--chromium", "2", environment=WITHOUT_SPARES, fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock, frozen(victim["nodePid"]):
            sock.sendall(b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 204 ")
            passed_on(grid, sock)
            is_answered(sock)


def test_a_client_whose_only_browser_server_does_not_take_it_is_told_so() -> None:
    environment = {**WITHOUT_SPARES, "WORKER_SELECT_TIMEOUT": "3"}
    with running_grid("--chromium", "1", environment=environment, fake=True) as grid, comes_out_exact(grid):
        with frozen(first_choice(grid)["nodePid"]):
            status, _, body = answer(grid.port, head())
        assert (status, body["error"].partition(":")[0]) == (503, "no chromium slot came free within 3 s")


def test_a_browser_server_that_takes_the_client_of_a_dead_worker_late_is_the_only_one() -> None:
    with running_grid("--chromium", "2", environment=WITHOUT_SPARES, fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        before = handed_off(grid)
        with connect(grid.port) as sock, connect(grid.port) as next_one:
            with frozen(victim["nodePid"]):
                passed_on(grid, sock, next_one)
                os.kill(victim["pid"], signal.SIGKILL)
                eventually(lambda: "offer_failed" in grid.output(), "the proxy knows", 2)
            for client in (sock, next_one):
                is_answered(client)
            eventually(lambda: "browser_server_taken_over" in grid.output(), "its worker is succeeded")
            eventually(lambda: grid.active() == 2, "both are live")
            assert handed_off(grid) == before + 2
            eventually(lambda: served(grid) == 2, "and each in one browser server only")


def test_the_client_of_a_dead_worker_goes_to_another_once_the_browser_server_may_not_take_it_any_more() -> None:
    with running_grid("--chromium", "2", environment=WITHOUT_SPARES, fake=True) as grid, comes_out_exact(grid):
        victim = first_choice(grid)
        with connect(grid.port) as sock:
            with frozen(victim["nodePid"]):
                passed_on(grid, sock)
                os.kill(victim["pid"], signal.SIGKILL)
                is_answered(sock)
            # Had the other one got it earlier, two browser servers would have it now.
            eventually(lambda: victim["id"] not in workers(grid), "it is gone", 40)
            assert goes_on(sock)
            assert grid.active() == 1


# On a Unix socket, as a service manager may pass one


@contextmanager
def unix_listener() -> Iterator[tuple[socket.socket, str]]:
    """A listening socket and its path."""
    directory = Path(tempfile.mkdtemp(prefix="pgux-", dir="/tmp"))
    path = str(directory / "sock")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            yield listener, path
    finally:
        shutil.rmtree(directory)


def pairs(grid: Grid, key: str) -> list[tuple[bytes, bytes]]:
    return list(grid.redis("HGETALL", key).items())


def unix_client(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(path)
    return client


def test_a_client_of_a_unix_listener_whose_worker_froze_is_in_one_browser_server_only() -> None:
    """Nothing tells the proxy that the browser server has it: it is let go, and not given to another worker."""
    with (
        unix_listener() as (listener, path),
        running_grid(
            *("--chromium", "2", "--port", str(free_port())),
            environment=WITHOUT_SPARES,
            fake=True,
            stdin=listener.fileno(),
        ) as grid,
        unix_client(path) as client,
    ):
        proxy, found = grid.status()["proxy"]["pid"], workers(grid)
        nodes = [worker["nodePid"] for worker in found.values()]
        with frozen(nodes[0]), frozen(nodes[1]):
            client.sendall(head())
            eventually(lambda: is_passed_on_at(proxy, path), "its worker has passed it on", 2)
            leases = {name.decode(): int(count) for name, count in pairs(grid, "cluster:active_connections")}
            (victim,) = (found[name.partition(":")[2]] for name, count in leases.items() if count)
            os.kill(victim["pid"], signal.SIGSTOP)
        try:
            is_answered(client)
            eventually(lambda: "handed_off_unconfirmed" in grid.output(), "the proxy lets it go", 10)
        finally:
            os.kill(victim["pid"], signal.SIGCONT)
        eventually(lambda: served(grid) == 1, "one has it")
        assert goes_on(client)
