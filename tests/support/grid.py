"""Real grids for tests: started as a user would, asked as an operator would, and proven gone afterwards."""

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from redis import Redis, RedisError

from pwgrid.cli import ask_grid
from pwgrid.cli.ask_grid import ask
from pwgrid.cli.status import status_text
from pwgrid.common.errors import GridError
from pwgrid.common.redis_url import is_cluster, is_sentinel
from pwgrid.registry.embedded_redis_config import url_of
from pwgrid.registry.open_redis import open_blocking
from pwgrid.runtime.display_sockets import remove_sockets
from pwgrid.runtime.find_grids import RunningGrid

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60
REDIS_TIMEOUT_S = 20
NEVER = "1000000000"
"""Sessions until a worker is recycled, where a recycle is not what is tested or measured."""
WITHOUT_SPARES = {"MAX_LIFETIME_SESSIONS": NEVER}
"""Settings of a grid whose workers a test counts or tells apart: else the pool has spares where browsers start slowly,
so when the machine is busy."""
DEFAULTS: dict[str, str] = {}
"""Settings of each grid here of which its test says nothing else. Empty for benches, which measure what users have."""
LAST_LINES = 100


class Described(Protocol):
    """Something whose state explains why a test failed."""

    def description(self) -> str:
        """Its state now, for a reader."""
        ...


RUNNING: list[Described] = []
"""What runs now, the oldest first; the report of a test that fails shows it (tests/conftest.py)."""


class Grid:
    """One running grid with a private temporary directory. Every process of it carries a mark in its environment."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        fake: bool = False,
        prefix: str = "",
        stdin: int = subprocess.DEVNULL,
        under: tuple[str, ...] = (),
    ) -> None:
        self.prefix = prefix
        self.stdin = stdin
        self.temporary = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.mark = str(self.temporary)  # TMPDIR of every process of this grid
        self.environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PWGRID", "PW_TEST", "OTEL_"))
            },
            **DEFAULTS,
            "TMPDIR": str(self.temporary),
            **(environment or {}),
        }
        self.arguments = arguments
        # `under` is a command that becomes the grid: prlimit, setpriv.
        self.program = (*under, sys.executable, "-m", "tests.support.fake_grid" if fake else "pwgrid")
        self.log = (self.temporary / "grid.log").open("w+b")
        self._start(arguments)
        RUNNING.append(self)

    def start_again(self, *arguments: str) -> None:
        """Another master on the same port and in the same place; returns when the grid is ready."""
        self._start((*self.arguments, "--port", str(self.port), *arguments))

    def kill_master(self) -> None:
        """SIGKILL to the master alone."""
        self.process.kill()
        self.process.wait()

    def _start(self, arguments: tuple[str, ...]) -> None:
        ready_in, ready_out = os.pipe()
        self.process = subprocess.Popen(
            [*self.program, "serve", "--port", "0", *arguments, "--ready-fd", str(ready_out)],
            cwd=ROOT,
            env=self.environment,
            stdin=self.stdin,
            stdout=self.log,
            stderr=self.log,
            pass_fds=(ready_out,),
        )
        os.close(ready_out)
        with os.fdopen(ready_in) as ready:
            readable, _, _ = select.select([ready], [], [], START_TIMEOUT_S)
            line = ready.readline() if readable else ""
        if not line:
            self.kill_everything()
            raise AssertionError(f"the grid did not start:\n{self.output()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.endpoint: str = self.ready["endpoint"]
        self.http: str = self.ready["http"]
        self.port = int(self.http.rsplit(":", 1)[1])

    def output(self) -> str:
        """What the grid has printed so far."""
        return (self.temporary / "grid.log").read_text(errors="replace")

    def description(self) -> str:
        """The grid as its master, Redis and the kernel know it, and the end of its log."""
        parts = {
            "the master says": lambda: status_text(self.ask("status")),
            "Redis says": self._in_redis,
            "its processes": lambda: "\n".join(f"{pid} {command}" for pid, command in self.processes().items()),
            "its log ends with": lambda: last_lines(self.output()),
        }
        return described(f"the grid on port {self.port}", parts)

    def _in_redis(self) -> str:
        lines = []
        keys = [f"{self.prefix}cluster:{name}_connections" for name in ("active", "lifetime")]
        for key in [*keys, *sorted(key.decode() for key in self.redis("KEYS", f"{self.prefix}worker:*:*"))]:
            fields = self.redis("HGETALL", key).items()
            lines.append(" ".join([key, *sorted(f"{name.decode()}={value.decode()}" for name, value in fields)]))
        return "\n".join(lines)

    def command(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`pwgrid ARGUMENTS` in the grid's environment."""
        return subprocess.run(
            [sys.executable, "-m", "pwgrid", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def starts(self, *arguments: str) -> subprocess.Popen[str]:
        """`pwgrid ARGUMENTS` in the grid's environment, while the test goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "pwgrid", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        """What `pwgrid status --json` shows of a grid that is healthy or not, without a process of its own for it."""
        base = str(self.runtime.parent)
        return once_answered(lambda: ask_grid.status(ask_grid.find_grid(self.port, base)))

    def ask(self, name: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to the master, without a process of its own for it."""
        return ask(RunningGrid(self.runtime, self.port, self.process.pid, self.endpoint), name, data)

    def redis(self, *arguments: str | int) -> Any:
        """One command on the grid's own Redis; behind sentinels or of a cluster, on the one that it uses now."""
        url = self.redis_url
        if is_sentinel(url) or is_cluster(url):
            client = open_blocking(url, timeout_s=REDIS_TIMEOUT_S, prefix=self.prefix)
            client.connection_pool.connection_kwargs["decode_responses"] = False
        else:
            client = Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S)
        with client:
            return client.execute_command(*arguments)

    @property
    def redis_url(self) -> str:
        """Of the embedded Redis, or the one that the environment names."""
        return self.environment.get("REDIS_URL") or url_of(self.runtime / "redis")

    @property
    def runtime(self) -> Path:
        """The runtime directory."""
        base = self.environment.get("PWGRID_RUNTIME_DIR")
        return Path(base) / str(self.port) if base else next(self.temporary.glob(f"pwgrid-*/{self.port}"))

    def active(self) -> int:
        """Live sessions by Redis' own counters."""
        flat = self.redis("HVALS", f"{self.prefix}cluster:active_connections")
        return sum(int(value) for value in flat)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """An HTTP GET: status, headers, body."""
        request = urllib.request.Request(self.http + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def processes(self) -> dict[int, str]:
        """Every live process of this grid, found by its mark: pid and command line."""
        base = self.environment.get("PWGRID_RUNTIME_DIR")
        return processes_marked(self.mark) | (processes_marked(base) if base else {})

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ends the grid and proves that nothing is left of it."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            left = self.processes()
            self.kill_everything()
            raise AssertionError(f"the grid did not stop; alive: {left}\n{self.output()}") from None
        self.prove_gone()
        return code

    def prove_gone(self) -> None:
        """No process, no file, no socket of the grid is left. A second time there is nothing to look at."""
        if self.log.closed:
            return
        left = self.processes()
        files = [str(path) for path in self.temporary.rglob("*") if path.name != "grid.log"]
        output = self.output()
        self.kill_everything()
        assert not left, f"processes left: {left}\n{output}"
        assert not files, f"files left: {files}\n{output}"

    def kill_everything(self) -> None:
        """SIGKILL to all that carries this grid's mark, and its temporary directory away."""
        if self in RUNNING:
            RUNNING.remove(self)
        # The master first, or it restarts what is killed.
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not self.log.closed:
            self.log.close()
        for displays in self.temporary.glob("pwgrid-*/*/w/*/displays"):
            remove_sockets(displays)
        if "ready" in self.__dict__:
            shutil.rmtree(self.temporary, ignore_errors=True)


def processes_marked(mark: str) -> dict[int, str]:
    """Live processes (no zombies) with `mark` in their environment or command line.

    Read by hand: psutil stops at an environment's first empty entry, and the grid, which is to be proved, uses psutil.
    """
    needle = mark.encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            # Redis overwrites its environment when it sets its title, but that names its socket.
            if command and (needle in command or needle in (entry / "environ").read_bytes()):
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def status_of(directory: Path, port: int, endpoint: str) -> dict[str, Any]:
    """The status of a grid that something else supervises, without a process for the question."""
    return once_answered(lambda: ask(RunningGrid(directory, port, 0, endpoint), "status"))


def once_answered(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Waits for an answer: a master that was just started, or starts again as new code, has not always one yet, and
    nobody can tell that from a grid without workers."""
    refused: Exception | None = None

    def answer() -> dict[str, Any] | None:
        nonlocal refused
        try:
            return question()
        except (GridError, FileNotFoundError) as error:
            refused = error
            return None

    try:
        found: dict[str, Any] = eventually(answer, "the master answers")
    except AssertionError as error:
        raise AssertionError(f"{error}; the last answer: {refused!r}") from None
    return found


def last_lines(text: str) -> str:
    """The end of a log."""
    return "\n".join(text.splitlines()[-LAST_LINES:])


def described(what: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """A description of several parts. The grid of a test that failed may be dead or frozen: then it says why a part is
    missing."""
    lines = [what]
    for name, part in parts.items():
        lines.append(f"-- {name}")
        try:
            lines.append(part())
        except (GridError, RedisError, OSError, AssertionError, LookupError, StopIteration) as error:
            lines.append(f"no answer: {error!r}")
    return "\n".join(lines)


@contextlib.contextmanager
def running_grid(
    *arguments: str,
    environment: dict[str, str] | None = None,
    fake: bool = False,
    prefix: str = "",
    stdin: int = subprocess.DEVNULL,
    under: tuple[str, ...] = (),
) -> Iterator[Grid]:
    """A grid for the length of the block; afterwards its counters are zero and nothing of it is left."""
    grid = Grid(*arguments, environment=environment, fake=fake, prefix=prefix, stdin=stdin, under=under)
    try:
        yield grid
        if grid.process.poll() is None:
            eventually(lambda: grid.active() == 0, "all slots are free")
    except BaseException:
        sys.stderr.write(grid.description())  # a test's report shows it; afterwards there is nothing to ask
        grid.kill_everything()
        raise
    grid.stop()


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    """Waits for a state of another process that announces itself to nobody here; the timeout only bounds a failure."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)
    return value


def wait_for_end(pid: int, timeout_s: float = 60) -> None:
    """Returns once this process, which need not be a child, has ended. Raises ProcessLookupError if there is none."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], timeout_s)[0]:
            raise AssertionError(f"not within {timeout_s} s: process {pid} has ended")
    finally:
        os.close(pidfd)


def kill_and_await_successor(grid: Grid, pid: int) -> None:
    """Kills this process of the grid, and returns when others have taken its place, so that the next one may be
    killed."""
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)

    def is_whole() -> bool:
        status = grid.ask("status")
        pids = [status["proxy"]["pid"], *(status[name]["pid"] for name in ("tls", "forwarder") if status.get(name))]
        is_all = all(pool["available"] >= pool["wanted"] for pool in status["pools"])
        is_gone = pid not in (*pids, *(worker["pid"] for worker in status["workers"]))
        return bool(status["ready"]) and is_all and is_gone and None not in pids

    eventually(is_whole, f"{pid} has a successor")


async def eventually_async(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    """`eventually` beside a running event loop."""
    return await asyncio.to_thread(eventually, condition, what, timeout_s)


def free_port() -> int:
    """A TCP port that is free now, and that the kernel gives to nobody who does not ask for it by its number."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_given // 2, first_given)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


__all__ = [
    "NEVER",
    "RUNNING",
    "WITHOUT_SPARES",
    "Grid",
    "described",
    "eventually",
    "eventually_async",
    "free_port",
    "last_lines",
    "once_answered",
    "processes_marked",
    "running_grid",
    "status_of",
    "wait_for_end",
]
