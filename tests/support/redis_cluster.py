"""Real Redis Clusters for tests: three primaries, and a replica of the one that has the keys of a grid."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from pwgrid.registry.embedded_redis_config import find_redis_server
from tests.support.grid import eventually, free_port

PREFIX = "{pwgrid}:"
SLOT = key_slot(PREFIX.encode())
_BUS = 10_000  # the port of the nodes among themselves lies that far above a node's own
_NODE_TIMEOUT_MS = 500


class RedisNode:
    """One redis-server in cluster mode."""

    def __init__(self, directory: Path) -> None:
        self.port = _port_of_node()
        self._place = directory / str(self.port)
        self._place.mkdir()
        self.start()
        self.id: str = self.command("CLUSTER", "MYID")

    def start(self) -> None:
        """Starts it, empty, as what its cluster knows it as, and waits until it answers."""
        place = str(self._place)
        self.process = subprocess.Popen(
            [
                *(find_redis_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", place, "--save", ""),
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT_MS)),
                *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync", "yes"),
                *("--repl-diskless-sync-delay", "0"),
            ],
            stdout=subprocess.DEVNULL,
        )
        eventually(self._answers, f"the node on port {self.port} answers")

    def command(self, *arguments: str | int) -> Any:
        """One command on this very node."""
        with Redis(port=self.port, decode_responses=True) as client:
            return client.execute_command(*arguments)

    def is_up(self) -> bool:
        """Whether all slots are served, as far as this node knows."""
        return "cluster_state:ok" in self.command("CLUSTER", "INFO")

    def words(self, node: "RedisNode") -> list[str]:
        """What this node knows of that one: the words of its line of CLUSTER NODES; none if it does not know it."""
        lines = self.command("CLUSTER", "NODES").splitlines()
        return next((line.split(" ") for line in lines if line.startswith(node.id)), [])

    def kill(self) -> None:
        """SIGKILL, and waits for its end. Idempotent."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(RedisError):
            return bool(self.command("PING"))
        return False


class RedisCluster:
    """`primary` has the keys of a grid, `replica` is its replica, `others` are primaries without a replica."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pwgrid-cluster-"))
        self._all: list[RedisNode] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for _ in range(4):
            self._all.append(RedisNode(self.directory))
        self.primary, *self.others, self.replica = self._all
        for number, node in enumerate((self.primary, *self.others)):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            # A third each, in one piece: one that gave its last one away would become a replica.
            first, last = (REDIS_CLUSTER_HASH_SLOTS * each // 3 for each in (number, number + 1))
            slots = [(SLOT + slot) % REDIS_CLUSTER_HASH_SLOTS for slot in range(first, last)]
            node.command("CLUSTER", "ADDSLOTS", *slots)
        for node in self._all[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", self.primary.port)
        eventually(lambda: all(each.words(node) for each in self._all for node in self._all), "all know each other")
        self.replica.command("CLUSTER", "REPLICATE", self.primary.id)
        eventually(lambda: all(each.is_up() for each in self._all), "the cluster is up")
        eventually(self._has_replica, "the replica is one")

    @property
    def url(self) -> str:
        """Names those that were the primaries at first."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self._all[:3])

    def fail_over(self) -> None:
        """Has the replica take over, as an operator does."""
        self.replica.command("CLUSTER", "FAILOVER")
        self.replica_takes_over()

    def replica_takes_over(self) -> None:
        """Waits for that."""
        eventually(lambda: self.replica.command("ROLE")[0] == "master", "the replica takes over")
        self.primary, self.replica = self.replica, self.primary

    def start_again(self) -> None:
        """Starts the node that was killed; returns when it is the replica."""
        self.replica.start()
        eventually(self._has_replica, "it comes back as a replica")

    @contextlib.contextmanager
    def moving_slot(self, to: RedisNode) -> Iterator[None]:
        """The keys of a grid are on their way within the block, some here, some there, and have arrived after it."""
        whence = self.primary
        to.command("CLUSTER", "SETSLOT", SLOT, "IMPORTING", whence.id)
        whence.command("CLUSTER", "SETSLOT", SLOT, "MIGRATING", to.id)
        keys = whence.command("CLUSTER", "GETKEYSINSLOT", SLOT, 1_000_000)
        self._move(keys[::2], whence, to)
        yield
        while keys := whence.command("CLUSTER", "GETKEYSINSLOT", SLOT, 1_000_000):
            self._move(keys, whence, to)
        for node in (to, whence):
            node.command("CLUSTER", "SETSLOT", SLOT, "NODE", to.id)
        self.primary = to

    def _move(self, keys: list[str], whence: RedisNode, to: RedisNode) -> None:
        whence.command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)

    def close(self) -> None:
        """Ends all nodes, and proves that nothing is left of them."""
        for node in self._all:
            node.kill()
            assert node.process.poll() is not None
        shutil.rmtree(self.directory)
        assert not self.directory.exists()

    def _has_replica(self) -> bool:
        link = self.replica.command("INFO", "replication").get("master_link_status")
        return link == "up" and all("slave" in node.words(self.replica)[2].split(",") for node in self._all)


def _port_of_node() -> int:
    """A free port whose bus is free, too."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port + _BUS))
            return port
