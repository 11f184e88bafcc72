"""Grids that name the same Redis, each as a host of its own, with fake browser servers; a test talks to each as clients
and operators would who are there."""

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import raw, tls
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.leases import Answer, request
from tests.support.networks import Networks
from tests.support.redis import RedisServer

SLOTS = 2
CAP = 2
"""How many sessions a run may have."""
TIMES = {
    "HEARTBEAT_INTERVAL": "0.5",
    "REDIS_KEY_TTL": "2",
    "STALE_THRESHOLD": "3",
    "SHUTDOWN_COMMAND_TTL": "20",
    "REAPER_RUN_INTERVAL": "600",
}
"""So that a host that is gone is noticed soon."""


@dataclass
class Host:
    """One of the grids. `address` is where it listens; `inside` brings the caller into its network; `trusted` checks
    its certificate, if it has one."""

    grid: Grid
    address: str
    inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    trusted: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        return f"{self.address}:{self.grid.port}"

    def connection(self) -> socket.socket:
        """That of a client that came to this host."""
        with self.inside():
            if self.trusted is not None:
                return tls.connect(self.grid.port, context=self.trusted, name=self.address)
            return socket.create_connection((self.address, self.grid.port), raw.STALL_S)

    def session(self, target: str = "/") -> socket.socket:
        """A session of such a client."""
        sock = raw.upgraded(self.connection(), raw.head(target=target))
        assert raw.goes_on(sock)
        return sock

    @contextlib.contextmanager
    def waiting(self, target: str) -> Iterator[socket.socket]:
        """A client that has no answer yet."""
        with self.connection() as sock:
            sock.sendall(raw.head(target=target))
            yield sock

    def refused(self, target: str = "/") -> tuple[int, str]:
        with pytest.raises(OSError, match="no upgrade") as caught:
            raw.upgraded(self.connection(), raw.head(target=target)).close()
        found = re.search(r"HTTP/1.1 (\d+).*?(\{.*)", str(caught.value), re.DOTALL)
        assert found is not None
        return int(found[1]), found[2]

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        with self.inside():
            return request(self.grid, method, path, body, self.trusted)

    def get(self, path: str) -> dict[str, Any]:
        return self.ask("GET", path).body

    def workers(self) -> set[str]:
        """The ids of its own."""
        return {worker["id"] for worker in self.grid.status()["workers"]}

    def live(self) -> list[dict[str, Any]]:
        """The grid's live sessions."""
        found: list[dict[str, Any]] = self.get("/v1/sessions?status=running")["sessions"]
        return found

    def metric(self, name: str) -> float:
        with self.inside():
            text = self.grid.get("/metrics")[2].decode()
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])


def host(
    redis_url: str, address: str, pools: str, *, prefix: str = "", **environment: str
) -> contextlib.AbstractContextManager[Grid]:
    """The grid of a host with this address."""
    ours = {
        **WITHOUT_SPARES,
        **TIMES,
        "REDIS_URL": redis_url,
        "PWGRID_HOST": address,
        "ADVERTISED_HOST": address,
        "MAX_CONCURRENT_SESSIONS": str(SLOTS),
        "POOL_CONFIG": pools,
        "WORKER_SELECT_TIMEOUT": "20",
        "MAX_SESSIONS_PER_RUN": str(CAP),
        "BORROW_RECONNECT_GRACE": "600",
    }
    return running_grid(environment={**ours, **environment}, fake=True, prefix=prefix)


@contextlib.contextmanager
def host_inside(networks: Networks, name: str, redis_url: str, pools: str) -> Iterator[Host]:
    """A host in a network of its own."""
    address = networks.addresses[name]
    running = host(redis_url, address, pools, ALLOW_PUBLIC="true")

    def ends(*how: Any) -> bool | None:
        with networks.inside(name):
            return running.__exit__(*how)

    with networks.inside(name):
        grid = running.__enter__()
    with contextlib.ExitStack() as held:
        held.push(ends)
        yield Host(grid, address, lambda: networks.inside(name))


@contextlib.contextmanager
def redis_inside(networks: Networks, name: str) -> Iterator[str]:
    """The URL of a Redis in a network of its own."""
    address = networks.addresses[name]
    with networks.inside(name):
        server = RedisServer("--port", "6379", "--bind", address, "--protected-mode", "no")
    with contextlib.closing(server):
        yield f"redis://{address}:6379"


def know_each_other(*hosts: Host) -> None:
    for each in hosts:
        names = sorted(host.name for host in hosts)
        eventually(
            lambda each=each, names=names: (
                [host["name"] for host in each.get("/v1/hosts")["hosts"] if host["state"] == "serving"] == names
            ),
            f"{each.name} knows all hosts",
        )


def stand_in_line(host: Host, target: str, place: int, held: contextlib.ExitStack) -> socket.socket:
    """A client that has come to this place in the line of its host, where it stays as long as `held`."""
    client = held.enter_context(host.waiting(target))
    eventually(lambda: host.get("/v1/status")["waiting"] == place, "it waits")
    return client


@contextlib.contextmanager
def full(host: Host, pool: str = "both-chromium-uat") -> Iterator[list[socket.socket]]:
    """Its own workers of a pool are full."""
    with contextlib.ExitStack() as clients:
        yield [clients.enter_context(host.session(f"/?pool={pool}")) for _ in range(SLOTS)]


def hosts_of_sessions(host: Host) -> list[str]:
    return sorted(each["host"] for each in host.live())


def raw_name(sock: socket.socket) -> str:
    """Its address, as a record has it."""
    address, port = sock.getsockname()[:2]
    return f"{address}:{port}"


def is_lost(host: Host, session_id: str, lost: Host) -> bool:
    found = host.get(f"/v1/sessions/{session_id}")
    if found["reasonKind"] != "host lost":
        return False
    assert found["reason"] == f"its host is gone: {lost.name}"
    return True


def drain(host: Host, *arguments: str) -> str:
    done = host.grid.command("drain", "--host", *arguments)
    assert done.returncode == 0, done
    return done.stdout
