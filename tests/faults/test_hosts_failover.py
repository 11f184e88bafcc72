"""Two hosts that are one grid, on a Redis that dies and comes back empty, and on ones of which another node takes over:
behind Sentinel, and in a Redis Cluster.

The fake browser server stands in for Playwright: nothing here depends on what a browser does.
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest
from redis.exceptions import RedisError

from tests.support import raw
from tests.support.grid import Grid, eventually
from tests.support.hosts import SLOTS, Host, full, host, hosts_of_sessions, is_lost, know_each_other, stand_in_line
from tests.support.newcomers import Newcomers
from tests.support.redis import RedisServer
from tests.support.redis_cluster import PREFIX, RedisCluster
from tests.support.sentinels import Sentinels

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
POOLS = {FIRST: "Both:Chromium:UAT=2", SECOND: "Both:Chromium:UAT=2,Second:Chromium:Y=1"}
BOTH, THERE = "/?pool=both-chromium-uat", "/?pool=second-chromium-y"
MORE = {"STALE_THRESHOLD": "18", "REDIS_KEY_TTL": "15", "WORKER_SELECT_TIMEOUT": "30", "DRAIN_TIMEOUT": "120"}
"""So that no host is taken for dead while another node takes over, and no session is cut."""


def _comes(host: Host, target: str) -> None:
    host.session(target).close()


@contextlib.contextmanager
def under_load(first: Host, second: Host) -> Iterator[list[Newcomers]]:
    """Live sessions and newcomers at both hosts, until the block ends; at the first one also those who are forwarded,
    since they come for a pool of the other."""
    ways = (first, BOTH), (first, THERE), (second, BOTH)
    newcomers = [Newcomers(partial(_comes, *way)) for way in ways]
    with ExitStack() as held:
        live = [held.enter_context(at.session(target)) for at, target in ways]
        for each in newcomers:
            held.enter_context(each.at_the_door())
        for each in newcomers:
            each.go_on(5)
        yield newcomers
        for each in newcomers:
            each.go_on(5)
        assert all(map(raw.goes_on, live))
    assert [each.refused for each in newcomers] == [[], [], []]


def are_exact(*hosts: Host) -> None:
    eventually(lambda: all(counted(host.grid) == what_is(*hosts) for host in hosts), "the counters are exact", 30)


def counted(grid: Grid) -> dict[str, object]:
    try:
        active, lifetime = (
            {name.decode(): int(count) for name, count in grid.redis("HGETALL", f"{grid.prefix}cluster:{key}").items()}
            for key in ("active_connections", "lifetime_connections")
        )
        return {"active": active, "lifetime": lifetime, "live": grid.redis("KEYS", f"{grid.prefix}*s:live:*")}
    except RedisError as error:  # on a busy machine a sentinel may take it for dead again
        return {"error": repr(error)}


def what_is(*hosts: Host) -> dict[str, object]:
    workers = [worker for host in hosts for worker in host.grid.status()["workers"]]
    lifetime = {f"chromium:{worker['id']}": worker["lifetime"] for worker in workers}
    return {"active": dict.fromkeys(lifetime, 0), "lifetime": lifetime, "live": []}


def has_redis(host: Host) -> bool:
    return host.ask("GET", "/health/ready").body == {"status": "ready"}


@contextlib.contextmanager
def two_hosts(url: str, prefix: str = "", **environment: str) -> Iterator[tuple[Host, Host]]:
    more = {**environment, **({"REDIS_KEY_PREFIX": prefix} if prefix else {})}
    with ExitStack() as held:
        first, second = (
            Host(held.enter_context(host(url, address, pools, prefix=prefix, **more)), address)
            for address, pools in POOLS.items()
        )
        know_each_other(first, second)
        yield first, second


def test_connects_at_two_hosts_go_on_while_sentinels_make_the_replica_the_primary() -> None:
    with ExitStack() as held:
        sentinels = Sentinels(1, held)
        first, second = held.enter_context(two_hosts(sentinels.url, **MORE))
        with under_load(first, second) as newcomers:
            sentinels.redis[0].kill()
            eventually(lambda: not has_redis(first) and not has_redis(second), "both miss it")
            for each in newcomers:
                each.go_on(5)
            eventually(lambda: has_redis(first) and has_redis(second), "both have the other one")
            know_each_other(first, second)
        assert sentinels.command(1, "ROLE")[0] == "master"
        are_exact(first, second)


def test_each_host_serves_its_own_line_while_redis_is_dead_and_runs_take_turns_over_both_once_it_is_back() -> None:
    server = RedisServer()
    with closing(server), two_hosts(server.url, WORKER_SELECT_TIMEOUT="90") as (first, second), ExitStack() as clients:
        here, there = (
            [clients.enter_context(at.session(BOTH)) for _ in range(2 * SLOTS)]  # each has two workers
            for at in (first, second)
        )
        many = [stand_in_line(first, f"{BOTH}&name=many", place, clients) for place in (1, 2)]
        few = [stand_in_line(second, f"{BOTH}&name=few", place, clients) for place in (1, 2)]
        server.kill()
        eventually(lambda: not has_redis(first) and not has_redis(second), "both miss it")
        for leaves, served in ((there[0], few[0]), (here[0], many[0])):
            leaves.close()
            assert raw.is_served(served)
        server.start()
        eventually(lambda: has_redis(first) and has_redis(second), "it is back")
        know_each_other(first, second)
        for leaves, served in ((there[1], many[1]), (here[1], few[1])):  # each at the other host
            leaves.close()
            assert raw.is_served(served)
        assert all(map(raw.goes_on, (*many, *few, *here[2:], *there[2:])))
        clients.close()
        are_exact(first, second)


# Redis Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with closing(RedisCluster()) as cluster:
        yield cluster


def test_two_hosts_on_a_cluster_select_forward_lend_and_wake_and_one_that_dies_is_cleared_away(
    cluster: RedisCluster,
) -> None:
    with two_hosts(cluster.url, PREFIX) as (first, second):
        with full(first), full(first), first.session(BOTH) as forwarded:  # it has two workers
            eventually(lambda: hosts_of_sessions(second).count(second.name) == 1, "it is at the other host")
            lease = first.ask("POST", "/session/borrow", {"labelKey": "Second:Chromium:Y"}).body
            with second.session(lease["webSocketEndpoint"].partition(f":{first.grid.port}")[2]) as by_lease:
                assert all(map(raw.goes_on, (forwarded, by_lease)))
            with full(second) as there, second.session(BOTH), first.waiting(BOTH) as waiting:
                eventually(lambda: first.get("/v1/status")["waiting"] == 1, "all slots are taken")
                there[0].close()
                assert raw.is_served(waiting)
            assert [node.command("DBSIZE") for node in cluster.others] == [0, 0]
            lost = [each["id"] for each in first.live() if each["host"] == second.name]
            second.grid.kill_everything()
            eventually(lambda: all(is_lost(first, each, second) for each in lost), "its sessions are lost")
            assert lost
        know_each_other(first)
        eventually(lambda: first.grid.active() == 0, "its slots are free")
        with first.session(BOTH):
            pass
