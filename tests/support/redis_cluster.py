"""Real Redis Clusters for tests: three primaries, and a replica of the one that has the keys of a grid."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from redis import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from pwgrid.registry.embedded_redis import find_redis_server
from tests.support.grid import eventually, free_port

PREFIX = "{pwgrid}:"
SLOT = key_slot(PREFIX.encode())
_BUS = 10_000  # the port of the nodes among themselves lies that far above a node's own
_NODE_TIMEOUT_MS = 500


class RedisNode:
    """One redis-server in cluster mode."""

    def __init__(self, directory: Path) -> None:
        self.port = _port_of_node()
        place = directory / str(self.port)
        place.mkdir()
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
        self.id: str = self.command("CLUSTER", "MYID")

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
    """`nodes` are the primaries, of which `nodes[0]` has the keys of a grid; `replica` is its replica."""

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
        *self.nodes, self.replica = self._all
        others = [slot for slot in range(REDIS_CLUSTER_HASH_SLOTS) if slot != SLOT]
        for epoch, (node, slots) in enumerate(zip(self.nodes, ([SLOT], others[::2], others[1::2]), strict=True), 1):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            node.command("CLUSTER", "ADDSLOTS", *slots)
        for node in self._all[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        eventually(lambda: all(each.words(node) for each in self._all for node in self._all), "all know each other")
        self.replica.command("CLUSTER", "REPLICATE", self.nodes[0].id)
        eventually(lambda: all(each.is_up() for each in self._all), "the cluster is up")
        eventually(self._replica_is_known, "the replica is one")

    @property
    def url(self) -> str:
        """Names the primaries."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def begin_to_move_slot(self, to: RedisNode) -> None:
        """From now on the keys of a grid are on their way from `nodes[0]`."""
        to.command("CLUSTER", "SETSLOT", SLOT, "IMPORTING", self.nodes[0].id)
        self.nodes[0].command("CLUSTER", "SETSLOT", SLOT, "MIGRATING", to.id)

    def move_keys(self, to: RedisNode, most: int = 1_000_000) -> int:
        """Moves up to so many keys of the slot, one by one; returns how many these were."""
        moved = 0
        while moved < most and (keys := self.nodes[0].command("CLUSTER", "GETKEYSINSLOT", SLOT, 1)):
            self.nodes[0].command("MIGRATE", "127.0.0.1", to.port, keys[0], 0, 5000)
            moved += 1
        return moved

    def finish_move(self, to: RedisNode) -> None:
        """The slot is `to`'s."""
        for node in (to, *self.nodes):
            node.command("CLUSTER", "SETSLOT", SLOT, "NODE", to.id)

    def close(self) -> None:
        """Ends all nodes, and proves that nothing is left of them."""
        for node in self._all:
            node.kill()
            assert node.process.poll() is not None
        shutil.rmtree(self.directory)
        assert not self.directory.exists()

    def _replica_is_known(self) -> bool:
        replication = self.replica.command("INFO", "replication")
        return replication["master_link_status"] == "up" and all(
            "slave" in node.words(self.replica)[2].split(",") for node in self.nodes
        )


def _port_of_node() -> int:
    """A free port whose bus is free, too."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port + _BUS))
            return port
