"""Private Redis servers for tests: on a Unix socket in a directory of their own, and proven gone afterwards."""

import contextlib
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from pwgrid.registry import embedded_redis_config

READY_S = 20.0
_RETRY_MS = 10


def wait_until_ready(socket_path: Path, deadline: float) -> None:
    """Blocks until the server answers a PING. `deadline` is in seconds of time.monotonic(); past it, raises
    TimeoutError with the last error."""
    reason = "it was not tried"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
                probe.settimeout(left_s)
                probe.connect(str(socket_path))
                probe.sendall(b"PING\r\n")
                answer = probe.recv(64)
            if answer.startswith(b"+PONG"):
                return
            reason = answer.decode(errors="replace").strip() or "it closed the connection"
        except OSError as error:
            reason = str(error)
        select.poll().poll(_RETRY_MS)  # no event tells that another process listens now
    raise TimeoutError(f"the Redis at {socket_path} does not answer: {reason}")


class RedisServer:
    """One server, which can be killed and started again on the same socket, empty."""

    def __init__(self, *extra_arguments: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pwgrid-redis-"))
        self._redis = embedded_redis_config.prepare(self.directory)
        self._extra = extra_arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its URL."""
        return embedded_redis_config.url_of(self.directory)

    @property
    def socket_path(self) -> Path:
        """Its socket."""
        return self._redis.socket_path

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self.socket_path.unlink(missing_ok=True)
        with (self.directory / "output.log").open("ab") as output:
            self._process = subprocess.Popen((*self._redis.argv, *self._extra), stdout=output, stderr=output)
        wait_until_ready(self.socket_path, time.monotonic() + READY_S)

    def signal(self, number: int) -> None:
        """Sends it a signal (SIGSTOP, SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits for its end. All data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """SIGTERM, and waits for its end. All data is lost: it is not told to save any."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def client(self) -> Redis:
        """A new client; the caller closes it."""
        return Redis.from_url(self.url, decode_responses=True, socket_timeout=READY_S)

    def command(self, *arguments: str | int | float) -> Any:
        """One command on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*arguments)

    @contextlib.contextmanager
    def listening(self, channel: str) -> Iterator[Callable[[], list[str]]]:
        """Gives a function that returns what was published on the channel since its last call."""
        with self.client() as client, client.pubsub() as pubsub:
            pubsub.subscribe(channel)
            messages = (message["data"] for message in pubsub.listen())
            next(messages)  # the subscription stands

            def heard() -> list[str]:
                client.publish(channel, "that is all")
                return list(iter(lambda: next(messages), "that is all"))

            yield heard

    def close(self) -> None:
        """Ends it and proves that nothing is left of it."""
        process = self._process
        if process is not None:
            process.kill()  # a SIGTERM it would hear within a second, as it looks once in that time (hz 1)
            process.wait()
            self._process = None
            assert not psutil.pid_exists(process.pid)
        shutil.rmtree(self.directory)
        assert not self.directory.exists()


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """One server for all tests that only need it to be empty (`redis` empties it)."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """An empty Redis. Do not kill this one."""
    shared_redis.command("FLUSHALL")
    shared_redis.command("SCRIPT", "FLUSH")
    return shared_redis


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may kill."""
    server = RedisServer()
    yield server
    server.close()
