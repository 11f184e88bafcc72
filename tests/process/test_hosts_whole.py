"""What is said and done of several hosts that share a Redis is of all of them. Their browser servers are fake."""

import contextlib
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from pwgrid.cli import token as tokens
from pwgrid.registry.host_records import HostRecord
from pwgrid.tokens.tokens import Role
from tests.conftest import counters_are_exact
from tests.support import raw
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.hosts import SLOTS, TIMES, Host, drain, host, hosts_of_sessions, know_each_other
from tests.support.redis import RedisServer
from tests.support.shown_by_hand import packet, read_packet, shown_by_hand
from tests.support.terminal import on_terminal

BOTH, SECOND = "both-chromium-uat", "second-chromium-y"
NO_BROWSER = "no browser today"
OPERATORS = "settings-secret"


@pytest.fixture(scope="module")
def no_browser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there no browser starts on the first host."""
    return tmp_path_factory.mktemp("first") / "fails"


@pytest.fixture(scope="module")
def own_hosts(no_browser: Path) -> Iterator[tuple[Host, Host]]:
    server, both = RedisServer(), "Both:Chromium:UAT=1"
    fails = {"FAKE_FAIL_START": NO_BROWSER, "FAKE_FAIL_WHILE": str(no_browser)}
    with (
        contextlib.closing(server),
        host(server.url, "127.0.0.1", both, **fails) as first,
        host(server.url, "127.0.0.2", f"{both},Second:Chromium:Y=1") as second,
    ):
        hosts = Host(first, "127.0.0.1"), Host(second, "127.0.0.2")
        know_each_other(*hosts)
        yield hosts
        counters_are_exact(first)


@pytest.fixture
def hosts(own_hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Both, with nothing taken and all workers there."""
    first, second = own_hosts
    eventually(lambda: first.grid.active() == 0, "nothing is taken")
    for each in own_hosts:
        eventually(lambda: available(each, BOTH) == {first.name: 1, second.name: 1}, "workers of both are there")  # noqa: B023
        eventually(lambda: available(each, SECOND) == {second.name: 1}, "the worker of the second is there")  # noqa: B023
    return own_hosts


def pools_of(host: Host) -> dict[str, dict[str, Any]]:
    return {pool["name"]: pool for pool in host.get("/v1/pools")["pools"]}


def available(host: Host, pool: str) -> dict[str, int]:
    """How many workers each host has of a pool, as this one tells."""
    return {name: each["available"] for name, each in pools_of(host)[pool]["hosts"].items()}


def test_a_pool_that_two_hosts_have_is_one_with_the_figures_of_each(hosts: tuple[Host, Host]) -> None:
    for each in hosts:
        pools, (own, other) = pools_of(each), sorted((host.name for host in hosts), key=lambda name: name != each.name)
        assert set(pools) == {BOTH, SECOND}
        assert (pools[BOTH]["wanted"], pools[BOTH]["available"], pools[BOTH]["slots"]) == (2, 2, SLOTS)
        assert [*pools[BOTH]["hosts"]] == [own, other]
        one = {"wanted": 1, "available": 1, "starting": 0, "spare": 0, "draining": 0, "reason": None}
        assert pools[BOTH]["hosts"] == {own: one, other: one}
        assert pools[SECOND]["hosts"] == {hosts[1].name: one}
        capacity = each.get("/v1/capacity")
        assert [*capacity["pools"]] == [*pools]
        assert {name: room["slots"] for name, room in capacity["pools"].items()} == {BOTH: 2 * SLOTS, SECOND: SLOTS}


def test_a_pool_is_scaled_on_the_host_that_is_named_or_has_it(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    for path, at, where in (
        (f"/v1/pools/{SECOND}/scale", first, second),  # only that one has it
        (f"/v1/pools/{BOTH}/scale", second, second),  # its own
        (f"/v1/pools/{BOTH}/scale?host={first.name}", second, first),
    ):
        pool = path.split("/")[3]
        answer = at.ask("POST", path, {"workers": 2})
        assert (answer.status, answer.body["wanted"][pool], answer.body["host"]) == (200, 2, where.name)
        eventually(lambda at=at, pool=pool, where=where: available(at, pool)[where.name] == 2, "it has two there")
        assert at.ask("POST", path, {"workers": 1}).status == 200
        eventually(lambda at=at, pool=pool, where=where: available(at, pool)[where.name] == 1, "it has one again")
    refused = first.ask("POST", f"/v1/pools/{BOTH}/scale?host=10.9.9.9:1", {"workers": 2})
    assert (refused.status, refused.body["hosts"]) == (404, sorted(host.name for host in hosts))
    refused = first.ask("POST", "/v1/pools/third/scale", {"workers": 2})
    assert (refused.status, "there is no pool 'third'" in refused.body["error"]) == (400, True)
    refused = first.ask("POST", f"/v1/pools/{SECOND}/scale?host={second.name}", {"workers": 0})
    assert refused.status == 200
    refused = first.ask("POST", f"/v1/pools/{BOTH}/scale?host={second.name}", {"workers": 0})
    assert (refused.status, "must keep a worker" in refused.body["error"]) == (400, True)  # that master's own words
    assert first.ask("POST", f"/v1/pools/{SECOND}/scale?host={second.name}", {"workers": 1}).status == 200


def test_a_pool_is_drained_on_all_hosts_or_on_one(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    own, other = (
        {worker["id"] for worker in each.grid.status()["workers"] if worker["pool"] == BOTH} for each in hosts
    )
    assert set(first.ask("POST", f"/v1/pools/{BOTH}/drain?host={second.name}").body["draining"]) == other
    assert first.workers() >= own
    eventually(lambda: not other & second.workers(), "they are replaced")
    eventually(lambda: available(first, BOTH)[second.name] == 1, "and serve")
    drained = set(first.ask("POST", f"/v1/pools/{BOTH}/drain").body["draining"])
    assert own < drained
    assert len(drained) == 2
    eventually(lambda: not drained & (first.workers() | second.workers()), "all are replaced")


# The page


def tables_until(page: ClientConnection, name: str, keys: set[str]) -> dict[str, dict[str, Any]]:
    """What the page has when its table `name` has these keys."""
    tables: dict[str, dict[str, Any]] = {}
    while not keys <= tables.get(name, {}).keys():
        for table, rows in json.loads(page.recv(timeout=30)).get("set", {}).items():
            tables[table] = {key: row for key, row in (tables.get(table, {}) | rows).items() if row is not None}
    return tables


def test_the_page_shows_the_workers_pools_and_sessions_of_all_hosts(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session(f"/?pool={SECOND}"), second.session(f"/?pool={BOTH}"):
        eventually(lambda: hosts_of_sessions(first) == [second.name] * 2, "they run")
        with connect(f"{first.grid.endpoint}/v1/live") as page:
            shown = tables_until(page, "sessions", {each["id"] for each in first.live()})
    by_host = {first.name: first.workers(), second.name: second.workers()}
    assert {name: row["host"] for name, row in shown["workers"].items()} == {
        worker: name for name, workers in by_host.items() for worker in workers
    }
    for row in shown["workers"].values():
        assert (row["slots"], row["startedAt"] > 0) == (SLOTS, True)
    assert sum(row["active"] for row in shown["workers"].values()) == shown["grid"]["active"] == 2
    assert shown["grid"]["slots"] == 3 * SLOTS
    assert shown["pools"][BOTH]["hosts"] == {name: {"wanted": 1, "available": 1} for name in by_host}
    assert (shown["pools"][BOTH]["slots"], shown["pools"][SECOND]["slots"]) == (2 * SLOTS, SLOTS)
    assert {name: (row["state"], row["workers"]) for name, row in shown["hosts"].items()} == {
        first.name: ("serving", 1),
        second.name: ("serving", 2),
    }


# The screen


def test_top_shows_all_hosts_and_a_key_drains_a_worker_of_another_one(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    (there,) = [each["id"] for each in second.grid.status()["workers"] if each["pool"] == SECOND]
    with first.session(f"/?pool={SECOND}"), on_terminal(first.grid, "top", "--every", "0.2", columns=140) as command:
        command.until_text("HOST", there, first.name, second.name, "sessions 1/6")
        assert command.line(f"{BOTH} ").split()[1:3] == ["2", "2"]
        (session,) = first.live()
        assert second.name in command.line(session["id"])
        command.press("e")
        command.until_text(f"end session {session['id']}", "y: yes")
        command.press("y")
        command.until_text(f"session {session['id']} ended after")
        command.press(f"/{there}\r\x1b[Zd")  # Shift-Tab from the sessions to the only worker that the filter leaves
        command.until_text(f"drain worker {there}", "y: yes")
        command.press("y")
        command.until_text(f"draining {there}")
        command.press("\x1bq")
        assert command.end() == 0
    eventually(lambda: there not in second.workers(), "it is replaced")


# Live view


def test_a_session_of_another_host_is_shown_by_any(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session(f"/?pool={SECOND}"):
        eventually(lambda: first.live(), "it runs")
        (session,) = first.live()
        url, frame = f"{first.grid.endpoint}/v1/live/{session['id']}", bytes(range(256)) * 4096
        with shown_by_hand(second, session["workerId"]) as listener, connect(url, max_size=None) as page:
            shows, _ = listener.accept()
            shows.settimeout(raw.STALL_S)
            with shows:
                assert read_packet(shows) == {"session": session["id"], "operator": True}
                shows.sendall(packet(b'{"pages":[]}') + packet(frame, 1))
                assert [page.recv(timeout=30), page.recv(timeout=30)] == ['{"pages":[]}', frame]
                for said in ({"ack": True}, {"page": "two"}):
                    page.send(json.dumps(said))
                    assert read_packet(shows) == said
                assert first.get(f"/v1/sessions/{session['id']}")["viewedAt"] > 0
                page.close()
                assert shows.recv(1) == b""  # nothing is left of it there
        with shown_by_hand(second, session["workerId"]) as listener, connect(url) as page:
            listener.accept()[0].close()
            with pytest.raises(ConnectionClosed):
                page.recv(timeout=30)
        assert refused(url) == (503, True)  # nobody listens any more
    eventually(lambda: refused(url)[0] == 409, "its record says that it is over")


def test_a_view_keeps_neither_host_s_proxy_from_being_replaced(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session(f"/?pool={SECOND}"):
        eventually(lambda: first.live(), "it runs")
        (session,) = first.live()
        url = f"{first.grid.endpoint}/v1/live/{session['id']}"
        for replaced in (second, first):
            proxy = replaced.grid.status()["proxy"]["pid"]
            with shown_by_hand(second, session["workerId"]) as listener, connect(url) as page:
                shows, _ = listener.accept()
                with shows:
                    shows.sendall(packet(b'{"pages":[]}'))
                    assert page.recv(timeout=30) == '{"pages":[]}'
                    replaced.grid.command("upgrade", "--force")
                    with pytest.raises(ConnectionClosed) as ended:
                        page.recv(timeout=30)
                    assert ended.value.rcvd is not None
                    assert ended.value.rcvd.code == CloseCode.SERVICE_RESTART
            eventually(lambda proxy=proxy: not psutil.pid_exists(proxy), "the proxy before it has ended")
            know_each_other(first, second)


def refused(url: str) -> tuple[int, bool]:
    """The status of the answer to a page, and whether it is about the worker."""
    with pytest.raises(InvalidStatus) as caught:
        connect(url).close()
    response = caught.value.response
    return response.status_code, b"the worker of this session cannot show it now" in (response.body or b"")


def test_nobody_is_shown_a_session_without_what_a_host_has_left(hosts: tuple[Host, Host]) -> None:
    for path in ("", "0" * 32, "x", "..%2fx"):
        with pytest.raises(InvalidStatus) as caught:
            connect(f"{hosts[0].grid.endpoint}/v1/live/forwarded/{path}").close()
        assert caught.value.response.status_code in (403, 404)


# Readiness


def ready(host: Host) -> tuple[int, str | None]:
    """What a load balancer sees, and why it is that."""
    answer = host.ask("GET", "/health/ready")
    return answer.status, answer.body.get("error")


def status_says(host: Host) -> tuple[bool, str | None]:
    found = host.grid.status()
    return found["ready"], found["reason"]


def test_a_host_without_a_worker_of_its_own_is_ready_as_long_as_another_one_serves_its_clients(
    hosts: tuple[Host, Host], no_browser: Path
) -> None:
    first, second = hosts
    no_browser.touch()
    try:
        (own,) = first.workers()
        first.grid.command("drain", own, "--wait")
        eventually(lambda: pools_of(first)[BOTH]["hosts"][first.name]["reason"], "its replacement does not start")
        assert (ready(first), status_says(first)) == ((200, None), (True, None))
        with first.session(f"/?pool={BOTH}"):
            eventually(lambda: hosts_of_sessions(first) == [second.name], "it is served there")
        says = re.compile(rf"{re.escape(first.name)}: .*{NO_BROWSER}")
        eventually(lambda: says.search(pools_of(second)[BOTH]["reason"] or ""), "the other host tells why, too")
        drain(first, second.name)
        eventually(lambda: ready(first)[0] == 503, "nobody serves its clients")
        assert NO_BROWSER in str(ready(first)[1])
        eventually(lambda: status_says(first) == (False, ready(first)[1]), "the status says so, too")
        drained = f"an operator has drained this host ({second.name}): clients get other hosts"
        eventually(lambda: ready(second) == (503, drained), "it has heard of it")
        assert status_says(second) == (False, drained)
        drain(first, second.name, "--undo")
        eventually(lambda: ready(first)[0] == 200, "it serves them again")
    finally:
        no_browser.unlink()
    eventually(lambda: available(first, BOTH)[first.name] == 1, "its own worker is back")


# Tokens


def test_sessions_of_a_revoked_token_end_on_all_hosts(tmp_path: Path) -> None:
    server = RedisServer()
    places = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "grid.toml").touch()
        places.append(tokens.Place(tmp_path / name / "tokens.json"))
    text = tokens.create(places[0], "ci", Role.CLIENT, 0, ())[0]
    tokens.create(places[0], "stays", Role.CLIENT, 0, ())
    shutil.copy(places[0].path, places[1].path)

    def its_host(address: str, name: str) -> contextlib.AbstractContextManager[Grid]:
        config = str(tmp_path / name / "grid.toml")
        return host(server.url, address, "Both:Chromium:UAT=1", PWGRID_CONFIG=config, PWGRID_TOKEN=OPERATORS)

    def session(host: Host) -> socket.socket:
        return host.session(f"/?token={text}")

    with (
        contextlib.closing(server),
        its_host("127.0.0.1", "first") as first_grid,
        its_host("127.0.0.2", "second") as second_grid,
    ):
        first, second = Host(first_grid, "127.0.0.1"), Host(second_grid, "127.0.0.2")
        revoke = ("token", "revoke", "ci", "--end-sessions", "--config", str(tmp_path / "first" / "grid.toml"))
        eventually(lambda: len(first_grid.status()["hosts"]) == 2, "both are there")
        with session(first) as own, session(first), session(second) as there, session(second):
            done = first_grid.command(*revoke)
            assert (done.returncode, done.stdout) == (0, "revoked ci\n")
            assert f"host {second.name} has a token ci in its own file: revoke it there, too" in done.stderr
            assert "4 live sessions are ended" in done.stderr
            assert b"its token was revoked" in raw.read_all(own)
            assert b"an operator" in raw.read_all(there)
        eventually(lambda: first_grid.active() == 0, "all have ended")
        with session(second) as there:  # where the token still is
            tokens.revoke(places[1], "ci")
            done = first_grid.command(*revoke)
            assert (done.returncode, done.stdout) == (0, "")
            assert done.stderr == f"pwgrid: 1 live session is ended in the grid on port {first_grid.port}\n"
            assert b"its token was revoked" in raw.read_all(there)
        gone = HostRecord("127.0.0.9:1", ("127.0.0.9", 1), at=time.time(), beat_s=60.0)  # where nobody listens
        server.command("HSET", "cluster:hosts", gone.name, gone.as_json())
        done = first_grid.command(*revoke)
        assert (
            f"its sessions on host {gone.name}, if it has any, go on: host {gone.name} does not answer" in done.stderr
        )


# Two hosts of one name


def test_a_host_whose_name_another_one_has_says_so_and_one_that_is_upgraded_does_not(hosts: tuple[Host, Host]) -> None:
    first, _ = hosts

    def own() -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in first.get("/v1/hosts")["hosts"] if each["name"] == first.name)
        return found

    first.grid.command("upgrade", "--force")  # another proxy, beside the first one for a while
    since = own()["lastHeartbeat"]
    eventually(lambda: own()["lastHeartbeat"] > since + 1.5, "it has told of itself several times")
    assert ("host_name_taken" in first.grid.output(), own()["problem"]) == (False, None)
    same_name = {"ADVERTISED_HOST": first.address, "PWGRID_HOST": "127.0.0.3", "REDIS_URL": first.grid.redis_url}
    environment = {**WITHOUT_SPARES, **TIMES, **same_name, "POOL_CONFIG": "Both:Chromium:UAT=1"}
    with running_grid("--port", str(first.grid.port), environment=environment, fake=True) as third:
        for grid in (first.grid, third):
            eventually(lambda grid=grid: "host_name_taken" in grid.output(), "its log says so")
        eventually(lambda: "another host uses this one's name, too" in (own()["problem"] or ""), "the API says so")
        told = ("HGET", "cluster:hosts", first.name)
        eventually(lambda: b'"nameTaken":true' in first.grid.redis(*told), "Redis knows it, whoever told last")
        done = first.grid.command("status")
        assert re.search(rf"^PROBLEM: {re.escape(first.name)}: another host uses", done.stdout, re.MULTILINE)
        assert done.returncode == 3
