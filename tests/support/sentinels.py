"""Real Redis Sentinels for tests, with a Redis and its replica."""

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from pwgrid.registry.embedded_redis_config import find_redis_server
from tests.support.grid import eventually, free_port
from tests.support.redis import RedisServer

PASSWORD = "p@ss:word/,?#"
QUOTED = "p%40ss%3Aword%2F%2C%3F%23"


class Sentinels:
    """A Redis, its replica, and sentinels that watch both; all with passwords."""

    def __init__(self, count: int, held: ExitStack) -> None:
        self._directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pwgrid-sentinel-")))
        self.redis_ports = [free_port(), free_port()]
        self.redis = []
        for port in self.redis_ports:
            self.redis.append(RedisServer("--port", str(port), "--bind", "127.0.0.1"))
            held.callback(self.redis[-1].close)
            self.redis[-1].command("CONFIG", "SET", "masterauth", PASSWORD)
            self.redis[-1].command("CONFIG", "SET", "requirepass", PASSWORD)
        self.command(1, "REPLICAOF", "127.0.0.1", self.redis_ports[0])
        ports = [free_port() for _ in range(count)]
        self.processes = [self._start(port, held) for port in ports]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"redis+sentinel://:{QUOTED}@{hosts}/main/0?sentinel_password=watch"
        eventually(lambda: all(_replicas(port) == 1 for port in ports), "the sentinels know the replica")

    def command(self, which: int, *arguments: str | int) -> Any:
        """On one of the two, whatever the sentinels say."""
        url = f"redis://:{QUOTED}@127.0.0.1:{self.redis_ports[which]}"
        with Redis.from_url(url, decode_responses=True) as client:
            return client.execute_command(*arguments)

    def _start(self, port: int, held: ExitStack) -> "subprocess.Popen[bytes]":
        path = self._directory / f"{port}.conf"
        path.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._directory}\nrequirepass watch\n"
            f'sentinel monitor main 127.0.0.1 {self.redis_ports[0]} 1\nsentinel auth-pass main "{PASSWORD}"\n'
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        process = subprocess.Popen([find_redis_server(), path, "--sentinel"], stdout=subprocess.DEVNULL)
        held.callback(process.wait)
        held.callback(process.kill)
        return process


def _replicas(port: int) -> int:
    """How many replicas in good order that sentinel knows."""
    try:
        with Redis(port=port, password="watch", decode_responses=True) as client:
            return len([each for each in client.sentinel_slaves("main") if each["master-link-status"] == "ok"])
    except RedisError:
        return 0  # it has not started yet
