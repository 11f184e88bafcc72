"""Hosts in networks of their own, and Redis in another one, while cables are pulled. Their browser servers are fake."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import pytest

from pwgrid.proxy.hosts.host_table import UNREACHABLE_S
from tests.conftest import counters_are_exact
from tests.support import raw
from tests.support.grid import eventually
from tests.support.hosts import (
    SLOTS,
    Host,
    full,
    host_inside,
    hosts_of_sessions,
    is_lost,
    know_each_other,
    raw_name,
    redis_inside,
)
from tests.support.networks import Networks

REDIS = "redis"
BOTH = "/?pool=both-chromium-uat"
SECOND = "/?pool=second-chromium-y"
POOLS = {
    "first": "Both:Chromium:UAT=1",
    "second": "Both:Chromium:UAT=1,Second:Chromium:Y=2",
    "third": "Both:Chromium:UAT=1",
}


@dataclass
class Apart:
    """Three hosts, and what joins them."""

    networks: Networks
    first: Host
    second: Host
    third: Host

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.first, self.second, self.third

    def are_exact(self, *, repaired: bool = False) -> None:
        with self.first.inside():
            counters_are_exact(self.first.grid, repaired=repaired)


@pytest.fixture(scope="module")
def own_apart() -> Iterator[Apart]:
    with contextlib.ExitStack() as held:
        networks = Networks(*POOLS, REDIS)
        held.callback(networks.close)
        url = held.enter_context(redis_inside(networks, REDIS))
        hosts = (held.enter_context(host_inside(networks, name, url, pools)) for name, pools in POOLS.items())
        apart = Apart(networks, *hosts)
        know_each_other(*apart.hosts)
        yield apart


@pytest.fixture
def apart(own_apart: Apart) -> Apart:
    """All of them, with nothing taken, and no counter repaired so far."""
    own_apart.are_exact(repaired=True)
    know_each_other(*own_apart.hosts)
    with own_apart.first.inside():
        own_apart.first.grid.redis("DEL", "cluster:counter_repairs")
    return own_apart


def test_a_client_of_one_network_uses_a_browser_in_another(apart: Apart) -> None:
    with apart.first.session(SECOND) as client:
        eventually(lambda: hosts_of_sessions(apart.third) == [apart.second.name], "all hosts know where it is")
        (session,) = apart.first.live()
        assert session["client"] == raw_name(client)
        assert session["workerId"] in apart.second.workers()
    apart.are_exact()


def test_a_host_that_is_cut_off_serves_its_own_and_all_is_right_when_it_is_back(apart: Apart) -> None:
    first, second, third = apart.hosts
    lease = first.ask("POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"}).body
    with first.session(SECOND) as forwarded, second.session(BOTH) as there, first.session(BOTH) as here:
        eventually(lambda: len(first.live()) == 3, "all run")
        cut_off = [each["id"] for each in first.live() if each["host"] == second.name]
        with apart.networks.unplugged("second"), second.session(BOTH), first.session(BOTH):
            assert raw.goes_on(there)
            eventually(lambda: all(is_lost(first, each, second) for each in cut_off), "it is taken for lost")
            assert raw.goes_on(here)
        with second.session(SECOND):
            pass
        know_each_other(*apart.hosts)
        for each in cut_off:
            eventually(lambda each=each: first.get(f"/v1/sessions/{each}")["status"] == "running", "it is live again")
        assert all(map(raw.goes_on, (forwarded, there, here)))
        with third.session(lease["webSocketEndpoint"].partition(f":{first.grid.port}")[2]):
            pass
        returned = {"browserId": lease["browserId"], "labelKey": lease["labelKey"]}
        assert third.ask("POST", "/session/return", returned).body["returned"] is True
        with third.session(SECOND):
            pass
    apart.are_exact(repaired=True)


def test_clients_get_others_than_a_host_that_theirs_cannot_reach_and_none_is_lost(apart: Apart) -> None:
    first, second, third = apart.hosts
    with first.session(SECOND) as forwarded, contextlib.ExitStack() as clients, ThreadPoolExecutor(1) as at_once:
        with apart.networks.apart("first", "second"):
            waiting = clients.enter_context(first.waiting(SECOND))
            forwarded.sendall(raw.PING)
            eventually(lambda: apart.networks.on_the_way("first", second.address), "it is on its way")
            lent = at_once.submit(first.ask, "POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"})
            eventually(lambda: state(first, second) == "unreachable", "it cannot be reached")
            assert state(third, second) == "serving"
            clients.enter_context(full(first))
            others = [clients.enter_context(first.session(BOTH)) for _ in range(SLOTS)]
            placed = [*[first.name] * SLOTS, second.name, *[third.name] * SLOTS]
            eventually(lambda: hosts_of_sessions(third) == sorted(placed), "they are at the third host")
            with third.session(BOTH) as by_another:
                eventually(lambda: hosts_of_sessions(third).count(second.name) == 2, "the third host reaches it")
                assert raw.goes_on(by_another)
        assert raw.is_answered(forwarded)
        assert waiting.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert all(map(raw.goes_on, (waiting, forwarded, *others)))
        lease = lent.result()
        assert lease.status == 200, lease
        returned = {"browserId": lease.body["browserId"], "labelKey": lease.body["labelKey"]}
        assert first.ask("POST", "/session/return", returned).body["returned"] is True
        know_each_other(*apart.hosts)
    apart.are_exact()


def test_a_host_that_cannot_be_reached_is_left_alone_for_a_while_and_gets_clients_again_afterwards(
    apart: Apart,
) -> None:
    first, second, third = apart.hosts
    before, served = len(times_of(first, "host_unreachable")), len(times_of(second, "session_started"))
    with contextlib.ExitStack() as clients:
        with apart.networks.apart("first", "second"):
            waiting = clients.enter_context(first.waiting(SECOND))
            eventually(lambda: len(times_of(first, "host_unreachable")) > before, "it was tried")
            clients.enter_context(full(first))
            for _ in range(SLOTS):
                clients.enter_context(first.session(BOTH))
            eventually(
                lambda: hosts_of_sessions(third).count(third.name) == SLOTS, "they are at the third host at once"
            )
        assert waiting.recv(4096).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: len(times_of(second, "session_started")) > served, "it gets clients again")
        tried, served_at = times_of(first, "host_unreachable")[before:], times_of(second, "session_started")[-1]
        # However slow this machine is, and although the cable is back: nobody was offered to it meanwhile.
        assert all(later - earlier > UNREACHABLE_S for earlier, later in pairwise([*tried, served_at]))
    apart.are_exact()


def times_of(host: Host, event: str) -> list[float]:
    """When the log of a host says so, in seconds."""
    lines = [line.split() for line in host.grid.output().splitlines()]
    return [datetime.fromisoformat(words[0]).timestamp() for words in lines if event in words[1:5]]


def state(host: Host, other: Host) -> str:
    """How another host looks from a host."""
    (found,) = [each["state"] for each in host.get("/v1/hosts")["hosts"] if each["name"] == other.name]
    return str(found)
