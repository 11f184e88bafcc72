"""A grid below a path of nginx and of HAProxy, which speak TLS, with the configuration that docs/connect.md has."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import need
from tests.support import raw
from tests.support.grid import ROOT, Grid, eventually, free_port, running_grid
from tests.support.https_server import CERTIFICATES
from tests.support.leases import CHROMIUM
from tests.support.reverse_proxies import NAMES, reverse_proxy, section

AUTHORITY: Final = str(CERTIFICATES / "authority.pem")
SLOTS: Final = 2
LONGEST_WAIT_S: Final = 600
"""The longest that docs/ci.md recommends."""

CLIENT: Final = """\
import json, sys
from playwright.sync_api import expect, sync_playwright
from pwgrid.client import borrow

with sync_playwright() as playwright:
    def shown(endpoint, url):
        browser = playwright.chromium.connect(endpoint)
        page = browser.new_page(ignore_https_errors=True)  # a browser's trust is not what is tested
        page.goto(url)
        expect(page.locator("#link")).to_have_text("live")  # by its WebSocket
        seen = page.url
        browser.close()
        return seen

    for line in sys.stdin:
        url, label_key = line.split()
        with borrow(label_key, grid=url) as lease:
            lent = shown(lease.ws_endpoint, url)
        connected = shown(url.replace("https:", "wss:") + "?labels=" + label_key, url.removesuffix("/"))
        print(json.dumps([lease.ws_endpoint, lent, connected]), flush=True)
"""
"""Looks at the grid's page with a browser of the grid. Reads a URL and a label key for each time."""


@dataclass(frozen=True)
class Behind:
    """A grid and its reverse proxies' port, at which they listen one after the other."""

    grid: Grid
    port: int

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/grid/"

    def client(self, source: str = "127.0.0.1", **headers: str) -> ssl.SSLSocket:
        """A client that has asked for a session, from that address of this host."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30, source_address=(source, 0))
        encrypted = ssl.create_default_context(cafile=AUTHORITY).wrap_socket(sock, server_hostname="localhost")
        encrypted.sendall(raw.head(target="/grid/", Host=f"localhost:{self.port}", **headers))
        return encrypted

    def waiting(self) -> int:
        _, _, body = self.grid.get("/v1/status")
        waiting: int = json.loads(body)["waiting"]
        return waiting

    def addresses(self) -> set[str]:
        """Of the clients that have a session."""
        _, _, body = self.grid.get("/v1/sessions?status=running")
        return {each["client"] for each in json.loads(body)["sessions"]}


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    need("chromium")
    port = free_port()
    environment = {
        "PWGRID_ADVERTISED_URL": f"https://localhost:{port}/grid",
        "PWGRID_TRUSTED_PROXIES": "127.0.0.1",
        "POOL_CONFIG": f"{CHROMIUM}=1",
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
        "WORKER_SELECT_TIMEOUT": str(LONGEST_WAIT_S),
    }
    with running_grid(environment=environment) as grid:
        yield Behind(grid, port)


@pytest.fixture(scope="module")
def client() -> Iterator[Callable[[str], list[str]]]:
    """Runs CLIENT's round with a URL: the borrowed endpoint, and where the page was seen, twice."""
    trust = {"SSL_CERT_FILE": AUTHORITY, "NODE_EXTRA_CA_CERTS": AUTHORITY}
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        cwd=ROOT,
        env={**os.environ, **trust},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(url: str) -> list[str]:
            process.stdin.write(f"{url} {CHROMIUM}\n")
            answer: list[str] = json.loads(process.stdout.readline())
            return answer

        yield run
        process.stdin.close()


@pytest.mark.parametrize("name", NAMES)
def test_clients_come_by_nginx_and_haproxy_as_connect_md_has_them(
    name: str, client: Callable[[str], list[str]], behind: Behind, tmp_path: Path
) -> None:
    """As "connect.md" says."""
    assert behind.grid.endpoint == behind.url.replace("https:", "wss:")
    with reverse_proxy(name, behind.port, behind.grid.port, tmp_path):
        endpoint, *seen = client(behind.url)
        assert endpoint.startswith(f"wss://localhost:{behind.port}/grid/lease/")
        assert seen == [behind.url] * 2
        its_address_is_known_and_it_waits_until_it_leaves(behind)


def its_address_is_known_and_it_waits_until_it_leaves(behind: Behind) -> None:
    with ExitStack() as clients:
        for number in range(SLOTS):
            client = clients.enter_context(behind.client(f"127.0.0.{number + 5}", X_Forwarded_For="192.0.2.1"))
            assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
            assert raw.goes_on(client)
        eventually(lambda: behind.addresses() == {"127.0.0.5", "127.0.0.6"}, "their addresses are known")
        waiting = behind.client()
        eventually(lambda: behind.waiting() == 1, "one waits")
        waiting.close()
        eventually(lambda: behind.waiting() == 0, "it has left the line")
    eventually(lambda: behind.grid.active() == 0, "all sessions are over")


@pytest.mark.parametrize("name", NAMES)
def test_the_timeouts_of_connect_md_are_longer_than_the_longest_wait(name: str) -> None:
    timeouts = re.findall(r"timeout (?:client |server |tunnel )?(\d+)m\b", section(name))
    assert len(timeouts) == {"nginx": 1, "haproxy": 3}[name]
    assert all(int(minutes) * 60 > LONGEST_WAIT_S for minutes in timeouts)
