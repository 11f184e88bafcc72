"""Borrow and return on a grid with a fake browser server: rules, names, expiry, drains, shutdown, and many of them."""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from websockets.sync.client import connect as page

from pwgrid.proxy.connect.handoff_link import Handoffs
from tests.conftest import counters_are_exact
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.handoff_relay import HandoffRelay, handoff_relay
from tests.support.leases import CHROMIUM, GONE, borrow, cycles, give_back, lease_now, leases, request
from tests.support.raw import answer, connect, goes_on, head, session

TWO_POOLS = {"POOL_CONFIG": "AppA:Chromium:UAT=2,AppB:Chromium:Staging:EU=1"}
BOUND_S = 30.0


@pytest.fixture(scope="module")
def own_grid() -> Iterator[Grid]:
    """Whoever disconnects from a lease may come back."""
    environment = {**TWO_POOLS, **WITHOUT_SPARES, "BORROW_RECONNECT_GRACE": "600", "HEARTBEAT_INTERVAL": "1"}
    with running_grid(environment=environment, fake=True) as grid:
        yield grid
        counters_are_exact(grid)


@pytest.fixture
def grid(own_grid: Grid) -> Grid:
    """That grid, once all that the test before has given back is counted as free."""
    eventually(lambda: own_grid.active() == 0 and leases(own_grid) == [], "nothing is taken")
    return own_grid


def sessions_of(grid: Grid, lease: dict[str, Any]) -> list[dict[str, Any]]:
    found = request(grid, "GET", "/v1/sessions?limit=1000").body["sessions"]
    return [each for each in found if each["lease"] == lease["browserId"]]


def refused(grid: Grid, **body: Any) -> tuple[int, str]:
    found = request(grid, "POST", "/session/borrow", body)
    return found.status, found.body["error"]


def ended(grid: Grid, status: str) -> float:
    """How many leases have ended so, as the metrics say."""
    found = re.search(
        rf'^pwgrid_leases_total{{status="{status}"}} (.+)$', grid.get("/metrics")[2].decode(), re.MULTILINE
    )
    assert found is not None
    return float(found[1])


def test_a_lease_keeps_one_slot_for_one_connection_at_a_time_until_it_is_returned(grid: Grid) -> None:
    returned = ended(grid, "returned")
    lease = borrow(grid, "appa:CHROMIUM:uat:eu", runName=" Smoke 12 ", runId="build-71")
    assert lease.keys() >= {"browserId", "webSocketEndpoint", "browserType", "labelKey", "expiresAt"}
    keys = {"labelKey": CHROMIUM, "requestedLabelKey": "appa:CHROMIUM:uat:eu"}
    assert lease.items() >= {"browserType": "chromium", **keys}.items()
    assert 890 < lease["expiresAt"] - time.time() <= 900
    eventually(lambda: grid.active() == 1, "the slot is taken")
    has = {"name": "Smoke 12", "run": "build-71", "labels": "appa:CHROMIUM:uat:eu", "slots": 1}
    eventually(lambda: grid.ask("status")["runs"] == [has], "the status says whose it is")
    with session(grid.port, lease["target"]) as first:
        assert answer(grid.port, head(target=lease["target"]))[0] == 409
        assert goes_on(first)
    with session(grid.port, lease["target"]) as second:  # comes again within the lease
        assert grid.active() == 1
        assert give_back(grid, lease)
        assert b"the grid closed this session: its lease was returned" in second.recv(4096)
    assert not give_back(grid, lease)
    eventually(lambda: grid.active() == 0, "the slot is free")
    assert answer(grid.port, head(target=lease["target"]))[0] == 404
    now = lease_now(grid, lease)
    assert (now["status"], now["reason"], now["runName"], now["runId"]) == (
        "returned",
        "returned",
        "Smoke 12",
        "build-71",
    )
    assert now.items() >= keys.items()
    assert ended(grid, "returned") == returned + 1
    records = sessions_of(grid, lease)
    assert [(each["status"], each["reason"]) for each in records] == [
        ("completed", "returned"),
        ("completed", "client disconnected"),
    ]
    assert {(each["name"], each["run"], each["labels"], each["labelKey"]) for each in records} == {
        ("Smoke 12", "build-71", "appa:CHROMIUM:uat:eu", CHROMIUM)
    }


def test_nobody_has_a_lease_without_its_secret(grid: Grid) -> None:
    lease = borrow(grid)
    assert answer(grid.port, head(target=lease["target"][:-2] + "xx"))[0] == 404
    worker = lease["browserId"].partition("-")[0]
    assert answer(grid.port, head(target=lease["target"].replace(worker, "0badc0de")))[0] == 404
    assert answer(grid.port, head(target=lease["target"], X_Playwright_Browser="firefox"))[0] == 400
    other = lease["target"].replace("/chromium/", "/firefox/")  # as a Firefox client would need it
    for given in ({}, {"X_Playwright_Browser": "firefox"}):
        assert answer(grid.port, head(target=other, **given))[0] == 404
    session(grid.port, lease["target"]).close()
    assert give_back(grid, lease)


def test_bad_borrows_are_refused_with_the_rule_and_take_no_slot(grid: Grid) -> None:
    status, error = refused(grid, labelKey="AppA")
    assert (status, "2 to 8 segments" in error) == (400, True)
    status, error = refused(grid, labelKey="AppC:Chromium:UAT")
    assert (status, error.endswith("there are AppA:Chromium:UAT, AppB:Chromium:Staging:EU")) == (404, True)
    status, error = refused(grid, labelKey=CHROMIUM, runName="a/b")
    assert (status, error) == (400, "runName: use at most 128 letters (A to Z), digits, spaces, '.', '_' and '-'")
    for ttl in (59, 86_401, "long", None):
        assert refused(grid, labelKey=CHROMIUM, ttlSeconds=ttl)[0] == 400
    assert refused(grid)[0] == 400
    assert request(grid, "POST", "/session/borrow", b"{").status == 400
    assert request(grid, "POST", "/session/borrow", b"[" * 17_000).status == 413
    assert request(grid, "POST", "/session/return", {"browserId": "../x"}).status == 400
    assert request(grid, "POST", "/session/return", {"browserId": "0-" + 16 * "0", "labelKey": "x"}).status == 400
    assert request(grid, "PATCH", "/v1/leases/0-" + 16 * "0", {"ttlSeconds": 60}).status == 404
    assert request(grid, "GET", "/v1/leases/0-" + 16 * "0").status == 404
    assert request(grid, "GET", "/v1/leases?cursor=x").status == 400
    assert not give_back(grid, {"labelKey": CHROMIUM, "browserId": "0-" + 16 * "0"})
    assert grid.active() == 0


def test_leases_are_listed_and_extended(grid: Grid) -> None:
    one, other = borrow(grid, ttlSeconds=60), borrow(grid, "AppB:Chromium", ttlSeconds=86_400)
    assert leases(grid) == [other["browserId"], one["browserId"]]
    extended = request(grid, "PATCH", f"/v1/leases/{one['browserId']}", {"ttlSeconds": 3600})
    assert extended.status == 200
    assert extended.body["expiresAt"] > one["expiresAt"] + 3000
    eventually(lambda: lease_now(grid, one)["expiresAt"] > one["expiresAt"] + 3000, "Redis knows, too")
    for lease in (one, other):
        assert give_back(grid, lease)
    eventually(lambda: leases(grid) == [], "none is left")
    assert {one["browserId"], other["browserId"]} <= set(leases(grid, "?status=returned"))
    assert request(grid, "GET", "/v1/leases?status=lost").status == 400


def test_label_key_and_name_come_with_a_connect_too(grid: Grid) -> None:
    with session(grid.port, "/?labels=appa:chromium&name=Smoke%2012"):
        path = "/v1/sessions?status=running"
        (live,) = eventually(lambda: request(grid, "GET", path).body["sessions"], "the session is on record")
        assert (live["labels"], live["name"], live["lease"]) == ("appa:chromium", "Smoke 12", None)
        assert live["labelKey"] == "AppA:Chromium:UAT"
    with connect(grid.port) as sock:
        sock.sendall(head(X_Pwgrid_Labels="AppB:Chromium", X_Pwgrid_Name="by header"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: "by header" in grid.command("sessions").stdout, "the command line shows it")
    assert answer(grid.port, head(target="/?labels=AppC:Chromium:UAT"))[0] == 404
    assert answer(grid.port, head(target="/?labels=AppC"))[0] == 400
    assert answer(grid.port, head(target="/?name=a:b"))[0] == 400
    eventually(lambda: grid.active() == 0, "the slots are free")
    assert "Smoke 12" in grid.output()
    assert "Smoke" not in grid.get("/metrics")[2].decode()


def test_a_borrow_whose_client_goes_while_it_waits_takes_no_slot(grid: Grid) -> None:
    held = [borrow(grid) for _ in range(10)]
    body = b'{"labelKey":"AppA:Chromium:UAT"}'
    with connect(grid.port) as sock:
        sock.sendall(
            b"POST /session/borrow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        eventually(lambda: request(grid, "GET", "/v1/status").body["waiting"] == 1, "it waits")
    eventually(lambda: request(grid, "GET", "/v1/status").body["waiting"] == 0, "it has left the line")
    for lease in held:
        assert give_back(grid, lease)
    eventually(lambda: grid.active() == 0, "the slots are free")


async def test_a_lease_ends_by_its_time_whoever_is_connected(grid: Grid) -> None:
    """Lent for a second by the worker itself, since the API lends for a minute at least."""
    worker = grid.status()["workers"][0]["id"]
    lease_id, secret = secrets.token_hex(8), "s3cret"
    handoffs = Handoffs(grid.runtime, mock.Mock())
    taken = {
        "deadline": time.monotonic() + BOUND_S,
        "client": "test",
        "clientFields": {"labels": CHROMIUM},
        "secret": secret,
    }
    try:
        for question in ({"do": "take", "expiresAt": time.time() + 1, **taken}, {"do": "keep"}):
            assert (await handoffs.ask(worker, {"id": lease_id, **question}))["refused"] is None
    finally:
        handoffs.close()
    target = f"/lease/chromium/{worker}/{lease_id}.{secret}"
    with await asyncio.to_thread(session, grid.port, target) as sock:
        assert b"its lease ran out; extend it" in await asyncio.to_thread(sock.recv, 4096)
    lease = {"browserId": f"{worker}-{lease_id}"}
    await asyncio.to_thread(eventually, lambda: lease_now(grid, lease)["status"] == "expired", "it is on record")
    (record,) = sessions_of(grid, lease)
    assert (record["status"], record["reason"]) == ("expired", "expired")
    assert lease_now(grid, lease)["reason"] == "expired"


def test_without_a_grace_a_disconnect_returns_the_lease_and_names_stay_out_of_the_log() -> None:
    environment = {**TWO_POOLS, **WITHOUT_SPARES, "LOG_RUN_NAMES": "false", "DRAIN_TIMEOUT": "3600"}
    with running_grid(environment=environment, fake=True) as grid:
        lease = borrow(grid, runName="secret name")
        session(grid.port, lease["target"]).close()
        eventually(lambda: lease_now(grid, lease)["status"] == "returned", "it is returned")
        assert lease_now(grid, lease)["reason"] == "client disconnected"
        assert answer(grid.port, head(target=lease["target"]))[0] == 404
        assert not give_back(grid, lease)
        assert lease_now(grid, lease)["runName"] == "secret name"
        idle, used = borrow(grid), borrow(grid)
        with session(grid.port, used["target"]) as sock, session(grid.port, "/?name=secret%20name"):
            stop_while_leases_go_on(grid, idle, used, sock)
        assert "secret name" not in grid.output()


def test_a_lease_that_nobody_has_come_with_does_not_hold_up_a_stop_without_a_master() -> None:
    with running_grid(environment={**TWO_POOLS, "DRAIN_TIMEOUT": "3600"}, fake=True) as grid:
        borrow(grid)
        grid.kill_master()
        assert grid.command("stop", "--no-wait").returncode == 0
        eventually(lambda: not grid.processes(), "it has ended")
        assert "reason='grid stopped'" in grid.output()


def test_a_worker_that_is_replaced_waits_for_a_lease_that_nobody_has_come_with(grid: Grid) -> None:
    lease = borrow(grid)
    worker = lease["browserId"].partition("-")[0]
    assert grid.command("drain", worker).returncode == 0
    eventually(lambda: status_of(grid, worker) == "draining", "it drains")
    with session(grid.port, lease["target"]) as sock:
        assert goes_on(sock)
    assert give_back(grid, lease)
    eventually(lambda: status_of(grid, worker) == "", "it is gone")


def status_of(grid: Grid, worker: str) -> str:
    return {each["id"]: each["status"] for each in grid.status()["workers"]}.get(worker, "")


def test_a_lease_outlives_a_client_that_came_while_its_browser_server_stood_still() -> None:
    with running_grid(environment={**TWO_POOLS, **WITHOUT_SPARES}, fake=True) as grid:
        lease = borrow(grid)
        (worker,) = (each for each in grid.status()["workers"] if lease["browserId"].startswith(each["id"]))
        os.kill(worker["nodePid"], signal.SIGSTOP)
        try:
            status, _, body = answer(grid.port, head(target=lease["target"]))
        finally:
            os.kill(worker["nodePid"], signal.SIGCONT)
        assert (status, "does not answer" in body["error"]) == (503, True), body
        eventually(lambda: [each["reason"] for each in sessions_of(grid, lease)] == ["too late"], "it is on record")
        with session(grid.port, lease["target"]) as sock:
            assert goes_on(sock)
        eventually(lambda: lease_now(grid, lease)["status"] == "returned", "it ends with its client")


def test_a_lease_whose_borrower_was_not_answered_comes_back_and_one_whose_was_stays(grid: Grid) -> None:
    """The proxy is killed right behind the answer, and between the lease that the worker keeps and its answer."""
    (worker,) = (each for each in grid.status()["workers"] if each["pool"].startswith("appb"))
    with handoff_relay(grid.runtime / "w" / worker["id"] / "handoff.sock") as relay:
        relay.pid = grid.status()["proxy"]["pid"]
        os.kill(relay.pid, signal.SIGKILL)  # it has links already
        another_serves(grid, relay.pid)
        answered = killed_at(grid, relay, b'"answered"')
        assert answered is not None
        session(grid.port, answered["target"]).close()
        relay.kill_at_answer = True
        assert killed_at(grid, relay, b'"keep"') is None
        left = eventually(lambda: set(leases(grid)) - {answered["browserId"]}, "both are on record")
        lost = {"browserId": left.pop()}
        eventually(lambda: lease_now(grid, lost)["status"] != "active", "its slot is free", timeout_s=30)
        now = lease_now(grid, lost)
        assert (now["status"], now["reason"]) == ("expired", "borrow not answered")
        assert lease_now(grid, answered)["status"] == "active"
        with session(grid.port, answered["target"]) as sock:
            assert goes_on(sock)
        assert grid.active() == 1
        assert give_back(grid, answered)
    eventually(lambda: grid.active() == 0, "the slots are free")


def test_a_refused_borrow_is_an_event_of_the_page_and_a_line_of_the_log() -> None:
    environment = {**TWO_POOLS, "BORROW_QUEUE_TIMEOUT": "0.2", "MAX_CONCURRENT_SESSIONS": "1"}
    with running_grid(environment=environment, fake=True) as grid, page(f"{grid.endpoint}/v1/live") as feed:
        lease = borrow(grid, "AppB:Chromium")
        status, error = refused(grid, labelKey="AppB:Chromium")
        assert status == 503
        (line,) = (each for each in grid.output().splitlines() if "_refused" in each)
        assert "borrow_refused" in line
        assert error in line
        assert "client=127.0.0.1:" in line
        events: list[str] = []
        while not any("refused" in text for text in events):
            events += [each["text"] for each in json.loads(feed.recv(timeout=BOUND_S)).get("events", ())]
        assert f"a borrow was refused (503): {error}" in events
        assert give_back(grid, lease)


def killed_at(grid: Grid, relay: HandoffRelay, packet: bytes) -> dict[str, Any] | None:
    """Borrows, and the proxy is killed when that passes. Returns the lease, or None where there was no answer."""
    relay.pid, relay.kill_at = grid.status()["proxy"]["pid"], packet
    try:
        lease = borrow(grid, "AppB:Chromium")
    except GONE:
        lease = None
    another_serves(grid, relay.pid)
    return lease


def another_serves(grid: Grid, proxy: int) -> None:
    eventually(lambda: grid.status()["proxy"]["pid"] not in (proxy, None), "another proxy serves")


def stop_while_leases_go_on(grid: Grid, idle: dict[str, Any], used: dict[str, Any], sock: socket.socket) -> None:
    grid.process.send_signal(signal.SIGTERM)
    eventually(lambda: request(grid, "GET", "/health/ready").status == 503, "the grid stops")
    borrowed = request(grid, "POST", "/session/borrow", {"labelKey": CHROMIUM})
    assert (borrowed.status, borrowed.headers["retry-after"]) == (503, "30")
    assert goes_on(sock)
    status, _, body = answer(grid.port, head(target=idle["target"]))  # it would hold up the stop
    assert (status, body["reason"]) == (404, "grid stopped")
    assert lease_now(grid, idle)["reason"] == "grid stopped"
    assert goes_on(sock)
    assert give_back(grid, used)
    assert b"its lease was returned" in sock.recv(4096)


def test_borrowed_connected_returned_again_and_again_nothing_is_left_over() -> None:
    """With recycling, and with a killed proxy in between. `python -m bench.leases` does a thousand, and real ones."""
    environment = {**TWO_POOLS, "MAX_LIFETIME_SESSIONS": "25", "HEARTBEAT_INTERVAL": "1", "CANARY_INTERVAL": "600"}
    with running_grid(environment=environment, fake=True) as grid:
        proxy = grid.status()["proxy"]["pid"]
        done = cycles(grid, 100, clients=5, at_half=lambda: os.kill(proxy, signal.SIGKILL))
        assert done.cycles == 100
        # Borrowed when the proxy was killed, and their clients never heard.
        ended = [int(grid.redis("HGET", "leases:outcomes", each) or 0) for each in ("expired", "failed")]
        assert len(done.orphans) <= sum(ended) <= 5
        counters_are_exact(grid)
        assert done.failed == []
        assert int(grid.redis("HGET", "leases:outcomes", "completed")) >= 100
        assert len({worker["id"] for worker in grid.status()["workers"]} - done.first_workers) >= 2
