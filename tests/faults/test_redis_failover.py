"""Another Redis takes over while clients connect all the time: behind Sentinel, and in a Redis Cluster, of which a node
dies or gives the grid's keys to another. Nobody is refused, no session is lost, and the counters are exact afterwards.

The fake browser server stands in for Playwright: nothing here depends on what a browser does.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from redis.exceptions import RedisError

from pwgrid.settings.load import load
from pwgrid.setup.doctor_checks import _redis as doctor_of_redis
from tests.support.grid import WITHOUT_SPARES, Grid, eventually, running_grid
from tests.support.kill_table_row import workers
from tests.support.newcomers import Newcomers
from tests.support.raw import goes_on, session
from tests.support.redis_cluster import PREFIX, RedisCluster
from tests.support.sentinels import Sentinels

SESSIONS = 5
SETTINGS = {
    **WITHOUT_SPARES,
    "HEARTBEAT_INTERVAL": "1",
    "DRAIN_TIMEOUT": "120",  # none of the live sessions is to be cut
    "WORKER_SELECT_TIMEOUT": "30",
}


def _comes(port: int) -> None:
    with session(port) as sock:
        assert goes_on(sock)


@contextlib.contextmanager
def under_load(grid: Grid) -> Iterator[Newcomers]:
    """Live sessions and newcomers, until the block ends; then the counters are exact."""
    newcomers = Newcomers(partial(_comes, grid.port))
    with ExitStack() as live:
        socks = [live.enter_context(session(grid.port)) for _ in range(SESSIONS)]
        with newcomers.at_the_door():
            newcomers.go_on(10)
            yield newcomers
            newcomers.go_on(10)
        assert all(goes_on(sock) for sock in socks)
        eventually(lambda: said(grid.active) == SESSIONS, "the live sessions count")
    assert newcomers.refused == []
    eventually(lambda: said(lambda: what_redis_says(grid)) == what_is(grid), "the counters are exact", 20)


def said(read: Callable[[], Any]) -> Any:
    """What Redis says; None while nobody names it: on a busy machine a sentinel may take it for dead again."""
    try:
        return read()
    except RedisError:
        return None


def pairs(grid: Grid, key: str) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in grid.redis("HGETALL", grid.prefix + key).items()}


def what_redis_says(grid: Grid) -> dict[str, Any]:
    return {
        "active": pairs(grid, "cluster:active_connections"),
        "lifetime": pairs(grid, "cluster:lifetime_connections"),
        "live": grid.redis("KEYS", f"{grid.prefix}*s:live:*"),
        "unwritten": list(grid.runtime.glob("unwritten/*")),
    }


def what_is(grid: Grid) -> dict[str, Any]:
    lifetimes = {f"chromium:{name}": worker["lifetime"] for name, worker in workers(grid).items()}
    return {"active": dict.fromkeys(lifetimes, 0), "lifetime": lifetimes, "live": [], "unwritten": []}


def is_good(grid: Grid) -> bool:
    """Whether the grid has its Redis."""
    status, _, body = grid.get("/health/ready")
    return (status, json.loads(body)) == (200, {"status": "ready"})


def test_sentinels_make_the_replica_the_primary_of_one_that_is_killed() -> None:
    with ExitStack() as held:
        sentinels = Sentinels(1, held)
        with running_grid("--chromium", "2", environment={**SETTINGS, "REDIS_URL": sentinels.url}, fake=True) as grid:
            with under_load(grid) as newcomers:
                sentinels.redis[0].kill()
                eventually(lambda: not is_good(grid), "the grid misses it")
                newcomers.go_on(10)
                eventually(lambda: is_good(grid), "the grid has the other one")
            assert sentinels.command(1, "ROLE")[0] == "master"


# Redis Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with closing(RedisCluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def grid(cluster: RedisCluster) -> Iterator[Grid]:
    environment = {**SETTINGS, "REDIS_URL": cluster.url, "REDIS_KEY_PREFIX": PREFIX}
    with running_grid("--chromium", "2", environment=environment, fake=True, prefix=PREFIX) as grid:
        yield grid


def test_a_grid_on_a_cluster_keeps_all_on_one_node_and_is_operated_as_any_other(
    grid: Grid, cluster: RedisCluster
) -> None:
    with session(grid.port):
        eventually(lambda: grid.active() == 1, "it counts")
        assert [node.command("DBSIZE") for node in cluster.others] == [0, 0]
    assert grid.command("status").returncode == 0
    finding = doctor_of_redis(load(None, grid.environment, {}))
    assert finding.level == "good", finding.found
    (_, victim) = workers(grid)
    key = f"{PREFIX}worker:cmd:chromium:{victim}"
    assert grid.command("redis-cli", "SET", key, "shutdown", "EX", "60").stdout.strip() == "OK"
    assert grid.command("redis-cli", "PUBLISH", key, "shutdown").returncode == 0
    eventually(lambda: victim not in workers(grid) and len(workers(grid)) == 2, "it is replaced")
    assert grid.command("redis-cli", "SET", "of another slot", "1").stdout.strip() == "OK"


def test_a_replica_takes_over_by_an_operator_s_command(grid: Grid, cluster: RedisCluster) -> None:
    with under_load(grid) as newcomers:
        cluster.fail_over()
        newcomers.go_on(10)
        eventually(lambda: is_good(grid), "the grid has the other one")


def test_a_replica_takes_over_from_a_node_that_is_killed(grid: Grid, cluster: RedisCluster) -> None:
    with under_load(grid) as newcomers:
        cluster.primary.kill()
        eventually(lambda: not is_good(grid), "the grid misses it")
        newcomers.go_on(10)
        cluster.replica_takes_over()
        eventually(lambda: is_good(grid), "the grid has the other one")
    cluster.start_again()


def test_the_slot_of_the_keys_moves_to_another_node(grid: Grid, cluster: RedisCluster) -> None:
    first = cluster.primary
    with under_load(grid) as newcomers:
        with cluster.moving_slot(cluster.others[0]):
            eventually(lambda: not is_good(grid), "the grid goes on without it meanwhile")
            assert "moving the grid's keys" in grid.get("/health/ready")[2].decode()
            newcomers.go_on(10)
        eventually(lambda: is_good(grid), "the grid has the other one")
    with cluster.moving_slot(first):
        pass
