"""A new master that is to listen on another address than the master before it, whose proxy it adopts."""

import errno
import os
import socket

import pytest

from pwgrid.cli.install.installation import listeners_on
from pwgrid.master.listener import is_elsewhere, open_listener
from tests.process.test_tls import tls_grid
from tests.support import raw, tls
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid

EVERYWHERE = {"PWGRID_HOST": "0.0.0.0", "ALLOW_PUBLIC": "true"}
HERE = {"PWGRID_HOST": "127.0.0.1"}
ELSEWHERE = {"PWGRID_HOST": "127.0.0.2"}


def next_master(grid: Grid, variables: dict[str, str]) -> None:
    grid.kill_master()
    grid.environment |= variables
    grid.start_again()


def listens_on(grid: Grid) -> set[str]:
    """The addresses on which somebody listens at its port."""
    return set(listeners_on(grid.port))


def workers(grid: Grid) -> list[tuple[str, int]]:
    return [(each["id"], each["pid"]) for each in grid.ask("status")["workers"] if each["status"] == "available"]


def test_it_listens_there_and_sessions_and_workers_go_on() -> None:
    with (
        running_grid("--chromium", "1", environment={**WITHOUT_SPARES, **HERE}, fake=True) as grid,
        raw.session(grid.port) as before,
    ):
        had = workers(grid)
        for variables in (EVERYWHERE, ELSEWHERE, HERE):  # the last one alone does not exclude the one before it
            next_master(grid, variables)
            host = variables["PWGRID_HOST"]
            eventually(lambda host=host: listens_on(grid) == {host}, f"it listens on {host} alone")
            address = ("127.0.0.3" if host == "0.0.0.0" else host, grid.port)
            with raw.upgrade(address, raw.head()) as client:
                assert raw.goes_on(client)
            assert raw.goes_on(before)
        next_master(grid, HERE)  # nothing changes
        assert listens_on(grid) == {"127.0.0.1"}
        assert grid.output().count("address_changed") == 3
        assert workers(grid) == had


def test_an_address_that_is_taken_leaves_the_grid_where_it_was() -> None:
    with (
        running_grid("--chromium", "1", environment={**WITHOUT_SPARES, **HERE}, fake=True) as grid,
        socket.create_server(("127.0.0.2", grid.port)),
    ):
        next_master(grid, ELSEWHERE)
        eventually(lambda: "listener_not_opened" in grid.output(), "it says so")
        assert f"cannot listen on 127.0.0.2 port {grid.port}" in grid.output()
        with raw.session(grid.port) as client:
            assert raw.goes_on(client)


def test_the_same_with_tls_also_while_a_client_waits_in_the_old_proxy() -> None:
    settings = {**HERE, "MAX_CONCURRENT_SESSIONS": "1", "WORKER_SELECT_TIMEOUT": "300", "WORKER_LOST_THRESHOLD": "60"}
    with tls_grid(**settings) as grid, tls.session(grid.port) as before, tls.connect(grid.port) as waits:
        waits.sendall(raw.head())
        eventually(lambda: grid.ask("status")["waiting"] == 1, "it waits")
        next_master(grid, EVERYWHERE)
        eventually(lambda: listens_on(grid) == {"0.0.0.0"}, "it listens everywhere")
        next_master(grid, HERE)
        eventually(lambda: listens_on(grid) == {"127.0.0.1"}, "it listens here alone")
        assert raw.goes_on(before)
        before.close()
        assert raw.is_served(waits)
        waits.close()
        with tls.session(grid.port) as client:
            assert raw.goes_on(client)


@pytest.mark.parametrize(
    ("host", "is_another"),
    [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True), ("::1", True), ("no such name", False)],
)
def test_an_address_is_another_one_if_none_that_is_meant_is_there(host: str, is_another: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as inner:
        assert is_elsewhere([listener, inner], host) is is_another
        assert not is_elsewhere([inner], host)


def test_the_port_is_shared_only_by_the_two_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as old:
        port = old.getsockname()[1]
        with open_listener("0.0.0.0", port, instead_of=[old]) as new:
            assert new.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 0
            with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
                socket.create_server(("0.0.0.0", port))
