"""A grid with a certificate: real processes, real TLS, a fake browser server that echoes. The TLS process copies all
bytes, as where the kernel has no TLS; test_kernel_tls.py has the other case."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from websockets.sync.client import connect

from pwgrid.cli.ask_grid import find_grid
from pwgrid.cli.ask_hosts import ask_host, ask_master_of, other_hosts
from pwgrid.cli.install import supervisord
from pwgrid.common.errors import GridError, Refused
from pwgrid.common.proxy_protocol import hand_over, line_of
from pwgrid.master.tls import STOP_GRACE_S
from tests.support import raw, tls
from tests.support.grid import (
    ROOT,
    WITHOUT_SPARES,
    Grid,
    eventually,
    kill_and_await_successor,
    running_grid,
    wait_for_end,
)
from tests.support.hosts import Host, host, hosts_of_sessions, know_each_other
from tests.support.https_server import CERTIFICATES
from tests.support.leases import CHROMIUM
from tests.support.raw import GOODBYE, frame, goes_on, head
from tests.support.redis import RedisServer
from tests.support.shown_by_hand import packet, read_packet, shown_by_hand
from tests.support.tls import session

LOST_S: Final = 2.0
MIB: Final = 1 << 20
SENTENCE: Final = "this port speaks TLS: use wss:// or https://"


@contextlib.contextmanager
def tls_grid(workers: int = 1, **settings: str) -> Iterator[Grid]:
    with tempfile.TemporaryDirectory(prefix="pgtls-") as directory:
        environment = {
            **WITHOUT_SPARES,
            **tls.copies(Path(directory)),
            "WORKER_LOST_THRESHOLD": str(LOST_S),
            "PWGRID_LOG_LEVEL": "debug",
            "TLS_KERNEL": "off",
            **settings,
        }
        with running_grid("--chromium", str(workers), environment=environment, fake=True) as grid:
            yield grid


@pytest.fixture(scope="module")
def shared() -> Iterator[Grid]:
    with tls_grid(MAX_CONCURRENT_SESSIONS="20", PWGRID_POOL_CONFIG=f"{CHROMIUM}=1") as grid:
        yield grid


@pytest.fixture
def grid(shared: Grid) -> Iterator[Grid]:
    """A grid whose TLS process has no client before the test and after it, and then no descriptor more than before."""
    pid = tls_pid(shared)
    before = descriptors(pid)
    yield shared
    if tls_pid(shared) == pid:
        eventually(lambda: descriptors(pid) == before, "no descriptor is left over")
    eventually(lambda: shared.active() == 0, "no slot is taken")


def tls_status(grid: Grid) -> dict[str, Any]:
    found: dict[str, Any] = grid.ask("status")["tls"]
    return found


def tls_pid(grid: Grid) -> int:
    pid: int = eventually(lambda: tls_status(grid)["pid"], "the TLS process runs")
    return pid


def descriptors(pid: int) -> int:
    """Its sockets: libuv keeps another descriptor from its first connection on."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(link).startswith("socket:")
    return count


def ask(grid: Grid, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    """One request by HTTPS."""
    asks = http.client.HTTPSConnection("localhost", grid.port, timeout=raw.STALL_S, context=tls.trusting())
    with contextlib.closing(asks):
        asks.request(method, path, headers=headers)
        answer = asks.getresponse()
        return answer.status, json.loads(answer.read())


def running(grid: Grid) -> dict[str, Any]:
    """The one session that there is; the record follows a moment later."""

    def look() -> list[dict[str, Any]]:
        return [each for each in ask(grid, "/v1/sessions")[1]["sessions"] if each["status"] == "running"]

    found: dict[str, Any] = eventually(look, "its record says so")[0]
    return found


def certificate_files(grid: Grid) -> tuple[Path, Path]:
    return Path(grid.environment["PWGRID_TLS_CERT"]), Path(grid.environment["PWGRID_TLS_KEY"])


def shown_certificate(grid: Grid) -> bytes:
    """The one that a new client gets, whoever has signed it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tls.connect(grid.port, context=context) as sock:
        return sock.getpeercert(binary_form=True) or b""


# What is served


def test_a_session_comes_by_wss_and_its_client_s_address_is_known(grid: Grid) -> None:
    with session(grid.port, source="127.0.0.7") as sock:
        port = sock.getsockname()[1]
        found = running(grid)
        assert found["client"] == f"127.0.0.7:{port}"
        sock.sendall(GOODBYE)
        raw.read_all(sock)


def test_the_status_says_where_sessions_are_encrypted(grid: Grid) -> None:
    eventually(lambda: tls_status(grid)["whyNotKernel"] == "TLS_KERNEL is off", "the status says so")
    assert "0 sessions, not in the kernel: TLS_KERNEL is off" in grid.command("status").stdout


def test_the_grid_s_own_addresses_are_encrypted_ones(grid: Grid) -> None:
    assert (grid.endpoint, grid.http) == (f"wss://127.0.0.1:{grid.port}", f"https://127.0.0.1:{grid.port}")
    assert ask(grid, "/health/ready")[0] == 200
    assert supervisord.is_ready("127.0.0.1", grid.port)
    status, version = ask(grid, "/json/version")
    assert status == 200
    assert version["webSocketDebuggerUrl"].startswith(f"wss://localhost:{grid.port}/")
    lease = lent(grid)
    assert lease["webSocketEndpoint"].startswith(f"wss://localhost:{grid.port}/")
    target = lease["webSocketEndpoint"].partition(f":{grid.port}")[2]
    with session(grid.port, target=target) as sock:
        sock.sendall(GOODBYE)


def lent(grid: Grid) -> dict[str, Any]:
    lease = post(grid, "/session/borrow", {"labelKey": CHROMIUM})
    assert "webSocketEndpoint" in lease, lease
    return lease


def post(grid: Grid, path: str, content: dict[str, str]) -> dict[str, Any]:
    asks = http.client.HTTPSConnection("localhost", grid.port, timeout=raw.STALL_S, context=tls.trusting())
    with contextlib.closing(asks):
        asks.request("POST", path, json.dumps(content), {"content-type": "application/json"})
        answer: dict[str, Any] = json.loads(asks.getresponse().read())
        return answer


@pytest.mark.parametrize("request_head", [head(), b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00\x01"])
def test_nobody_is_served_in_clear(grid: Grid, request_head: bytes) -> None:
    status, _, body = raw.answer(grid.port, request_head)
    assert (status, body) == (400, {"error": SENTENCE})


def test_an_older_tls_is_not_spoken(grid: Grid) -> None:
    old = tls.trusting()
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, OSError)):
        tls.connect(grid.port, context=old)
    with tls.connect(grid.port) as sock:
        assert sock.version() == "TLSv1.3"


def test_only_the_grid_s_own_user_reaches_the_socket_behind_it_and_says_whose_it_is(grid: Grid) -> None:
    path = grid.runtime / "tls.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(raw.STALL_S)
        sock.connect(str(path))
        sock.sendall(head())
        assert raw.read_all(sock) == b""


@contextlib.contextmanager
def handed_over(grid: Grid, line: bytes | None = None) -> Iterator[socket.socket]:
    """A client whose own socket the proxy gets, as one whose TLS is in the kernel; here it is in clear."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), raw.STALL_S)
        with listener.accept()[0] as accepted:
            said = line or line_of(client.getsockname(), ("127.0.0.1", grid.port))
            hand_over(grid.runtime / "tls.sock", said, accepted)
    with client:
        yield client


def test_a_client_that_is_handed_over_by_its_own_socket_outlives_each_process() -> None:
    with tls_grid(workers=2) as grid, handed_over(grid) as client:
        sock = raw.upgraded(client, head())
        assert goes_on(sock)
        assert running(grid)["client"] == f"127.0.0.1:{sock.getsockname()[1]}"
        status = grid.ask("status")
        for victim in (tls_pid(grid), status["proxy"]["pid"], *(each["pid"] for each in status["workers"])):
            kill_and_await_successor(grid, victim)
            assert goes_on(sock)
        grid.kill_master()
        grid.start_again()
        assert goes_on(sock)
        sock.sendall(GOODBYE)
        assert raw.read_all(sock).endswith(b"\x03\xe8")
        sock.close()
        eventually(lambda: grid.active() == 0, "its slot is free")


def test_a_client_that_is_handed_over_asks_a_grid_that_speaks_tls(grid: Grid) -> None:
    with handed_over(grid) as client:
        client.sendall(b"GET /json/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'"wss://localhost' in raw.read_all(client)


def test_a_client_that_is_handed_over_while_there_is_no_proxy_waits_for_one() -> None:
    with tls_grid() as grid:
        proxy = grid.ask("status")["proxy"]["pid"]
        os.kill(proxy, signal.SIGSTOP)
        with handed_over(grid) as client:
            client.sendall(head())
            os.kill(proxy, signal.SIGKILL)
            assert client.recv(12) == b"HTTP/1.1 101"


def test_a_client_that_is_handed_over_without_a_line_is_disconnected(grid: Grid) -> None:
    with handed_over(grid, b"PROXY UNKNOWN\r\n") as client:
        assert raw.read_all(client) == b""


def test_64_mib_of_random_bytes_come_back_as_they_were(grid: Grid) -> None:
    sent, received = hashlib.sha256(), hashlib.sha256()
    source = random.Random(7)
    with session(grid.port) as sock:

        def send() -> None:
            for _ in range(64):
                content = source.randbytes(MIB)
                sent.update(content)
                sock.sendall(frame(content))

        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(64):
            header = read_exactly(sock, 10)
            assert header == b"\x82\x7f" + MIB.to_bytes(8)
            received.update(read_exactly(sock, MIB))
        sender.join()
        assert sent.digest() == received.digest()


def read_exactly(sock: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        chunk = sock.recv(size - len(content))
        assert chunk, "it has ended"
        content += chunk
    return bytes(content)


def test_a_client_that_reads_nothing_costs_little_memory(grid: Grid) -> None:
    process = psutil.Process(tls_pid(grid))
    with session(grid.port) as sock:
        before = process.memory_info().rss
        for _ in range(32):  # the fake takes all of it, and echoes as much as is taken from it
            sock.sendall(frame(bytes(MIB)))
        assert process.memory_info().rss - before < 8 * MIB
        raw.reset_at_close(sock)


def test_a_client_that_ends_without_a_word_frees_its_slot(grid: Grid) -> None:
    with session(grid.port) as sock:
        assert grid.active() == 1
        raw.reset_at_close(sock)
    eventually(lambda: grid.active() == 0, "its slot is free")


def test_what_the_grid_says_last_reaches_its_client(grid: Grid) -> None:
    with session(grid.port) as sock:
        found = running(grid)
        assert ask(grid, f"/v1/sessions/{found['id']}", "DELETE")[0] < 300
        assert raw.read_all(sock).startswith(b"\x88")


# Another certificate


def test_a_new_certificate_is_for_new_clients_and_ends_nobody(grid: Grid, tmp_path: Path) -> None:
    certificate, key = certificate_files(grid)
    old, another = certificate.read_bytes(), tls.own_pair(tmp_path)
    before = shown_certificate(grid)
    with session(grid.port) as sock:
        try:
            for path in (certificate, key):
                shutil.copyfile(another, path.with_name("new"))
                path.with_name("new").replace(path)
            eventually(lambda: shown_certificate(grid) != before, "it is taken")
            assert goes_on(sock)
        finally:
            for path in (certificate, key):
                path.write_bytes(old)
        eventually(lambda: shown_certificate(grid) == before, "the old one is back")
        assert goes_on(sock)


def test_a_broken_pair_keeps_the_one_before_it_and_the_status_says_so(grid: Grid, tmp_path: Path) -> None:
    certificate, _ = certificate_files(grid)
    old, another = certificate.read_bytes(), tls.own_pair(tmp_path)
    before = shown_certificate(grid)
    try:
        shutil.copyfile(another, certificate)
        grid.process.send_signal(signal.SIGHUP)  # a reload looks at once
        problem = eventually(lambda: tls_status(grid)["problem"], "the status says so")
        assert "the key does not belong to the certificate" in problem
        assert problem in grid.command("status").stdout
        assert shown_certificate(grid) == before
    finally:
        certificate.write_bytes(old)
        grid.process.send_signal(signal.SIGHUP)
    eventually(lambda: tls_status(grid)["problem"] is None, "it is mended")


# The end of the TLS process, and of others


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_tls_process_that_is_killed_or_frozen_ends_its_sessions_alone(signum: signal.Signals) -> None:
    with tls_grid() as grid:
        pid = tls_pid(grid)
        socks = [session(grid.port) for _ in range(3)]
        assert grid.active() == 3
        os.kill(pid, signum)
        with contextlib.ExitStack() as open_socks:
            for sock in socks:
                open_socks.enter_context(sock)
                with contextlib.suppress(OSError):  # a reset, or an end without TLS' own
                    assert raw.read_all(sock) == b""
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            wait_for_end(pid)
        eventually(lambda: grid.active() == 0, "their slots are free")
        with session(grid.port) as sock:  # it waits until another one accepts
            assert grid.active() == 1
            assert tls_pid(grid) != pid
            sock.sendall(GOODBYE)
            raw.read_all(sock)
        assert os.listdir(grid.runtime / "tls") == [f"{tls_pid(grid)}.json"]


def test_a_tls_process_that_has_to_start_with_broken_files_serves_as_soon_as_they_are_mended() -> None:
    with tls_grid() as grid:
        certificate, _ = certificate_files(grid)
        good = certificate.read_bytes()
        certificate.write_bytes(b"")
        os.kill(tls_pid(grid), signal.SIGKILL)
        eventually(lambda: "certificate_not_usable" in grid.output(), "the log says why")
        assert "Traceback" not in grid.output()
        certificate.write_bytes(good)
        with session(grid.port) as sock:
            assert goes_on(sock)


def test_a_client_whose_worker_is_frozen_goes_on_with_another() -> None:
    with tls_grid(workers=2, WORKER_LOST_THRESHOLD="30") as grid:
        with session(grid.port) as sock:
            victim = eventually(lambda: [each for each in grid.status()["workers"] if each["active"]], "it is live")[0]
            sock.sendall(GOODBYE)
        eventually(lambda: grid.active() == 0, "it has ended")
        os.kill(victim["pid"], signal.SIGSTOP)  # the selection takes the one that has had most sessions
        try:
            with session(grid.port) as sock:
                assert goes_on(sock)
            assert "offer_failed" in grid.output()
        finally:
            os.kill(victim["pid"], signal.SIGCONT)


def test_no_session_ends_with_proxy_worker_or_master() -> None:
    with tls_grid() as grid, session(grid.port) as sock:
        status, pid = grid.ask("status"), tls_pid(grid)
        for victim in (status["proxy"]["pid"], status["workers"][0]["pid"]):
            os.kill(victim, signal.SIGKILL)
            wait_for_end(victim)
            assert goes_on(sock)
        with session(grid.port) as other:  # both are replaced
            assert goes_on(other)
            grid.kill_master()
            assert goes_on(sock)
            grid.start_again()
            assert goes_on(sock)
            assert goes_on(other)
        assert tls_pid(grid) == pid
        with session(grid.port) as later:
            assert goes_on(later)


def test_an_upgrade_ends_no_session_and_the_old_process_goes_with_its_last_one() -> None:
    with tls_grid() as grid:
        old = tls_pid(grid)
        with session(grid.port) as sock:
            assert grid.command("upgrade", "--force").returncode == 0
            eventually(lambda: tls_pid(grid) != old, "another one accepts")
            with session(grid.port) as new:
                assert goes_on(new)
            assert goes_on(sock)
            assert psutil.pid_exists(old)
            grid.kill_master()  # and the next one knows the old one
            grid.start_again()
            assert goes_on(sock)
            assert psutil.pid_exists(old)
        wait_for_end(old)
        with session(grid.port) as sock:
            assert goes_on(sock)


def test_nothing_is_left_of_a_grid_whose_master_does_not_come_back() -> None:
    with tls_grid(DRAIN_TIMEOUT="1") as grid, session(grid.port) as sock:
        grid.kill_master()
        assert goes_on(sock)
        assert raw.read_all(sock).startswith(b"\x88")  # the drain is over, and its client hears why
        sock.close()
        eventually(lambda: not grid.processes(), "all have ended")


def test_a_stop_lets_sessions_go_on_as_without_tls() -> None:
    with tls_grid(DRAIN_TIMEOUT="60") as grid, session(grid.port) as sock:
        grid.process.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 live session" in grid.output(), "it waits for the session")
        assert goes_on(sock)
        grid.command("stop", "--now", "--no-wait")
        assert raw.read_all(sock).startswith(b"\x88")  # and its client hears why


# Several hosts


@contextlib.contextmanager
def tls_host(redis: RedisServer, address: str, pair: Path, authority: Path, **changes: str) -> Iterator[Host]:
    """A host with one slot. Its clients trust its certificate, and itself those that this authority has signed."""
    files = {"PWGRID_TLS_CERT": str(pair), "PWGRID_TLS_KEY": str(pair), "PWGRID_TLS_CA": str(authority)}
    with host(redis.url, address, f"{CHROMIUM}=1", MAX_CONCURRENT_SESSIONS="1", **files, **changes) as grid:
        yield Host(grid, address, trusted=tls.trusting(pair))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


def test_hosts_reach_each_other_over_tls(redis: RedisServer, tmp_path: Path) -> None:
    pair = tls.own_pair(tmp_path, "IP:127.0.0.1,IP:127.0.0.2")
    with (
        tls_host(redis, "127.0.0.1", pair, pair) as first,
        tls_host(redis, "127.0.0.2", pair, pair) as second,
    ):
        know_each_other(first, second)
        with first.session() as own, first.session() as forwarded:
            eventually(lambda: hosts_of_sessions(first) == [first.name, second.name], "both are on record")
            content = os.urandom(MIB)
            forwarded.sendall(frame(content))
            assert read_exactly(forwarded, 10) == b"\x82\x7f" + MIB.to_bytes(8)
            assert read_exactly(forwarded, MIB) == content
            os.kill(first.grid.ask("status")["forwarder"]["pid"], signal.SIGKILL)
            assert goes_on(forwarded)
            assert first.grid.command("upgrade", "--force").returncode == 0  # which replaces the TLS process, too
            assert goes_on(forwarded)
            (there,) = [each for each in first.live() if each["host"] == second.name]
            is_shown(first, second, there)
            first.ask("DELETE", f"/v1/sessions/{there['id']}")  # a question to the other host
            assert raw.read_all(forwarded).startswith(b"\x88")
            forwarded.close()
            eventually(lambda: hosts_of_sessions(first) == [first.name], "it has ended")
            with first.session() as again:  # by the new TLS process
                assert goes_on(again)
                again.sendall(GOODBYE)
            assert goes_on(own)


def test_a_stop_lets_forwarded_sessions_go_on_also_once_all_workers_have_ended(
    redis: RedisServer, tmp_path: Path
) -> None:
    pair = tls.own_pair(tmp_path, "IP:127.0.0.1,IP:127.0.0.2")
    changes = {"DRAIN_TIMEOUT": "60", "TLS_KERNEL": "off"}
    with (
        tls_host(redis, "127.0.0.1", pair, pair, **changes) as first,
        tls_host(redis, "127.0.0.2", pair, pair, **changes) as second,
    ):
        know_each_other(first, second)
        with first.session() as own, first.session() as forwarded:
            eventually(lambda: hosts_of_sessions(first) == [first.name, second.name], "both are on record")
            own.close()
            first.grid.process.send_signal(signal.SIGTERM)
            eventually(lambda: first.grid.ask("status")["proxy"]["pid"] is None, "workers and proxy have ended")
            assert not select.select([forwarded], [], [], 1.5 * STOP_GRACE_S)[0]
            assert goes_on(forwarded)
        assert first.grid.stop() == 0


def is_shown(host: Host, other: Host, session: dict[str, Any]) -> None:
    """A host shows a session of another one."""
    image = os.urandom(MIB)
    with shown_by_hand(other, session["workerId"]) as listener:
        url = f"{host.grid.endpoint}/v1/live/{session['id']}"
        with connect(url, ssl=host.trusted, max_size=None) as page, listener.accept()[0] as shows:
            shows.settimeout(raw.STALL_S)
            assert read_packet(shows) == {"session": session["id"], "operator": True}
            shows.sendall(packet(image, 1))
            assert page.recv(timeout=raw.STALL_S) == image
            page.send('{"ack":true}')
            assert read_packet(shows) == {"ack": True}


def test_the_command_line_asks_other_hosts_over_tls(redis: RedisServer, tmp_path: Path) -> None:
    pair = tls.own_pair(tmp_path, "IP:127.0.0.1,IP:127.0.0.2")
    with (
        tls_host(redis, "127.0.0.1", pair, pair) as first,
        tls_host(redis, "127.0.0.2", pair, tls.AUTHORITY) as second,
    ):
        know_each_other(first, second)
        here, there = (find_grid(each.grid.port, str(each.grid.runtime.parent)) for each in (first, second))
        ((to_second,), (to_first,)) = other_hosts(here, first.name), other_hosts(there, second.name)
        assert ask_host(here, to_second, {"token": "of-nobody"})["isHere"] is False
        with pytest.raises(Refused, match="no host asks another one for 'status'"):
            ask_master_of(here, to_second, "status", {})
        with pytest.raises(Refused, match="there is no pool 'unknown'"):  # its master says so
            ask_master_of(here, to_second, "scale", {"unknown": 1})
        with pytest.raises(GridError, match=rf"host {first.name} does not answer: .*certificate verify failed"):
            ask_host(there, to_first, {"token": "of-nobody"})  # which trusts others


def test_a_host_whose_certificate_is_not_trusted_gets_no_client(redis: RedisServer, tmp_path: Path) -> None:
    pair = tls.own_pair(tmp_path, "IP:127.0.0.1,IP:127.0.0.2")
    with (
        tls_host(redis, "127.0.0.1", pair, tls.AUTHORITY) as first,
        tls_host(redis, "127.0.0.2", pair, pair) as second,
    ):
        know_each_other(first, second)
        with first.session(), first.waiting("/"):
            eventually(
                lambda: "its certificate is not trusted (TLS_CA): self-signed certificate" in first.grid.output(),
                "the log says why",
            )
            eventually(lambda: hosts_of_sessions(first) == [first.name], "only its own worker has one")


# What is wrong at the start


def test_a_grid_whose_key_is_another_one_s_does_not_start(tmp_path: Path) -> None:
    files = {"PWGRID_TLS_CERT": str(tls.SERVER), "PWGRID_TLS_KEY": str(CERTIFICATES / "client.pem")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PWGRID")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fake_grid", "serve", "--port", "0", "--chromium", "1"],
        cwd=ROOT,
        env={**environment, **files, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=raw.STALL_S,
        check=False,
    )
    assert done.returncode == 1
    assert "the key does not belong to the certificate in" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_master_may_have_a_certificate_where_the_one_before_it_had_none(tmp_path: Path) -> None:
    with running_grid("--chromium", "1", environment=WITHOUT_SPARES, fake=True) as grid, raw.session(grid.port) as sock:
        before = grid.status()["proxy"]["pid"]
        grid.kill_master()
        grid.environment |= tls.copies(tmp_path)
        grid.start_again()
        eventually(lambda: grid.status()["proxy"]["pid"] not in (before, None), "another proxy is there")
        asks = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        eventually(lambda: raw.answer(grid.port, asks)[0] == 400, "nobody is served in clear any more")
        with session(grid.port) as encrypted:
            assert goes_on(encrypted)
        assert goes_on(sock)  # as it came
