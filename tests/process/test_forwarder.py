"""The forwarder of a real grid: clients of another host's workers, whose sessions outlive the forwarder and the master.

What offers clients here is a stand-in for the proxy, and the other host is a plain TCP server
(tests/support/forwarding.py).
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pwgrid.forwarder.spliced_session import HALF_ENDED_S
from tests.support.forwarding import (
    SWITCHING,
    OtherHost,
    StandInProxy,
    Stream,
    goes_both_ways,
    is_over,
    received,
    stream_between,
)
from tests.support.grid import NEVER, Grid, eventually, running_grid, wait_for_end
from tests.support.master_grid import PATIENCE_S
from tests.support.raw import reset_at_close
from tests.support.redis import RedisServer

LOST_S = 2.0


def grid_with_forwarder(redis: RedisServer, **settings: str) -> Any:
    environment = {
        "REDIS_URL": redis.url,
        "ADVERTISED_HOST": "127.0.0.1",
        "MAX_LIFETIME_SESSIONS": NEVER,
        "WORKER_LOST_THRESHOLD": str(LOST_S),
        "LOG_LEVEL": "debug",
        **settings,
    }
    return running_grid("--chromium", "1", environment=environment, fake=True)


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def another_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared(own_redis: RedisServer) -> Iterator[Grid]:
    with grid_with_forwarder(own_redis) as grid:
        yield grid


@pytest.fixture
def grid(shared: Grid) -> Iterator[Grid]:
    """A grid whose forwarder has no session, before the test and after it, and then no descriptor more than before."""
    before = descriptors(shared)
    yield shared
    eventually(lambda: forwarder(shared)["sessions"] == 0, "no session is parked")
    eventually(lambda: descriptors(shared) == before, "no descriptor is left over")


@pytest.fixture
def proxy(grid: Grid) -> Iterator[StandInProxy]:
    with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
        yield proxy


@pytest.fixture
def host() -> Iterator[OtherHost]:
    with OtherHost() as host:
        yield host


def forwarder(grid: Grid) -> dict[str, Any]:
    found: dict[str, Any] = grid.ask("status")["forwarder"]
    return found


def pid_of(grid: Grid) -> int:
    """Of the forwarder that runs, perhaps the next one."""
    pid: int = eventually(lambda: forwarder(grid)["pid"], "the forwarder runs")
    return pid


def descriptors(grid: Grid) -> tuple[int, int]:
    """How many the master and the forwarder have open, but for links of proxies and visitors."""
    return tuple(_sockets_and_pipes(pid) for pid in (grid.process.pid, pid_of(grid)))  # type: ignore[return-value]


def _sockets_and_pipes(pid: int) -> int:
    """TCP sockets and pipes: what sessions are made of. Links on Unix sockets come and go."""
    pipes = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            pipes += os.readlink(link).startswith("pipe:")
    return len(psutil.Process(pid).net_connections("tcp")) + pipes


def kill_forwarder(grid: Grid) -> int:
    """SIGKILL; returns the pid of the one that was killed, once its end is known."""
    pid = pid_of(grid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: forwarder(grid)["pid"] != pid, "the master knows of its end")
    return pid


def wait_until_gone(pid: int) -> None:
    try:
        wait_for_end(pid)
    except ProcessLookupError:
        return


def parked(grid: Grid, count: int) -> None:
    eventually(lambda: forwarder(grid)["sessions"] == count, f"{count} sessions are parked")


def sent_until_full(sock: socket.socket, chunk: bytes) -> bytearray:
    """What it took until it took nothing more for a while."""
    sent = bytearray()
    sock.settimeout(0.2)
    with suppress(TimeoutError):
        while len(sent) < 256 << 20:
            sent += chunk[: sock.send(chunk)]
    assert len(sent) < 256 << 20, "nothing stops the sender"
    return sent


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


# One session


def test_a_client_is_joined_to_the_other_host(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, accepted = proxy.client()
    early = "sent early \xff"
    session = proxy.offer(accepted, ("127.0.0.1", host.port), early=early)
    client.sendall(b", sent before the answer")
    served = host.accept(early)
    before = time.monotonic()
    served.sendall(SWITCHING + b"the first frame")
    answer = proxy.answer()
    assert (answer["session"], answer["refused"]) == (session, None)
    assert before <= answer["servedAt"] <= time.monotonic()
    with client, served:
        assert received(client, len(SWITCHING) + 15) == SWITCHING + b"the first frame"
        assert received(served, 24) == b", sent before the answer"
        assert goes_both_ways(client, served)
        parked(grid, 1)
        # Either end may be the first; what comes after it still arrives.
        client.shutdown(socket.SHUT_WR)
        assert served.recv(1) == b""
        served.sendall(b"the last frame")
        served.shutdown(socket.SHUT_WR)
        assert received(client, 100) == b"the last frame"


def test_a_name_is_looked_up_and_each_of_its_addresses_tried(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, accepted = proxy.client()
    proxy.offer(accepted, ("localhost", host.port))  # which is ::1, too
    with client, host.accept() as served:
        served.sendall(SWITCHING)
        assert proxy.answer()["refused"] is None
        assert received(client, len(SWITCHING)) == SWITCHING


@pytest.mark.parametrize("resets", [0, 1])
def test_a_reset_of_one_side_ends_the_other(grid: Grid, proxy: StandInProxy, host: OtherHost, resets: int) -> None:
    pair = proxy.forwarded(host)
    reset_at_close(pair[resets])
    pair[1 - resets].sendall(b"unread")
    pair[resets].close()
    with pair[1 - resets]:
        assert is_over(pair[1 - resets])


def test_what_was_sent_before_a_reset_of_the_other_side_is_still_heard(
    grid: Grid, proxy: StandInProxy, host: OtherHost
) -> None:
    """A host that says goodbye and closes, while the client still talks, answers with a reset."""
    client, served = proxy.forwarded(host)
    with client:
        served.sendall(b"goodbye")
        served.close()
        assert received(client, 7) == b"goodbye"
        assert client.recv(1) == b""
        for _ in range(2):  # the first one is answered by a reset
            client.sendall(b"too late")
    parked(grid, 0)


def test_a_side_that_has_ended_and_is_reset_then_ends_a_session_in_which_nobody_says_anything(
    grid: Grid, proxy: StandInProxy, host: OtherHost
) -> None:
    client, served = proxy.forwarded(host)
    client.shutdown(socket.SHUT_WR)
    with served:
        assert served.recv(1) == b""
        parked(grid, 1)
        reset_at_close(client)
        client.close()
        eventually(lambda: forwarder(grid)["sessions"] == 0, "its end is noticed at once", HALF_ENDED_S / 4)


def test_who_does_not_read_stops_the_sender_and_nobody_else(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, served = proxy.forwarded(host)
    others = proxy.forwarded(host)
    chunk = random.randbytes(1 << 20)
    memory = psutil.Process(pid_of(grid)).memory_info().rss
    with client, served, others[0], others[1]:
        sent = sent_until_full(served, chunk)
        assert goes_both_ways(*others)
        client.sendall(b"the other way is free")
        assert received(served, 21) == b"the other way is free"
        assert psutil.Process(pid_of(grid)).memory_info().rss - memory < 1 << 20
        used_s = cpu_s(pid_of(grid))
        sent += sent_until_full(served, chunk)
        assert cpu_s(pid_of(grid)) - used_s < 0.1  # it waits for the client, and does not ask again and again
        kill_forwarder(grid)  # while the pipe is full
        assert goes_both_ways(*others)
        served.shutdown(socket.SHUT_WR)
        got = bytearray()
        while piece := client.recv(1 << 20):
            got += piece
        assert got == sent


# Refusals


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"HTTP/1.1 503 Service Unavailable\r\n", "HTTP/1.1 503 Service Unavailable"),
        (b"no HTTP at all\r\n", "no HTTP at all"),
        (b"HTTP/1.1 10", "HTTP/1.1 10"),
        (b"", "has closed the connection without an answer"),
    ],
)
def test_a_host_that_says_anything_but_101_has_not_taken_the_client(
    grid: Grid, proxy: StandInProxy, host: OtherHost, answer: bytes, detail: str
) -> None:
    client, accepted = proxy.client()
    copy = accepted.dup()  # as a proxy keeps it until the answer
    session = proxy.offer(accepted, ("127.0.0.1", host.port))
    with client, copy, host.accept() as served:
        served.sendall(answer)
        with suppress(OSError):  # the forwarder was faster
            served.shutdown(socket.SHUT_WR)
        said = proxy.answer()
        assert (said["session"], said["refused"]) == (session, "its host has not taken it")
        assert detail in said["detail"]
        assert is_over(served)
        # The client has heard nothing, and its connection is as good as new for another worker.
        copy.sendall(b"another worker's answer")
        assert received(client, 23) == b"another worker's answer"


def test_an_answer_in_pieces_is_an_answer(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, accepted = proxy.client()
    proxy.offer(accepted, ("127.0.0.1", host.port))
    with client, host.accept() as served:
        served.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in SWITCHING:
            served.sendall(bytes([byte]))
        assert received(client, len(SWITCHING)) == SWITCHING
        assert proxy.answer()["refused"] is None


def test_a_host_that_cannot_be_reached_is_told_so(grid: Grid, proxy: StandInProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, why in (("127.0.0.1", "refused"), ("no-such-host.invalid", ""), ("a" * 80, "")):
        client, accepted = proxy.client()
        with client:
            proxy.offer(accepted, (name, port))
            answer = proxy.answer()
            assert answer["refused"] == "its host cannot be reached"
            assert name[:20] in answer["detail"]
            assert why in answer["detail"]


def test_a_host_that_takes_no_connection_is_given_up_in_time(grid: Grid, proxy: StandInProxy) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # its queue is full: a further SYN is dropped
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        client, accepted = proxy.client()
        with client:
            proxy.offer(accepted, full.getsockname(), limit=0.1)
            answer = proxy.answer()
            assert answer["refused"] == "its host cannot be reached"
            assert "no connection within 0.1 s" in answer["detail"]
        for each in waiting:
            each.close()


def test_a_host_that_never_answers_is_given_up_at_the_deadline(
    grid: Grid, proxy: StandInProxy, host: OtherHost
) -> None:
    client, accepted = proxy.client()
    proxy.offer(accepted, ("127.0.0.1", host.port), deadline=time.monotonic() + 0.2)
    with client, host.accept() as served:
        assert proxy.answer()["refused"] == "late"
        assert is_over(served)


def test_a_host_that_may_open_a_browser_has_its_time_and_the_proxy_hears_of_it(
    grid: Grid, proxy: StandInProxy, host: OtherHost
) -> None:
    client, accepted = proxy.client()
    now = time.monotonic()
    session = proxy.offer(accepted, ("127.0.0.1", host.port), deadline=now + 0.6, until=now + 1.2)
    with client, host.accept() as served:
        promise = proxy.answer()
        assert promise == {"session": session, "acquiring": True, "promised": pytest.approx(now + 1.2)}
        assert proxy.answer()["refused"] == "late"
        assert time.monotonic() >= now + 1.2
        assert is_over(served)
    client, accepted = proxy.client()
    proxy.offer(accepted, ("127.0.0.1", host.port), until=now + 60)
    with client, host.accept() as served:
        assert proxy.answer().get("acquiring")
        served.sendall(SWITCHING)
        while (answer := proxy.answer()).get("acquiring"):
            pass
        assert answer["refused"] is None


def test_a_client_that_vanishes_before_the_answer_ends_the_connection_to_the_host(
    grid: Grid, proxy: StandInProxy, host: OtherHost
) -> None:
    client, accepted = proxy.client()
    proxy.offer(accepted, ("127.0.0.1", host.port))
    with host.accept() as served:
        client.close()
        assert proxy.answer()["refused"] == "gone"
        assert is_over(served)


# Killed and frozen processes


def test_random_bytes_arrive_whole_while_forwarders_are_killed(
    grid: Grid, proxy: StandInProxy, host: OtherHost, request: pytest.FixtureRequest
) -> None:
    """`--forward-mib 1024` is the full size."""
    size, kills = request.config.getoption("--forward-mib") << 20, 6
    client, served = proxy.forwarded(host)
    killed = set()
    with client, served, stream_between(client, served, size) as (up, down):
        for number in range(kills):
            stream: Stream = (up, down)[number % 2]
            stream.reaches(size * (number + 1) // (kills + 2))
            killed.add(kill_forwarder(grid))
        assert min(up.received, down.received) < size, "they were all killed after the end"
    assert len(killed) == kills
    assert pid_of(grid) not in killed


def test_a_successor_takes_over_all_sessions_and_new_clients(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    pairs = [proxy.forwarded(host) for _ in range(20)]
    for client, served in pairs[:10]:  # half of them are half closed
        client.shutdown(socket.SHUT_WR)
        assert served.recv(1) == b""
    ended = pairs.pop()
    kill_forwarder(grid)
    for each in ended:
        each.close()  # while there is none
    for client, served in pairs[:10]:
        served.sendall(b"x")
        assert received(client, 1) == b"x"
    assert all(goes_both_ways(*pair) for pair in pairs[10:])
    parked(grid, 19)
    proxy.reconnect()
    pairs.append(proxy.forwarded(host))
    assert goes_both_ways(*pairs[-1])
    for pair in pairs:
        for each in pair:
            each.close()


def test_an_offer_that_a_killed_forwarder_had_has_an_end(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, accepted = proxy.client()
    copy = accepted.dup()
    proxy.offer(accepted, ("127.0.0.1", host.port))
    with client, copy, host.accept() as served:
        kill_forwarder(grid)
        assert proxy.link.recv(100) == b""
        assert is_over(served)
        # Its marks say that nobody serves it: another worker may.
        assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 0
        proxy.reconnect()
        proxy.offer(copy.dup(), ("127.0.0.1", host.port))
        with host.accept() as second:
            second.sendall(SWITCHING)
            assert proxy.answer()["refused"] is None
            assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 1
            assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert received(client, len(SWITCHING)) == SWITCHING
            copy.close()


def test_a_frozen_forwarder_is_killed_and_its_sessions_go_on(grid: Grid, proxy: StandInProxy, host: OtherHost) -> None:
    client, served = proxy.forwarded(host)
    with client, served:
        parked(grid, 1)
        frozen = pid_of(grid)
        os.kill(frozen, signal.SIGSTOP)
        assert goes_both_ways(client, served)
        assert pid_of(grid) != frozen


def test_sessions_outlive_the_master_and_then_the_forwarder(another_redis: RedisServer, host: OtherHost) -> None:
    with grid_with_forwarder(another_redis, WORKER_LOST_THRESHOLD="30") as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            pairs = [proxy.forwarded(host)]
            pid = pid_of(grid)
            grid.kill_master()
            assert goes_both_ways(*pairs[0])
            pairs.append(proxy.forwarded(host))  # it serves on without a master
        grid.start_again()
        assert pid_of(grid) == pid
        parked(grid, 2)
        for _ in range(2):
            assert all(goes_both_ways(*pair) for pair in pairs)
            kill_forwarder(grid)
        for each in itertools.chain(*pairs):
            each.close()
        parked(grid, 0)


def test_an_upgrade_and_a_reload_replace_the_forwarder_and_no_session_notices(
    another_redis: RedisServer, host: OtherHost, tmp_path: Path
) -> None:
    config = tmp_path / "grid.toml"
    config.touch()
    changes = {"WORKER_LOST_THRESHOLD": "30", "PWGRID_CONFIG": str(config)}
    with grid_with_forwarder(another_redis, **changes) as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            client, served = proxy.forwarded(host)
        with client, served:
            for seconds, command in enumerate((("upgrade", "--force"), ("reload",)), 40):
                before = pid_of(grid)
                config.write_text(f"[sessions]\nsession_ping_timeout = {seconds}\n")
                done = grid.command(*command)
                assert done.returncode == 0, done.stderr
                eventually(lambda before=before: forwarder(grid)["pid"] not in (None, before), "it has a successor")
                assert goes_both_ways(client, served)
        assert grid.output().count("forwarder_replaced") == 2


def test_a_restart_just_when_the_forwarder_has_died_waits_until_another_one_has_its_sessions(
    another_redis: RedisServer, host: OtherHost
) -> None:
    with grid_with_forwarder(another_redis, WORKER_LOST_THRESHOLD="30") as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            client, served = proxy.forwarded(host)
        with client, served:
            parked(grid, 1)
            killed = os.pidfd_open(pid_of(grid))
            signal.pidfd_send_signal(killed, signal.SIGKILL)
            assert select.select([killed], [], [], PATIENCE_S)[0]
            grid.process.send_signal(signal.SIGUSR1)
            os.close(killed)
            assert grid.process.wait(PATIENCE_S) == 0
            assert goes_both_ways(client, served)
            grid.start_again()
            parked(grid, 1)
            assert goes_both_ways(client, served)


# The end


def test_a_stop_waits_for_forwarded_sessions_and_leaves_nothing(another_redis: RedisServer, host: OtherHost) -> None:
    with grid_with_forwarder(another_redis) as grid, StandInProxy(grid.runtime / "forwarder.sock") as proxy:
        client, served = proxy.forwarded(host)
        parked(grid, 1)
        grid.process.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 live session may go on" in grid.output(), "it says what it waits for")
        second, accepted = proxy.client()
        with second:
            proxy.offer(accepted, ("127.0.0.1", host.port))
            assert proxy.answer()["refused"] == "draining"
        with client, served:
            assert goes_both_ways(client, served)
        assert grid.stop() == 0


@pytest.mark.parametrize("why", ["it leaves", "it is killed"])
def test_a_stop_while_the_forwarder_goes_lets_sessions_go_on_in_another_one(
    another_redis: RedisServer, host: OtherHost, tmp_path: Path, why: str
) -> None:
    config = tmp_path / "grid.toml"
    config.touch()
    changes = {"WORKER_LOST_THRESHOLD": "60", "DRAIN_TIMEOUT": "60", "PWGRID_CONFIG": str(config)}
    with grid_with_forwarder(another_redis, **changes) as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            client, served = proxy.forwarded(host)
        with client, served:
            parked(grid, 1)
            pid = pid_of(grid)
            os.kill(pid, signal.SIGSTOP)
            if why == "it leaves":
                config.write_text("[sessions]\nsession_ping_timeout = 40\n")
                assert grid.command("reload").returncode == 0
            grid.process.send_signal(signal.SIGTERM)
            eventually(lambda: "stopping: 1 live session may go on" in grid.output(), "it says what it waits for")
            os.kill(pid, signal.SIGCONT if why == "it leaves" else signal.SIGKILL)
            wait_until_gone(pid)
            assert goes_both_ways(client, served)
            with StandInProxy(grid.runtime / "forwarder.sock") as proxy:

                def refused() -> object:
                    second, accepted = proxy.client()
                    with second:
                        proxy.offer(accepted, ("127.0.0.1", host.port), deadline=time.monotonic() + 0.2)
                        return proxy.answer()["refused"]

                eventually(lambda: refused() == "draining", "it takes nobody new")  # it hears that behind its sessions
            assert pid_of(grid) != pid
        assert grid.stop() == 0


def test_a_stop_ends_forwarded_sessions_when_their_time_is_over(another_redis: RedisServer, host: OtherHost) -> None:
    with grid_with_forwarder(another_redis, DRAIN_TIMEOUT="0.5") as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            client, served = proxy.forwarded(host)
        with client, served:
            parked(grid, 1)
            grid.process.send_signal(signal.SIGTERM)
            assert is_over(client)
            assert is_over(served)
        assert grid.stop() == 0


def test_a_grid_without_a_master_ends_with_its_forwarded_sessions(another_redis: RedisServer, host: OtherHost) -> None:
    with grid_with_forwarder(another_redis, WORKER_LOST_THRESHOLD="0.5") as grid:
        with StandInProxy(grid.runtime / "forwarder.sock") as proxy:
            client, served = proxy.forwarded(host)
        parked(grid, 1)
        pid = pid_of(grid)
        grid.kill_master()
        with client, served:
            eventually(lambda: grid.processes().keys() == {pid}, "all others have ended")
            assert goes_both_ways(client, served)
        wait_until_gone(pid)
        eventually(lambda: not grid.processes(), "nothing is left")
        grid.prove_gone()


def test_the_socket_is_private_and_the_status_shows_the_process(grid: Grid) -> None:
    assert (grid.runtime / "forwarder.sock").stat().st_mode & 0o777 == 0o600
    pid = pid_of(grid)
    assert f"forwarder {pid}  0 sessions on other hosts" in grid.command("status").stdout
    assert psutil.Process(pid).ppid() == grid.process.pid
