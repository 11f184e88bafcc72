"""A Redis Cluster: which node has the keys of a grid, what is said of a cluster that is not as it should be, and that
connections follow the keys."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest
from redis.exceptions import ClusterDownError, TryAgainError

from pwgrid.common.redis_faults import FaultKind
from pwgrid.registry.blocking_reads import snapshot
from pwgrid.registry.cluster_primary import Address, Answer, find_primary
from pwgrid.registry.fault_of import fault_of
from pwgrid.registry.open_redis import redis_cli_arguments
from pwgrid.registry.redis_client import RedisClient
from pwgrid.registry.registry import Registry
from pwgrid.registry.rights import acl_line
from pwgrid.registry.try_redis import try_redis
from pwgrid.settings.model import Settings
from tests.support.grid import free_port
from tests.support.redis import RedisServer
from tests.support.redis_cluster import PREFIX, SLOT, RedisCluster

BOUND_S = 20.0
A, B, C = ("a", 1), ("b", 2), ("c", 3)


# Which node it is


def view(
    me: str, owner: str | None, epoch: int = 1, more: str = "", host: str | None = "", state: str = "ok"
) -> Answer:
    """What the node called `me` answers, when it takes `owner` for the primary of the slot. Names are hosts, too."""
    ports = {"a": 1, "b": 2, "c": 3}
    lines = [
        f"{name} {name}:{port}@{port} {'myself,master' if name == me else 'master'} - 0 0"
        f" {epoch if name == owner else 0} connected 0-16383{more if name == me else ''}"
        for name, port in ports.items()
    ]
    slots = [] if owner is None else [[SLOT, SLOT, [owner if host == "" else host, ports[owner], owner], ["c", 3, "c"]]]
    return [[[0, SLOT - 1, ["c", 3, "c"]], *slots], "\n".join(lines) + "\n", f"cluster_state:{state}\r\n"]


def found(
    answers: dict[Address, Answer | Exception], named: tuple[Address, ...] = (A, B)
) -> tuple[Address, list[Address]]:
    """The primary, and who was asked."""
    search, asked = find_primary(named, PREFIX), []
    nodes = next(search)
    while True:
        asked += nodes
        try:
            nodes = search.send([answers[node] for node in nodes])
        except StopIteration as end:
            return end.value, asked


def test_the_primary_of_the_slot_is_what_the_nodes_say() -> None:
    assert found({A: view("a", "b"), B: view("b", "b")}) == (B, [A, B])


def test_of_two_views_the_one_with_the_later_epoch_is_true() -> None:
    """A node that is cut off, or has just come back, still takes itself for the primary."""
    for named in ((A, B), (B, A)):
        assert found({A: view("a", "a", 3), B: view("b", "b", 4)}, named)[0] == B
        assert found({A: view("a", "a", 5), B: view("b", "b", 4)}, named)[0] == A


def test_nodes_that_do_not_answer_are_passed_over() -> None:
    assert found({A: ConnectionRefusedError(), B: view("b", "b")}) == (B, [A, B])
    assert found({A: view("a", "a"), B: ConnectionRefusedError()}) == (A, [A, B])
    with pytest.raises(TimeoutError):
        found({A: ConnectionRefusedError(), B: TimeoutError()})


def test_a_primary_that_the_url_does_not_name_is_asked_itself() -> None:
    assert found({A: view("a", "c"), B: view("b", "c"), C: view("c", "c")}) == (C, [A, B, C])
    with pytest.raises(ConnectionRefusedError):
        found({A: view("a", "c"), B: view("b", "c"), C: ConnectionRefusedError()})


def test_a_node_that_knows_no_address_of_itself_is_where_it_was_asked() -> None:
    assert found({A: view("a", "a", host=None)}, (A,)) == (A, [A])


@pytest.mark.parametrize("named", [(A,), (B,)])
def test_while_the_slot_moves_there_is_no_primary(named: tuple[Address, ...]) -> None:
    answers: dict[Address, Answer | Exception] = {A: view("a", "a", more=f" [{SLOT}->-b]"), B: view("b", "a")}
    with pytest.raises(TryAgainError, match=f"slot {SLOT} is on its way from a:1") as raised:
        found(answers, named)
    assert fault_of(raised.value).kind is FaultKind.CLUSTER_MOVES
    assert found({A: view("a", "a", more=f" [{SLOT + 1}->-b] [{SLOT}-<-b]")}, (A,))[0] == A


def test_a_slot_without_a_node_is_a_cluster_that_is_down() -> None:
    without: dict[Address, Answer | Exception] = {A: view("a", None), B: ConnectionRefusedError()}
    serving_nobody: dict[Address, Answer | Exception] = {A: view("a", "b"), B: view("b", "b", state="fail")}
    for answers in (without, serving_nobody):
        with pytest.raises(ClusterDownError) as raised:
            found(answers)
        assert fault_of(raised.value).kind is FaultKind.CLUSTER_DOWN
    # Who is cut off says nothing of who is not.
    assert found({A: view("a", "b", state="fail"), B: view("b", "b")})[0] == B


# Real ones


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with closing(RedisCluster()) as cluster:
        yield cluster


def listeners(cluster: RedisCluster) -> list[int]:
    """How many subscriptions each node has."""
    nodes = (cluster.primary, *cluster.others)
    return [len(node.command("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) for node in nodes]


async def test_the_registry_and_its_subscriptions_follow_the_keys(cluster: RedisCluster) -> None:
    first, settings = cluster.primary, Settings(redis_timeout=3.0, redis_key_prefix=PREFIX)
    registry = Registry(cluster.url, settings)
    woken: asyncio.Queue[object] = asyncio.Queue()
    registry.subscribe_slots(woken.put_nowait)
    async with asyncio.timeout(BOUND_S):
        assert [await woken.get(), await woken.get()] == [None, None]
        assert await registry.client.call("SET", f"{PREFIX}a", 1) == "OK"
        assert await registry.reap() is not None
        assert await asyncio.to_thread(listeners, cluster) == [1, 0, 0]
        # A PUBLISH on any node reaches all.
        assert await asyncio.to_thread(cluster.others[1].command, "PUBLISH", f"{PREFIX}slots:p", "free") == 0
        assert await woken.get() == "p"

        with cluster.moving_slot(cluster.others[0]):
            pass
        with pytest.raises(Exception, match="moving the grid's keys"):
            await registry.client.call("SET", f"{PREFIX}a", 2)
        await registry.client.wait_connected()
        assert [await woken.get(), await woken.get()] == [None, None]
        assert await registry.client.call("GET", f"{PREFIX}a") == "1"
        assert await registry.reap() is not None
    assert [first.command("CLIENT", "LIST", "TYPE", "pubsub"), cluster.primary.command("GET", f"{PREFIX}a")] == [
        "",
        "1",
    ]
    assert snapshot(cluster.url, PREFIX).workers == {}
    arguments, _ = redis_cli_arguments(cluster.url, timeout_s=3, prefix=PREFIX)
    assert arguments == ["-h", "127.0.0.1", "-p", str(cluster.primary.port), "-c"]
    await registry.close()
    cluster.others[0] = first


async def test_a_node_that_is_frozen_is_passed_over(cluster: RedisCluster) -> None:
    frozen = cluster.others[1]
    for node in (cluster.primary, *cluster.others):
        node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        client = RedisClient(cluster.url, timeout_s=3.0, prefix=PREFIX)
        assert await client.call("PING") == "PONG"
        await client.close()
        assert (await asyncio.to_thread(snapshot, cluster.url, PREFIX)).workers == {}
    finally:
        frozen.process.send_signal(signal.SIGCONT)


async def test_a_user_of_the_acl_line_has_all_rights_on_a_cluster(cluster: RedisCluster) -> None:
    url = cluster.url.replace("://", "://grid:PASSWORD@")
    for node in (cluster.primary, *cluster.others):
        node.command(*acl_line("grid", PREFIX))
    lacking = await try_redis(url, timeout_s=BOUND_S, prefix=PREFIX)
    assert lacking.fault is not None
    assert (lacking.fault.kind, "cluster" in lacking.fault.said) == (FaultKind.RIGHTS, True)
    for node in (cluster.primary, *cluster.others):
        node.command(*acl_line("grid", PREFIX, of_cluster=True))
    assert (await try_redis(url, timeout_s=BOUND_S, prefix=PREFIX)).fault is None


async def test_what_is_no_cluster_and_a_node_without_the_keys_are_called_so(
    cluster: RedisCluster,
) -> None:
    node = f"redis://127.0.0.1:{cluster.others[1].port}"
    tried = await try_redis(node, timeout_s=BOUND_S, prefix=PREFIX)
    assert tried.fault is not None
    assert (tried.fault.kind, "redis+cluster://" in tried.fault.to_do) == (FaultKind.OTHER_NODE, True)
    port = free_port()
    with closing(RedisServer("--port", str(port), "--bind", "127.0.0.1")):
        tried = await try_redis(f"redis+cluster://127.0.0.1:{port}", timeout_s=BOUND_S, prefix=PREFIX)
    assert tried.fault is not None
    assert tried.fault.kind is FaultKind.NO_CLUSTER
