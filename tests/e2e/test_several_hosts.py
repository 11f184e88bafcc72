"""Two grids behind HAProxy, as docs/fleet.md has it: which host gets a client. The browser servers are fake."""

import contextlib
import re
import socket
from pathlib import Path

from tests.support import raw
from tests.support.grid import NEVER, Grid, eventually, free_port, running_grid
from tests.support.recipes import recipe
from tests.support.reverse_proxies import running

PAGE = "fleet.md"
SELECT_TIMEOUT_S = "0.5"


def a_grid(slots: int) -> contextlib.AbstractContextManager[Grid]:
    environment = {
        "MAX_CONCURRENT_SESSIONS": str(slots),
        "MAX_LIFETIME_SESSIONS": NEVER,
        "WORKER_SELECT_TIMEOUT": SELECT_TIMEOUT_S,
        "PWGRID_ALLOWED_HOSTS": "localhost",
    }
    return running_grid("--chromium", "1", environment=environment, fake=True)


def section(port: int, *grids: Grid) -> str:
    """The page's configuration with the addresses of this test."""
    ours = recipe(PAGE, "haproxy").replace("bind :8080", f"bind 127.0.0.1:{port}")
    for number, grid in enumerate(grids, 1):
        ours = ours.replace(f"10.0.0.{number}:8080", f"127.0.0.1:{grid.port}")
    assert "10.0.0." not in ours
    return ours


def refusals(grid: Grid) -> float:
    """Clients whom this grid has refused because nobody could have a slot."""
    _, _, body = grid.get("/metrics")
    found = re.findall(rb'^pwgrid_proxy_refusals_total\{[^}]*status="503"[^}]*\} (\S+)', body, re.MULTILINE)
    return sum(map(float, found))


def test_clients_get_slots_of_every_host_and_one_that_is_gone_is_left_out(tmp_path: Path) -> None:
    """As "fleet.md" says."""
    port = free_port()
    with (
        a_grid(2) as large,
        a_grid(1) as small,
        contextlib.ExitStack() as clients,
        running("haproxy", section(port, small, large), port, tmp_path),
    ):

        def client(port: int) -> socket.socket:
            return clients.enter_context(raw.session(port))

        client(small.port)  # the small host is full
        first, second = client(port), client(port)
        assert (refusals(small), large.active()) == (2, 2), "both were sent first to the host with fewer connections"
        first.close()
        eventually(lambda: large.active() == 1, "its slot is free again")
        small.kill_everything()
        client(port)
        assert large.active() == 2
        assert raw.goes_on(second)
