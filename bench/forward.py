"""Bench: traffic through the forwarder, small and large, beside a direct connection, HAProxy and a relay in Go; and
what TLS costs in the grid's own TLS process, beside HAProxy's."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from bench.client import Client, Target
from bench.harness import CpuMeter, Options, Row, Verdict
from bench.servers import driver, grid_of
from tests.support import tls
from tests.support.forwarding import BOUND_S
from tests.support.grid import eventually, free_port
from tests.support.redis import RedisServer
from tests.support.reverse_proxies import running
from tools.reverse_proxies import find

TOLERANCE = 0.05
"""What two connections of the same kind may differ by in one run."""

_RELAY: Final = Path(__file__).with_name("relay.go")

_HAPROXY = """
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen relay
  bind 127.0.0.1:{port} {tls}
  server direct 127.0.0.1:{direct}
"""


class Front:
    """Accepts clients and offers them to the forwarder, in the place of a proxy."""

    def __init__(self, path: Path, direct: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(BOUND_S)
        self._link.connect(str(path))
        self._direct = direct
        self.target: Target = ("127.0.0.1", self._listener.getsockname()[1], "/")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                with client:
                    self._offer(client)

    def _offer(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        packet = {
            "session": f"{client.fileno()}-{time.monotonic_ns()}",
            "deadline": time.monotonic() + 2,
            "to": ("127.0.0.1", self._direct),
            "head": head.decode("latin-1"),
            "early": "",
        }
        socket.send_fds(self._link, [json.dumps(packet).encode()], [client.fileno()])
        answer = json.loads(self._link.recv(4096))
        if answer["refused"] is not None:
            raise RuntimeError(f"the forwarder has refused the client: {answer}")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._link.close()


@contextlib.contextmanager
def forwarder_and_direct() -> Iterator[tuple[Target, int, int]]:
    """What goes through a forwarder to a fake browser server, the port at which that is there directly, and the pid of
    the forwarder."""
    redis, direct = RedisServer(), free_port()
    environment = {"FAKE_TCP_PORT": str(direct), "REDIS_URL": redis.url, "ADVERTISED_HOST": "127.0.0.1"}
    try:
        with grid_of(fake=True, environment=environment) as grid:
            eventually((grid.runtime / "forwarder.sock").exists, "the forwarder listens")
            front = Front(grid.runtime / "forwarder.sock", direct)
            try:
                yield front.target, direct, grid.ask("status")["forwarder"]["pid"]
            finally:
                front.close()
    finally:
        redis.close()


@contextlib.contextmanager
def haproxy(direct: int, *, ends_tls: bool = False) -> Iterator[dict[str, Target]]:
    """HAProxy before the same server, by its name; none where it is not installed. `ends_tls`: clients speak TLS."""
    if find("haproxy") is None:
        yield {}
        return
    port = free_port()
    section = _HAPROXY.format(port=port, direct=direct, tls=f"ssl crt {tls.SERVER}" if ends_tls else "")
    with (
        tempfile.TemporaryDirectory(prefix="pwb-", dir="/tmp") as directory,
        running("haproxy", section, port, Path(directory)),
    ):
        yield {"HAProxy": over_tls(port) if ends_tls else ("127.0.0.1", port, "/")}


@contextlib.contextmanager
def go_relay(direct: int) -> Iterator[dict[str, Target]]:
    """A relay in Go before the same server, by its name; none where Go is not installed."""
    if (go := shutil.which("go")) is None:
        yield {}
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pwb-", dir="/tmp") as directory:
        relay = Path(directory) / "relay"
        cache = {"GOCACHE": f"{directory}/cache", "GO111MODULE": "off", "PATH": "/usr/bin:/bin"}
        subprocess.run([go, "build", "-o", relay, _RELAY], check=True, env=cache)
        process = subprocess.Popen([relay, str(port), str(direct)])
        try:
            eventually(lambda: _listens(port), "the relay listens")
            yield {"a Go relay": ("127.0.0.1", port, "/")}
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def over_tls(port: int) -> Target:
    return ("127.0.0.1", port, "/", str(tls.AUTHORITY))


def run(options: Options) -> list[Row]:
    return [*_forwarded(options), *_encrypted(options)]


def _forwarded(options: Options) -> list[Row]:
    rounds = options.pick(200, 20)
    with (
        Client(driver().version) as client,
        forwarder_and_direct() as (forwarded, port, pid),
        haproxy(port) as proxies,
        go_relay(port) as relays,
    ):
        others: dict[str, Target] = {**proxies, **relays}
        direct: Target = ("127.0.0.1", port, "/")
        meter = CpuMeter({"forwarder": pid})
        targets = [direct, direct, forwarded, *others.values()]
        client.order("traffic", targets=targets, rounds=1, pings=1000, messages=50)
        started = time.perf_counter()
        meter.start()
        sides = client.order("traffic", targets=targets, rounds=rounds, pings=200, messages=16)
        meter.stop()
        seconds = time.perf_counter() - started
    busy_ms_s = meter.used["forwarder"] / 1000 / seconds
    trips = [median(side["us"]) for side in sides]
    flows = [median(side["mib_s"]) for side in sides]
    slower, faster = [each / trips[0] for each in trips], [each / flows[0] for each in flows]
    rows = [
        Row(
            "round trip of 100 bytes, forwarded",
            f"{trips[2]:.1f} µs",
            f"{trips[0]:.1f} µs direct",
            f"{slower[2]:.3f} ×",
            *_no_worse(slower[2], dict(zip(others, slower[3:], strict=True)), is_more_better=False),
        ),
        Row(
            "echo of 1 MiB messages, forwarded",
            f"{flows[2]:.0f} MiB/s",
            f"{flows[0]:.0f} MiB/s direct",
            f"{faster[2]:.3f} ×",
            *_no_worse(faster[2], dict(zip(others, faster[3:], strict=True)), is_more_better=True),
        ),
    ]
    for name, trip, flow, slow, fast in zip(others, trips[3:], flows[3:], slower[3:], faster[3:], strict=True):
        rows.append(
            Row(
                f"the same through {name}",
                f"{trip:.1f} µs, {flow:.0f} MiB/s",
                f"{trips[0]:.1f} µs, {flows[0]:.0f} MiB/s direct",
                f"{slow:.3f} ×, {fast:.3f} ×",
            )
        )
    absent = {"HAProxy", "a Go relay"} - set(others)
    rows += [Row(f"the same through {name}", "left out: it is not installed here") for name in sorted(absent)]
    return [
        *rows,
        Row(
            "noise: a second direct connection",
            f"{trips[1]:.1f} µs, {flows[1]:.0f} MiB/s",
            f"{trips[0]:.1f} µs, {flows[0]:.0f} MiB/s direct",
            f"{slower[1]:.3f} ×, {faster[1]:.3f} ×",
        ),
        Row(
            f"CPU of the forwarder during {seconds:.0f} s of this",
            f"{busy_ms_s:.0f} ms/s",
        ),
    ]


def _encrypted(options: Options) -> list[Row]:
    """Plain sessions of a grid, those of one that ends TLS itself, and TLS that HAProxy ends before the plain one."""
    rounds, firsts = options.pick(100, 10), options.pick(200, 40)
    with (
        tempfile.TemporaryDirectory(prefix="pwb-", dir="/tmp") as directory,
        Client(driver().version) as client,
        grid_of(fake=True) as plain,
        grid_of(fake=True, environment=tls.copies(Path(directory))) as encrypted,
        haproxy(plain.port, ends_tls=True) as others,
    ):
        targets = [("127.0.0.1", plain.port, "/"), over_tls(encrypted.port), *others.values()]
        client.order("traffic", targets=targets, rounds=1, pings=500, messages=20)
        sides = client.order("traffic", targets=targets, rounds=rounds, pings=100, messages=8)
        answers = client.order("first_answers", targets=targets, count=firsts, pauses_ms=[5, 20], seed=1)
    figures = [
        (median(side["us"]), median(side["mib_s"]), median(first)) for side, first in zip(sides, answers, strict=True)
    ]
    rows = []
    for name, (trip, flow, first) in zip(("the grid", *others), figures[1:], strict=True):
        rows.append(
            Row(
                f"TLS that {name} ends: 100 bytes, 1 MiB, first answer",
                f"{trip:.1f} µs, {flow:.0f} MiB/s, {first:.2f} ms",
                "{:.1f} µs, {:.0f} MiB/s, {:.2f} ms plain".format(*figures[0]),
                f"{trip / figures[0][0]:.2f} ×, {flow / figures[0][1]:.2f} ×, {first / figures[0][2]:.2f} ×",
            )
        )
    return rows


def _no_worse(ratio: float, others: Mapping[str, float], *, is_more_better: bool) -> tuple[str, Verdict]:
    """As good as the best of the others, where there are any."""
    if not others:
        return "", ""
    best = max(others, key=others.__getitem__) if is_more_better else min(others, key=others.__getitem__)
    if is_more_better:
        limit = others[best] * (1 - TOLERANCE)
        return f"at least {limit:.2f} ×, as {best}", "pass" if ratio >= limit else "MISS"
    limit = others[best] * (1 + TOLERANCE)
    return f"at most {limit:.2f} ×, as {best}", "pass" if ratio <= limit else "MISS"


COMPARES = (
    "WebSockets to the same fake browser server, which echoes: two opened directly over TCP, one through the forwarder "
    "of a grid, as a client whose worker is on another host, one through HAProxy (TCP mode, splice) and one through a "
    "relay in Go (io.Copy), if these are installed. They take turns in one client; the two direct ones show how exact "
    "this machine is. TLS: the same kind of session of a plain grid, of one that ends TLS itself, and of the plain one "
    "behind an HAProxy that ends TLS (TCP mode); the first answer is from connect() to the echo of a first message."
)
