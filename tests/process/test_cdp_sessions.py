"""Sessions in CDP on a grid with a fake browser server: their URLs, who joins, how long they are kept, how they end."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pwgrid.cli.token import Place, create
from pwgrid.tokens.tokens import Role
from tests.conftest import counters_are_exact
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.leases import CHROMIUM, borrow, give_back, request
from tests.support.raw import GOODBYE, answer, connect, goes_on, head, is_served, read_all, session

ENVIRONMENT = {
    **WITHOUT_SPARES,
    "POOL_CONFIG": "AppA:Chromium:UAT=2",
    "HEARTBEAT_INTERVAL": "1",
    "WORKER_LOST_THRESHOLD": "3",
    "MAX_CONCURRENT_SESSIONS": "3",
}
FOREVER = 600
"""Seconds that a session is kept for where nothing but what is tested shall end it."""


@pytest.fixture(scope="module")
def own_grid() -> Iterator[Grid]:
    with running_grid(environment=ENVIRONMENT, fake=True) as grid:
        yield grid
        counters_are_exact(grid)


@pytest.fixture
def grid(own_grid: Grid) -> Grid:
    eventually(lambda: own_grid.active() == 0, "nothing is taken")
    return own_grid


def url(grid: Grid, query: str = "") -> str:
    """The path of a new session's URL, as a CDP client gets it."""
    told = request(grid, "GET", f"/json/version{query}").body["webSocketDebuggerUrl"]
    return str(told).partition(str(grid.port))[2]


def id_in(target: str) -> str:
    return target.partition("?")[0].rpartition("/")[2]


def record(grid: Grid, target: str) -> dict[str, Any]:
    return request(grid, "GET", f"/v1/sessions/{id_in(target)}").body


def leaves(*clients: socket.socket) -> None:
    """They say goodbye, and wait for the answer."""
    for each in clients:
        each.sendall(GOODBYE)
        read_all(each)
        each.close()


def is_kept(grid: Grid, target: str, *, kept: bool = True) -> None:
    eventually(lambda: record(grid, target).get("kept") is kept, f"kept: {kept}")  # Redis may be away


def refused(grid: Grid, target: str) -> tuple[int, str]:
    status, _, body = answer(grid.port, head(target=target))
    return status, body["error"]


def test_a_session_has_the_id_of_its_url_and_speaks_cdp(grid: Grid) -> None:
    target = url(grid, "?name=smoke")
    with session(grid.port, target) as client:
        found = record(grid, target)
        assert found.items() >= {"protocol": "cdp", "isolation": "browser", "name": "smoke", "kept": False}.items()
        leaves(client)
    eventually(lambda: record(grid, target)["status"] == "completed", "it ends with its only client")
    assert refused(grid, target) == (
        404,
        "this session has ended (completed: client disconnected), and its browser with it: connect to /cdp, or ask "
        "/json/version, for another",
    )


def test_a_path_that_names_no_session_begins_one_each_time(grid: Grid) -> None:
    with session(grid.port, "/cdp") as first, session(grid.port, "/devtools/browser/a-name") as second:
        eventually(lambda: grid.active() == 2, "two sessions")
        leaves(first, second)


def test_several_clients_share_a_session_and_one_slot(grid: Grid) -> None:
    target = url(grid)
    with session(grid.port, target) as first, session(grid.port, target) as second:
        assert goes_on(first)
        assert grid.active() == 1
        leaves(first)
        assert goes_on(second)
        with session(grid.port, target) as third:
            leaves(second)
            assert goes_on(third)
            leaves(third)
    eventually(lambda: record(grid, target)["status"] == "completed", "it ends with its last client")


def test_clients_that_come_to_a_new_url_at_the_same_time_get_one_session(grid: Grid) -> None:
    target = url(grid)
    clients = [socket.create_connection(("127.0.0.1", grid.port), timeout=30) for _ in range(3)]
    for each in clients:
        each.sendall(head(target=target))
    for each in clients:
        assert each.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert goes_on(each)
    eventually(lambda: grid.active() == 1, "one slot")
    leaves(*clients)


def test_a_kept_session_keeps_its_slot_until_its_client_comes_back(grid: Grid) -> None:
    target = url(grid, f"?keep={FOREVER}")
    with session(grid.port, target) as client:
        leaves(client)
    is_kept(grid, target)
    assert grid.active() == 1
    eventually(lambda: b"pwgrid_kept_sessions{" in grid.get("/metrics")[2], "the metrics have it")
    assert "1 kept without a client" in grid.command("status").stdout
    assert "kept for another" in grid.command("sessions").stdout
    with session(grid.port, target) as again:
        is_kept(grid, target, kept=False)
        leaves(again)
    is_kept(grid, target)
    assert request(grid, "DELETE", f"/v1/sessions/{id_in(target)}").status == 202
    eventually(lambda: record(grid, target)["status"] == "ended", "an operator ends it")
    assert record(grid, target)["kept"] is False


def test_it_ends_when_nobody_comes_back(grid: Grid) -> None:
    target = url(grid, "?keep=0.5")
    with session(grid.port, target) as client:
        leaves(client)
    eventually(lambda: record(grid, target)["status"] == "completed", "its time is over")
    assert record(grid, target)["reasonKind"] == "keep time over"


def test_with_a_lease_cdp_clients_share_one_browser_that_ends_with_the_lease(grid: Grid) -> None:
    lease = borrow(grid)
    target = lease["cdpEndpoint"].partition(str(grid.port))[2]
    assert target == lease["target"] + "/cdp"
    with session(grid.port, f"{target}?keep={FOREVER}") as first, session(grid.port, target) as second:
        eventually(lambda: grid.active() == 1, "the lease's slot")
        assert answer(grid.port, head(target=lease["target"]))[0] == 409
        leaves(first, second)
    (found,) = request(grid, "GET", "/v1/sessions?limit=1").body["sessions"]
    assert found["lease"] == lease["browserId"]
    assert found["protocol"] == "cdp"
    is_kept(grid, found["id"])
    with session(grid.port, target) as again:
        leaves(again)
    assert give_back(grid, lease)
    eventually(lambda: record(grid, found["id"])["reasonKind"] == "returned", "it ends with its lease")


def test_while_playwright_s_client_has_the_lease_no_cdp_client_comes(grid: Grid) -> None:
    lease = borrow(grid, CHROMIUM)
    with session(grid.port, lease["target"]) as client:
        status, error = refused(grid, lease["target"] + "/cdp")
        assert (status, "CDP clients may come when it has gone" in error) == (409, True)
        leaves(client)  # with whom the lease ends


def test_nobody_finds_the_session_of_another_token(tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    config.write_text("[workers]\nchromium_workers = 1\n")
    environment = {"PWGRID_CONFIG": str(config), "PWGRID_TOKEN": "operators-secret"}
    with running_grid(environment=environment, fake=True) as grid:
        place = Place(tmp_path / "tokens.json")
        tokens = {name: create(place, name, Role.CLIENT, 0, ())[0] for name in ("one", "two")}
        target = url(grid)
        with session(grid.port, f"{target}?token={tokens['one']}") as client:
            assert refused(grid, f"{target}?token={tokens['two']}")[0] == 404
            assert refused(grid, f"{target}?token=operators-secret")[0] == 404
            with session(grid.port, f"{target}?token={tokens['one']}") as again:
                leaves(again)
            leaves(client)


@pytest.mark.parametrize("victim", ["proxy", "redis", "worker", "master"])
def test_killing_any_one_process_loses_no_session_kept_or_not(victim: str) -> None:
    with running_grid(environment={**ENVIRONMENT, "DRAIN_TIMEOUT": "60"}, fake=True) as grid:
        live, kept = url(grid), url(grid, f"?keep={FOREVER}")
        with session(grid.port, live) as client:
            with session(grid.port, kept) as other:
                leaves(other)
            is_kept(grid, kept)
            if victim == "master":
                grid.kill_master()
                grid.start_again()
            elif victim == "worker":
                for each in grid.status()["workers"]:
                    os.kill(each["pid"], signal.SIGKILL)
                    eventually(lambda each=each: not psutil.pid_exists(each["pid"]), "it is gone")
            else:
                pid = grid.status()[victim]["pid"]
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: grid.status()[victim]["pid"] not in (None, pid), "there is another one")
            assert goes_on(client)
            is_kept(grid, kept)
            with session(grid.port, kept) as again, session(grid.port, live) as second:
                is_kept(grid, kept, kept=False)
                leaves(again, second, client)
        is_kept(grid, kept)
        request(grid, "DELETE", f"/v1/sessions/{id_in(kept)}")
        eventually(lambda: grid.active() == 0, "all is over")
        counters_are_exact(grid, repaired=victim == "redis")


@pytest.mark.parametrize("target", ["/?isolation=browser", "of a session"])
def test_who_waits_for_its_own_browser_gets_one_elsewhere_when_a_browser_server_dies(
    target: str, tmp_path: Path
) -> None:
    """Also a client whose session keeps its id from one worker to the next."""
    (held := tmp_path / "held").touch()
    with running_grid(environment={**ENVIRONMENT, "FAKE_HOLD_OWN": str(held)}, fake=True) as grid:
        target = url(grid) if target == "of a session" else target
        with connect(grid.port) as client:
            client.sendall(head(target=target))
            has_it = eventually(
                lambda: next((each for each in grid.status()["workers"] if each["active"]), None), "it waits"
            )
            held.unlink()
            os.kill(has_it["nodePid"], signal.SIGKILL)
            assert is_served(client)
            (found,) = request(grid, "GET", "/v1/sessions").body["sessions"]
            assert found["status"] in ("pending", "running")  # its start is recorded a moment later
            assert found["workerId"] != has_it["id"]
            leaves(client)
        eventually(lambda: grid.active() == 0, "all is over")
        counters_are_exact(grid)


def test_while_redis_is_away_clients_find_their_sessions_all_the_same() -> None:
    with running_grid(environment=ENVIRONMENT, fake=True) as grid:
        kept = url(grid, f"?keep={FOREVER}")
        with session(grid.port, kept) as client:
            leaves(client)
        is_kept(grid, kept)
        redis = psutil.Process(grid.status()["redis"]["pid"])
        redis.suspend()
        fresh = url(grid)
        with session(grid.port, kept) as again, session(grid.port, fresh) as new, session(grid.port, fresh) as second:
            redis.resume()
            leaves(again, new, second)
        is_kept(grid, kept)
        request(grid, "DELETE", f"/v1/sessions/{id_in(kept)}")
        eventually(lambda: grid.active() == 0, "all is over")


def drained(grid: Grid, target: str) -> None:
    worker = record(grid, target)["workerId"]
    assert request(grid, "POST", f"/v1/workers/{worker}/drain").status == 202


def test_an_operator_s_drain_ends_kept_sessions_at_once_and_waits_for_the_others(grid: Grid) -> None:
    live, kept = url(grid), url(grid, f"?keep={FOREVER}")
    with session(grid.port, kept) as client:
        leaves(client)
        is_kept(grid, kept)
        with session(grid.port, live) as other:
            drained(grid, kept)
            eventually(lambda: record(grid, kept)["status"] == "failed", "it has ended")
            assert record(grid, kept)["reasonKind"] == "kept in a drain"
            assert goes_on(other)
            leaves(other)


def test_a_session_that_loses_its_client_in_a_drain_ends_then(grid: Grid) -> None:
    target = url(grid, f"?keep={FOREVER}")
    with session(grid.port, target) as client:
        drained(grid, target)
        with session(grid.port, target) as second:  # who joins takes nothing that the drain waits for but this session
            leaves(second)
        leaves(client)
    eventually(lambda: record(grid, target)["reasonKind"] == "kept in a drain", "nobody waits for it")


def test_a_lease_takes_no_lifetime_for_clients_that_come_by_cdp(grid: Grid) -> None:
    def counted() -> tuple[object, object]:
        (told,) = (each for each in grid.status()["workers"] if each["id"] == worker)
        return told["lifetime"], grid.redis("HGET", "cluster:lifetime_connections", f"chromium:{worker}")

    def are(lifetime: int) -> bool:
        return counted() == (lifetime, str(lifetime).encode())

    lease = borrow(grid)
    worker = lease["browserId"].partition("-")[0]
    eventually(lambda: counted()[1] is not None, "it is registered")
    before = int(counted()[1]) - 1  # type: ignore[call-overload]
    target = lease["cdpEndpoint"].partition(str(grid.port))[2]
    with session(grid.port, target) as client:
        eventually(lambda: are(before), "it has its own browser")
        leaves(client)
    eventually(lambda: grid.active() == 0, "it is over")
    assert are(before)
    assert grid.redis("GET", "cluster:counter_repairs") in (None, b"0")


def shown(grid: Grid, worker: str) -> tuple[object, ...]:
    """What the API shows of a worker, the lifetime and the launches, and the metrics of its launches."""
    (found,) = (each for each in json.loads(grid.get("/v1/workers")[2])["workers"] if each["id"] == worker)
    text = grid.get("/metrics?by=worker")[2].decode()
    of_pool = re.findall(r'^pwgrid_browser_launches_total\{.*pool="[^"]+"\} (.*)$', text, re.MULTILINE)
    of_worker = re.findall(rf'^pwgrid_worker_launches\{{.*worker="{worker}"\}} (.*)$', text, re.MULTILINE)
    return found["lifetime"], found["launches"], *of_pool, *of_worker


QUICK_RECYCLE = {"MEMORY_CHECK_INTERVAL": "0.2", "RECYCLE_DRAIN_TIMEOUT": "60"}


def test_own_browsers_use_no_lifetime_up_but_so_many_of_them_recycle_their_worker() -> None:
    environment = {**ENVIRONMENT, **QUICK_RECYCLE, "BORROW_RECONNECT_GRACE": "600"}
    environment |= {"MAX_LIFETIME_SESSIONS": "1", "MAX_LAUNCHES": "4", "HEARTBEAT_INTERVAL": "0.5"}
    with running_grid(environment={**environment, "POOL_CONFIG": "AppA:Chromium:UAT=1"}, fake=True) as grid:
        lease = borrow(grid, isolation="browser")
        worker = lease["browserId"].partition("-")[0]

        def told() -> dict[str, Any]:
            return next((each for each in grid.status()["workers"] if each["id"] == worker), {})

        for target in (lease["target"], lease["target"], url(grid)):
            with session(grid.port, target) as client:
                leaves(client)
        assert give_back(grid, lease)
        eventually(lambda: told()["launches"] == 3, "each has launched one")
        assert (told()["lifetime"], told()["status"]) == (0, "available")
        eventually(lambda: shown(grid, worker) == (0, 3, "3.0", "3.0"), "the API and the metrics show them")
        (line,) = (each for each in grid.command("status").stdout.splitlines() if each.startswith(worker))
        assert "3 own browsers" in line
        assert grid.redis("HGET", "cluster:lifetime_connections", f"chromium:{worker}") == b"0"
        target = url(grid)
        with session(grid.port, target) as client:
            assert record(grid, target)["workerId"] == worker
            eventually(lambda: told()["status"] == "draining", "it has launched as many as it may")
            assert (told()["reasonKind"], told()["reason"]) == (
                "launches",
                "launches: 4 own browsers, the limit is 4",
            )
            assert goes_on(client)
            other = url(grid)
            with session(grid.port, other) as of_other:
                assert record(grid, other)["workerId"] != worker
                leaves(of_other)
            leaves(client)
        eventually(lambda: not told(), "it ends with its last session")


def test_a_recycle_waits_for_kept_sessions() -> None:
    environment = {**ENVIRONMENT, **QUICK_RECYCLE, "MAX_LAUNCHES": "1"}
    with running_grid(environment=environment, fake=True) as grid:
        target = url(grid, f"?keep={FOREVER}")
        with session(grid.port, target) as client:
            worker = record(grid, target)["workerId"]
            leaves(client)

        def status() -> str:
            return next((str(each["status"]) for each in grid.status()["workers"] if each["id"] == worker), "gone")

        eventually(lambda: status() == "draining", "its worker is recycled")
        is_kept(grid, target)
        with session(grid.port, target) as again:
            leaves(again)
        is_kept(grid, target)
        request(grid, "DELETE", f"/v1/sessions/{id_in(target)}")
        eventually(lambda: status() == "gone", "it ends with its last session")


def test_a_stop_of_the_grid_waits_for_no_kept_session() -> None:
    with running_grid(environment={**ENVIRONMENT, "DRAIN_TIMEOUT": "600"}, fake=True) as grid:
        target = url(grid, f"?keep={FOREVER}")
        with session(grid.port, target) as client:
            leaves(client)
        is_kept(grid, target)
        grid.stop()


def test_a_host_short_of_memory_ends_kept_sessions_the_oldest_first_and_no_other_one(tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    config.write_text("[memory]\nmemory_check_interval = 0.5\n")
    with running_grid("--config", str(config), environment=ENVIRONMENT, fake=True) as grid:
        first, second, live = url(grid, f"?keep={FOREVER}"), url(grid, f"?keep={FOREVER}"), url(grid)
        with session(grid.port, live) as client:
            for each in (first, second):
                with session(grid.port, each) as other:
                    leaves(other)
                is_kept(grid, each)
            config.write_text("[memory]\nmemory_check_interval = 0.5\nmin_host_available_mib = 1000000000\n")
            grid.process.send_signal(signal.SIGHUP)
            eventually(lambda: record(grid, second)["status"] == "failed", "both have ended")
            ends = [record(grid, each) for each in (first, second)]
            assert {each["reasonKind"] for each in ends} == {"kept while the host is short of memory"}
            assert ends[0]["endedAt"] < ends[1]["endedAt"]
            assert goes_on(client)
            leaves(client)


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("/cdp?browser=firefox", 400, "Firefox has no CDP"),
        ("/cdp?keep=601", 400, "KEEP_MAX"),
        ("/?keep=5", 400, "connect_over_cdp"),
        ("/devtools/browser/0123456789abcdef?browser=webkit", 400, "WebKit has no CDP"),
    ],
)
def test_what_is_refused_takes_no_slot(grid: Grid, target: str, status: int, says: str) -> None:
    found = refused(grid, target)
    assert (found[0], says in found[1]) == (status, True), found
    assert grid.active() == 0


def test_who_comes_again_with_a_lease_at_once_gets_another_browser_if_the_last_has_ended() -> None:
    environment = {**ENVIRONMENT, "BORROW_RECONNECT_GRACE": "600"}
    with running_grid(environment=environment, fake=True) as grid:
        lease = borrow(grid)
        target = lease["target"] + "/cdp"
        for _ in range(200):
            with session(grid.port, target) as client:
                leaves(client)
        assert give_back(grid, lease)
        eventually(lambda: grid.active() == 0, "all is over")
