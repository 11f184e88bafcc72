"""Two grids that name the same Redis are one grid. Their browser servers are fake; each host has an address of the
loopback network."""

import contextlib
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from pwgrid.cli.ask_grid import find_grid
from pwgrid.cli.ask_hosts import HostSilent, ask_master_of, other_hosts
from pwgrid.common.errors import GridError
from tests.conftest import counters_are_exact
from tests.support import raw
from tests.support.grid import eventually, wait_for_end
from tests.support.hosts import (
    CAP,
    SLOTS,
    Host,
    drain,
    full,
    host,
    hosts_of_sessions,
    is_lost,
    know_each_other,
    raw_name,
    stand_in_line,
)
from tests.support.redis import RedisServer

BOTH = "/?pool=both-chromium-uat"
AT_ONCE = 16  # more clients than both hosts have slots


@pytest.fixture(scope="module")
def own_hosts() -> Iterator[tuple[Host, Host]]:
    server = RedisServer()
    with (
        contextlib.closing(server),
        host(server.url, "127.0.0.1", "Both:Chromium:UAT=1,First:Chromium:X=1") as first,
        host(server.url, "127.0.0.2", "Both:Chromium:UAT=1,Second:Chromium:Y=1") as second,
    ):
        both = Host(first, "127.0.0.1"), Host(second, "127.0.0.2")
        know_each_other(*both)
        yield both
        counters_are_exact(first)


@pytest.fixture
def hosts(own_hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    """Both, with nothing taken."""
    eventually(lambda: own_hosts[0].grid.active() == 0, "nothing is taken")
    return own_hosts


# Who gets a client


def test_a_client_gets_its_own_host_s_workers_first_and_those_of_another_once_they_are_full(
    hosts: tuple[Host, Host],
) -> None:
    first, second = hosts
    before = first.metric("pwgrid_upgrades_forwarded_total")
    with full(first), first.session("/?pool=both-chromium-uat&name=over") as forwarded:
        eventually(lambda: hosts_of_sessions(first) == [first.name] * SLOTS + [second.name], "the last one is there")
        (there,) = [each for each in first.live() if each["host"] == second.name]
        assert there["workerId"] in second.workers()
        assert (there["name"], there["client"]) == ("over", raw_name(forwarded))
        assert first.metric("pwgrid_upgrades_forwarded_total") == before + 1
        forwarded.sendall(raw.GOODBYE)
        assert raw.read_all(forwarded).startswith(b"\x88")
        forwarded.close()
        eventually(lambda: second.get(f"/v1/sessions/{there['id']}")["status"] == "completed", "it has ended")


@pytest.mark.parametrize("target", ["/?pool=second-chromium-y", "/?labels=Second:Chromium:Y"])
def test_a_pool_that_only_another_host_has_is_served(hosts: tuple[Host, Host], target: str) -> None:
    first, second = hosts
    with first.session(target):
        eventually(lambda: hosts_of_sessions(first) == [second.name], "it is there")


def test_a_pool_that_no_host_has_is_refused(hosts: tuple[Host, Host]) -> None:
    status, text = hosts[0].refused("/?pool=third")
    assert status == 404
    assert "pools are: both-chromium-uat, first-chromium-x, second-chromium-y" in text


def test_a_client_that_waits_gets_a_slot_that_comes_free_on_another_host(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with full(first), full(second) as there, first.waiting(BOTH) as waiting:
        eventually(lambda: first.get("/v1/status")["waiting"] == 1, "it waits")
        eventually(
            lambda: second.get("/v1/capacity")["pools"]["both-chromium-uat"]["waiting"] == 1, "the other host shows it"
        )
        there[0].close()
        assert raw.is_served(waiting)


def test_runs_take_turns_at_the_slots_of_another_host(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with full(first), full(second) as there, contextlib.ExitStack() as clients:
        earlier, _, later = (
            stand_in_line(first, f"{BOTH}&name={run}", place, clients)
            for place, run in enumerate(("large", "large", "small"), 1)
        )
        for leaves, served in zip(there, (earlier, later), strict=True):
            leaves.close()
            assert raw.is_served(served)


def test_runs_of_clients_at_different_hosts_take_turns(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with full(first) as here, full(second) as there, contextlib.ExitStack() as clients:
        large = [stand_in_line(first, f"{BOTH}&name=many", place, clients) for place in (1, 2)]
        small = [stand_in_line(second, f"{BOTH}&name=few", place, clients) for place in (1, 2)]
        for leaves, served in zip((*there, *here), (large[0], small[0], large[1], small[1]), strict=True):
            leaves.close()
            assert raw.is_served(served)


def test_a_cap_counts_over_all_hosts(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    target = "/?name=nightly"
    with first.session(target) as one, second.session(target) as two, second.waiting(target) as waiting:
        eventually(lambda: second.get("/v1/status")["waiting"] == 1, "it waits, although slots are free")
        one.close()
        assert raw.is_served(waiting)
        assert raw.goes_on(two)


def test_many_clients_of_two_hosts_never_have_more_than_their_caps_and_all_who_stay_are_served(
    hosts: tuple[Host, Host],
) -> None:
    """Of two runs, which may have 2 sessions each, and of none. Some leave before they are served.

    At first the clients of one run alone come, and nobody leaves before all the others of it wait beside free slots.
    """
    live, most, served = Counter[str](), Counter[str](), Counter[str]()
    counting, may_leave = threading.Lock(), threading.Event()

    def comes(draws: random.Random, run: str, patience_s: float) -> bool:
        """Whether it was served, or had left."""
        with draws.choice(hosts).waiting(f"/?pool=both-chromium-uat{run and f'&name={run}'}") as sock:
            sock.settimeout(patience_s)
            try:
                answer = sock.recv(4096)
            except TimeoutError:
                return patience_s < 1
            if not answer.startswith(b"HTTP/1.1 101 "):
                return False
            with counting:
                live[run] += 1
                most[run] = max(most[run], live[run])
            is_served = may_leave.wait(30) and (
                patience_s < 1 or all(raw.goes_on(sock) for _ in range(draws.randint(1, 4)))
            )
            with counting:
                live[run] -= 1
                served[run] += 1
            return is_served

    def anybody_comes(number: int) -> bool:
        draws = random.Random(number)
        return comes(draws, draws.choice(["nightly", "weekly", ""]), draws.choice([0.1, 30, 30]))

    with ThreadPoolExecutor(AT_ONCE) as clients:
        for run in ("nightly", "weekly"):
            may_leave.clear()
            of_one_run = [clients.submit(comes, random.Random(number), run, 30) for number in range(AT_ONCE)]
            eventually(
                lambda: sum(each.get("/v1/status")["waiting"] for each in hosts) == AT_ONCE - CAP, "all others wait"
            )
            may_leave.set()
            assert all(client.result() for client in of_one_run)
        assert all(clients.map(anybody_comes, range(160)))
    assert (most["nightly"], most["weekly"]) == (CAP, CAP)
    assert min(served.values()) > CAP
    eventually(lambda: [each.get("/v1/status")["waiting"] for each in hosts] == [0, 0], "nobody waits")
    counters_are_exact(hosts[0].grid)


def test_a_host_whose_proxy_is_frozen_holds_nobody_up(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    proxy = psutil.Process(second.grid.status()["proxy"]["pid"])
    with full(first) as own:
        proxy.suspend()
        try:
            with first.waiting(BOTH) as waiting:
                eventually(lambda: first.get("/v1/status")["waiting"] == 1, "it waits for a slot of its own host")
                own[0].close()
                assert waiting.recv(4096).startswith(b"HTTP/1.1 101 ")
                eventually(lambda: hosts_of_sessions(first) == [first.name] * SLOTS, "it is served here")
        finally:
            proxy.resume()
    know_each_other(first, second)
    eventually(lambda: first.grid.active() == 0, "no slot stays taken")


def test_clients_wait_for_a_forwarder_that_has_died_and_no_host_is_to_blame(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lease = first.ask("POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"}).body
    target = lease["webSocketEndpoint"].partition(f":{first.grid.port}")[2]
    forwarder, master = psutil.Process(first.grid.status()["forwarder"]["pid"]), psutil.Process(first.grid.process.pid)
    before = Counter(first.grid.output().split())
    master.suspend()  # so that there is no successor
    try:
        forwarder.kill()
        wait_for_end(forwarder.pid)
        with first.waiting("/?pool=second-chromium-y") as client, first.waiting(target) as with_lease:
            eventually(
                lambda: first.grid.output().count("no_way_to_other_hosts") > before["no_way_to_other_hosts"], "tried"
            )
            master.resume()
            for each in (client, with_lease):
                assert each.recv(4096).startswith(b"HTTP/1.1 101 ")
                assert raw.goes_on(each)
    finally:
        master.resume()
    assert Counter(first.grid.output().split())["host_unreachable"] == before["host_unreachable"]
    first.ask("POST", "/session/return", {"browserId": lease["browserId"], "labelKey": lease["labelKey"]})
    know_each_other(first, second)
    eventually(lambda: first.grid.active() == 0, "no slot stays taken")


# What is done at another host


def test_what_a_frozen_host_was_asked_and_has_not_heard_it_does_not_do_later(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    proxy = psutil.Process(second.grid.status()["proxy"]["pid"])
    there = find_grid(first.grid.port, str(first.grid.runtime.parent))
    (to_second,) = other_hosts(there, first.name)
    proxy.suspend()
    try:
        answer = first.ask("POST", f"/v1/pools/second-chromium-y/scale?host={second.name}", {"workers": 2})
        assert answer.status == 503
        assert answer.body["error"].startswith(f"host {second.name} was not asked: ")
        with pytest.raises(GridError) as caught:
            ask_master_of(there, to_second, "scale", {"second-chromium-y": 2})
        assert not isinstance(caught.value, HostSilent)
    finally:
        proxy.resume()
    eventually(lambda: questions_not_found(second) == 2, "it has come for both")
    wanted = {pool["name"]: pool["wanted"] for pool in second.get("/v1/pools")["pools"]}
    assert wanted["second-chromium-y"] == 1
    know_each_other(first, second)


def questions_not_found(host: Host) -> int:
    """How many questions other hosts' connections have come for that were not there any more."""
    named = r'^pwgrid_proxy_http_requests_total\{method="POST",route="/forwarded/\{id\}",status="404"\} (\d+)'
    found = re.search(named, host.grid.get("/metrics")[2].decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_session_is_ended_at_any_host(hosts: tuple[Host, Host]) -> None:
    first, _ = hosts
    with first.session("/?pool=second-chromium-y") as client:
        eventually(lambda: first.live(), "it runs")
        (session,) = first.live()
        assert first.ask("DELETE", f"/v1/sessions/{session['id']}").status == 202
        assert b"an operator" in client.recv(4096)
    eventually(lambda: first.get(f"/v1/sessions/{session['id']}")["status"] == "ended", "its record says so")


def test_files_of_a_session_are_had_at_any_host(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session("/?pool=second-chromium-y"):
        eventually(lambda: first.live(), "it runs")
        (session,) = first.live()
        # What the browser server does when a download is complete; the fake one downloads nothing.
        worker = second.grid.runtime / "w" / session["workerId"]
        name, files = "ab" * 16, f"/v1/sessions/{session['id']}/files"
        (worker / "sessions" / name).mkdir(parents=True)
        (worker / "files").mkdir(exist_ok=True)
        (worker / "files" / session["id"]).symlink_to(name)
        (worker / "sessions" / name / "report ä.bin").write_bytes(content := bytes(range(256)) * 4096)
        assert [(each["name"], each["size"]) for each in first.get(files)["files"]] == [("report ä.bin", len(content))]
        status, headers, body = first.grid.get(f"{files}/report%20%C3%A4.bin")
        assert (status, body, headers["content-length"]) == (200, content, str(len(content)))
        assert first.grid.get(f"{files}/other")[0] == 404
        for each in (worker / "files" / session["id"], worker / "sessions" / name / "report ä.bin"):
            each.unlink()
        assert first.get(files)["files"] == []


def test_a_lease_of_another_host_is_borrowed_used_extended_and_returned_anywhere(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lease = first.ask("POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"}).body
    assert lease["browserId"].partition("-")[0] in second.workers()
    target = lease["webSocketEndpoint"].partition(f":{first.grid.port}")[2]
    assert lease["webSocketEndpoint"].startswith(f"ws://{first.name}/lease/")
    for each in (first, second):
        with each.session(target) as client:
            status, _ = first.refused(target)
            assert status == 409
            assert raw.goes_on(client)
    longer = first.ask("PATCH", f"/v1/leases/{lease['browserId']}", {"ttlSeconds": 3600}).body
    assert longer["expiresAt"] > lease["expiresAt"]
    returned = {"browserId": lease["browserId"], "labelKey": lease["labelKey"]}
    assert first.ask("POST", "/session/return", returned).body["returned"] is True
    assert first.ask("POST", "/session/return", returned).body["returned"] is False
    assert first.refused(target)[0] == 404


def test_an_own_browser_and_a_cdp_session_by_its_url_are_forwarded(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session("/?pool=second-chromium-y&isolation=browser"):
        eventually(lambda: [each["isolation"] for each in first.live()] == ["browser"], "it has its own browser")
    eventually(lambda: first.grid.active() == 0, "it has ended")
    told = first.get("/json/version?pool=second-chromium-y")["webSocketDebuggerUrl"]
    target = told.partition(f":{first.grid.port}")[2]
    with first.session(target) as begins, second.session(target) as joins, first.session(target) as joins_too:
        assert first.grid.active() == 1
        eventually(lambda: hosts_of_sessions(first) == [second.name], "it is there")
        assert all(map(raw.goes_on, (begins, joins, joins_too)))


def test_a_worker_of_another_host_is_drained(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    (worker,) = [each["id"] for each in second.grid.status()["workers"] if each["pool"] == "second-chromium-y"]
    with first.session("/?pool=second-chromium-y") as client:
        assert first.ask("POST", f"/v1/workers/{worker}/drain").body == {"draining": [worker]}
        assert raw.goes_on(client)
        assert first.ask("POST", f"/v1/workers/{worker}/drain?now=true").body == {"draining": [worker]}
        assert b"an operator" in raw.read_all(client)
    eventually(lambda: worker not in second.workers(), "it is replaced")
    eventually(
        lambda: [each["workers"] for each in first.get("/v1/hosts")["hosts"]] == [2, 2], "all hosts know that it is"
    )
    with first.session("/?pool=second-chromium-y"):
        pass


# What nobody else may do


def test_nobody_gets_a_worker_without_a_forward(hosts: tuple[Host, Host]) -> None:
    first, _ = hosts
    for target in ("/forwarded/", f"/forwarded/{'0' * 32}", "/forwarded/../x"):
        assert first.refused(target)[0] == 404
        assert first.ask("POST", target).status in (404, 405)


# What is shown


def test_hosts_workers_capacity_status_and_metrics_show_all_hosts(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    with first.session("/?pool=second-chromium-y"):
        eventually(lambda: first.live(), "it runs")

        def shown() -> dict[str, dict[str, Any]]:
            return {each["name"]: each for each in first.get("/v1/hosts")["hosts"]}

        whole = {"slots": 2 * SLOTS, "busy": 1, "waiting": 0, "spare": 0}
        eventually(lambda: shown()[second.name]["room"] == whole, "the other host has told of all its workers")
        assert {name: each["self"] for name, each in shown().items()} == {first.name: True, second.name: False}
        assert (shown()[second.name]["workers"], shown()[second.name]["pools"]) == (
            2,
            ["both-chromium-uat", "second-chromium-y"],
        )
        capacity = first.get("/v1/capacity")
        assert capacity["hosts"][second.name]["busy"] == 1
        assert [*capacity["pools"]] == ["both-chromium-uat", "first-chromium-x", "second-chromium-y"]
        assert capacity["pools"]["both-chromium-uat"]["slots"] == 2 * SLOTS
        named = {each["id"]: each["host"] for each in first.get("/v1/workers")["workers"]}
        assert named == dict.fromkeys(first.workers(), first.name) | dict.fromkeys(second.workers(), second.name)
        assert first.metric('pwgrid_hosts{state="serving"}') == 2
        text = first.grid.command("status").stdout
        assert re.search(rf"^{re.escape(second.name)} +serving .* 2 +1 +4 +0", text, re.MULTILINE), text
        lines = [line.split() for line in text.splitlines()]
        assert {line[0] for line in lines if second.name in line[1:]} == {
            *("both-chromium-uat", "second-chromium-y"),
            *second.workers(),
        }
        (other,) = json.loads(first.grid.command("status", "--json").stdout)["otherHosts"]
        assert {worker["id"]: worker["active"] for worker in other["workers"]} == {
            worker["id"]: worker["active"] for worker in second.grid.status()["workers"]
        }


# A host leaves


def test_a_drained_host_gets_no_sessions_and_its_clients_get_another_s_until_that_is_undone(
    hosts: tuple[Host, Host],
) -> None:
    first, second = hosts
    with first.session(BOTH) as before:
        drain(second, first.name)
        eventually(lambda: first.ask("GET", "/health/ready").status == 503, "load balancers hear it")
        with first.session(BOTH):
            eventually(lambda: hosts_of_sessions(first) == [first.name, second.name], "the new one is elsewhere")
        assert raw.goes_on(before)
        before.close()
        assert "no session left" in drain(first, "127.0.0.1", "--wait")
    assert drain(first, first.name, "--undo") == f"host {first.name} gets sessions again\n"
    eventually(lambda: first.ask("GET", "/health/ready").status == 200, "it serves again")
    with first.session(BOTH):
        eventually(lambda: hosts_of_sessions(first) == [first.name], "as before")


def test_clients_with_leases_of_a_drained_host_get_what_they_ask_for_at_another_one(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    lease = first.ask("POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"}).body
    target = lease["webSocketEndpoint"].partition(f":{first.grid.port}")[2]
    drain(second, second.name)
    eventually(lambda: {each["state"] for each in first.get("/v1/hosts")["hosts"]} == {"serving", "drained"}, "known")
    with first.session(f"{target}?isolation=browser"):
        eventually(lambda: [each["isolation"] for each in first.live()] == ["browser"], "it has its own browser")
    first.ask("POST", "/session/return", {"browserId": lease["browserId"], "labelKey": lease["labelKey"]})
    drain(second, second.name, "--undo")
    know_each_other(first, second)


def test_a_host_that_nobody_knows_is_not_drained(hosts: tuple[Host, Host]) -> None:
    done = hosts[0].grid.command("drain", "--host", "10.9.9.9")
    assert done.returncode != 0
    assert hosts[1].name in done.stderr


def test_a_host_that_is_lost_is_cleared_away_by_another_and_one_that_stops_leaves_the_list() -> None:
    server = RedisServer()
    pools = "Both:Chromium:UAT=1"
    with (
        contextlib.closing(server),
        host(server.url, "127.0.0.1", pools) as first_grid,
        host(server.url, "127.0.0.3", pools) as third_grid,
    ):
        first, third = Host(first_grid, "127.0.0.1"), Host(third_grid, "127.0.0.3")
        with host(server.url, "127.0.0.2", pools) as second_grid:
            second = Host(second_grid, "127.0.0.2")
            know_each_other(first, second, third)
            with second.session("/"), full(first), first.session("/") as forwarded:
                eventually(lambda: len(first.live()) == SLOTS + 2, "all run")
                lost = {each["id"] for each in first.live() if each["host"] == second.name}
                second_grid.kill_everything()
                assert raw.read_all(forwarded).replace(raw.SERVER_PING, b"") == b""
                eventually(lambda: all(is_lost(first, session, second) for session in lost), "they are lost")
        know_each_other(first, third)
        assert first.grid.redis("KEYS", "worker:*:*") != []
        named = {each["host"] for each in first.get("/v1/workers")["workers"]}
        assert named == {first.name, third.name}
        eventually(lambda: first.grid.active() == 0, "its slots are free")
        third_grid.stop()
        know_each_other(first)
        with first.session("/"):
            pass


def test_a_host_that_loses_redis_serves_its_own_workers_and_all_is_right_when_it_is_back() -> None:
    server, pools = RedisServer(), "Both:Chromium:UAT=1"
    server.command("ACL", "SETUSER", "second", "on", ">password", "~*", "&*", "+@all")
    its_url = f"unix://second:password@{server.socket_path}"
    with (
        contextlib.closing(server),
        host(server.url, "127.0.0.1", pools) as first_grid,
        host(its_url, "127.0.0.2", pools) as second_grid,
    ):
        first, second = Host(first_grid, "127.0.0.1"), Host(second_grid, "127.0.0.2")
        know_each_other(first, second)
        with full(first) as own, first.session(BOTH) as forwarded:
            eventually(lambda: len(first.live()) == SLOTS + 1, "all run")
            (there,) = [each["id"] for each in first.live() if each["host"] == second.name]
            server.command("ACL", "SETUSER", "second", "off")
            server.command("CLIENT", "KILL", "USER", "second")
            eventually(lambda: is_lost(first, there, second), "it is taken for lost")
            assert raw.goes_on(forwarded)
            with second.session(BOTH) as meanwhile:
                own[0].close()
                with first.session(BOTH):
                    server.command("ACL", "SETUSER", "second", "on")
                    know_each_other(first, second)
                    eventually(lambda: len(first.live()) == 4, "what has lived all the time is on record")
                    assert first.get(f"/v1/sessions/{there}")["status"] == "running"
                    assert all(map(raw.goes_on, (forwarded, meanwhile)))
        counters_are_exact(first_grid, repaired=True)
