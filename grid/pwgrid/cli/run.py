"""`pwgrid run`: starts a private grid, runs one command beside it, forwards signals to it, and ends the grid."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
import orjson
from pydantic import TypeAdapter

from pwgrid.cli import exit_codes
from pwgrid.cli.ask_grid import ask
from pwgrid.cli.external_redis import without_application_redis
from pwgrid.cli.options import FLAGS, PRIVATE, Configured, as_arguments, as_private
from pwgrid.cli.run_command_guard import MARK_VARIABLE
from pwgrid.common.errors import GridError
from pwgrid.master.memory_readings import (
    BROWSER_MIB,
    CGROUPS,
    MEMBERSHIP,
    SESSION_MIB,
    available_mib,
    own_cgroups,
    text_of,
)
from pwgrid.runtime.directory import base_dir, is_short_enough, short_base
from pwgrid.runtime.find_grids import RunningGrid
from pwgrid.settings.model import DEFAULT, SETTINGS, Settings

if TYPE_CHECKING:
    from pwgrid.settings.load import Loaded

GRACE_S: Final = 2.0
"""Time for sessions that a finished command has left open; after it a second SIGTERM cuts them."""

STOP_S: Final = 30.0
"""Time for the grid to end after the second SIGTERM, before SIGKILL."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# -P: modules in the current directory must not be imported in place of ours.
PROGRAM: Sequence[str] = (sys.executable, "-P", "-m", "pwgrid")
_GUARD: Final = (sys.executable, "-P", "-m", "pwgrid.cli.run_command_guard")

FIGURES_TIMEOUT_S: Final = 5.0

QUEUE_TIMEOUT_S: Final = 600.0
"""A test worker keeps its slot until it has run all its tests; a client that waits for the slot waits as long."""

NEVER: Final = 1_000_000_000
"""Sessions until a worker is recycled: a recycle in the middle of a run would cut its longest tests."""

SAMPLE_S: Final = 1.0
"""Seconds between samples of memory: short enough for the peak of a command that runs for seconds."""

SLOTS_PER_CORE: Final = 4
"""A test waits for its pages most of the time: with fewer slots cores idle, with more, tests run into timeouts."""


@click.command(
    cls=Configured,
    defaults={
        "port": "a free one",
        "max_concurrent_sessions": "from cores and memory",
        "worker_select_timeout": "600",
        "log_level": "warning",
    },
    shown=[each for each in FLAGS if each not in PRIVATE],
    context_settings={"allow_interspersed_args": False},  # all that comes after COMMAND is for COMMAND
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(config_file: Path | None, command: tuple[str, ...], **flags: Any) -> None:
    """Runs COMMAND with a private grid of its own.

    COMMAND finds the grid's address in PW_TEST_CONNECT_WS_ENDPOINT and PWGRID_WS_ENDPOINT. Playwright Test uses it by
    itself, and so does pytest-playwright where pwgrid is installed beside it (pwgrid help ci has a fixture for
    elsewhere). The exit code is that of COMMAND, and the grid ends after it.

    The grid has a Redis of its own, recycles no worker after a number of sessions, and lets clients wait for a slot for
    ten minutes. If a browser cannot be started, COMMAND is not run.

    \b
    pwgrid run --chromium 2 -- npx playwright test
    """
    from pwgrid.settings.load import load

    flags["port"] = flags["port"] or 0
    environment = without_application_redis()
    loaded = load(config_file, environment, as_private(flags), private=True)  # complains here, not in the child
    environment |= as_environment(private_settings(loaded))
    environment |= as_environment({"browser_read_paths": shlex.join(readable_paths(loaded.settings))})
    sys.exit(run_command(as_arguments({**flags, "config_file": config_file}), command, environment))


def private_settings(loaded: Loaded) -> dict[str, object]:
    """Values by name, for those settings of a private grid that neither file nor environment nor flag has set."""
    settings = loaded.settings
    free_mib = available_mib() - settings.min_host_available_mib
    slots = slots_of_worker(sum(settings.workers_wanted().values()), usable_cores(), free_mib)
    values: dict[str, object] = {
        "log_level": "warning",  # a CI log is about the command
        "block_file_urls": "off",  # its pages are those of the command
        "memory_check_interval": SAMPLE_S,
        "max_concurrent_sessions": slots,
        "max_lifetime_sessions": NEVER,
        "max_launches": 0,
        "worker_select_timeout": QUEUE_TIMEOUT_S,
    }
    if not is_short_enough(base_dir()):  # a TMPDIR below a CI job's work space
        values["runtime_dir"] = short_base()
    return {name: value for name, value in values.items() if loaded.sources[name] == DEFAULT}


def readable_paths(settings: Settings) -> list[str]:
    """The files that browsers may read: also those where COMMAND runs, whose tests may have pages there."""
    with contextlib.suppress(OSError):  # the directory may be gone
        here = os.getcwd()
        if here.isprintable():
            return [*settings.browser_read_paths, here]
    return [*settings.browser_read_paths]


def slots_of_worker(workers: int, cores: float, free_mib: int) -> int:
    """The slots of each worker for which cores and memory (`free_mib`) suffice when all are taken; at least 1."""
    by_memory = (free_mib - workers * BROWSER_MIB) // SESSION_MIB
    return max(1, int(min(cores * SLOTS_PER_CORE, by_memory) // workers))


def usable_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """The number of cores that this process may use: those it may run on, or less where its cgroup (v2) allows less."""
    shares = [float(len(os.sched_getaffinity(0)))]
    for group in own_cgroups(cgroups, membership):
        quota, _, period = text_of(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            shares.append(int(quota) / int(period))
    return min(shares)


def as_environment(values: dict[str, object]) -> dict[str, str]:
    """The values as environment variables of the grid, by the names that beat all others of the same settings."""
    return {SETTINGS[name].environments[0]: str(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What a grid writes to --ready-fd when it is ready, or cannot be. `token` is empty where it asks for none."""

    endpoint: str
    connect: str
    http: str
    token: str
    directory: Path
    pid: int
    port: int
    reason: str | None
    """Why it is not ready, in one sentence; None when it is."""

    def grid(self) -> RunningGrid:
        """The grid as the commands know it."""
        return RunningGrid(self.directory, self.port, self.pid, self.endpoint)

    def variables(self) -> dict[str, str]:
        """What a command needs in its environment to find the grid."""
        return {"PW_TEST_CONNECT_WS_ENDPOINT": self.connect, "PWGRID_WS_ENDPOINT": self.connect}


class _Interrupted(Exception):
    def __init__(self, signum: int) -> None:
        self.signum = signum


class PrivateGrid:
    """A grid on a free port, in a process session of its own. It ends when this process ends, however that happens."""

    def __init__(self, serve_arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        ready_in, ready_out = os.pipe()
        life_in, self._lifeline = os.pipe()
        fds = ["--ready-fd", str(ready_out), "--lifeline-fd", str(life_in)]
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--private", *serve_arguments, *fds],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=(ready_out, life_in),
            start_new_session=True,
        )
        os.close(ready_out)
        os.close(life_in)
        self._ready: IO[str] = os.fdopen(ready_in)

    def ready(self) -> ReadyReport | None:
        """Waits until the grid is ready, or cannot be. Returns None when it has ended, and has said why on stderr."""
        line = self._ready.readline()
        return TypeAdapter(ReadyReport).validate_json(line) if line else None

    def stop(self) -> int:
        """Ends the grid, waits for it, and returns its exit code."""
        self._ready.close()
        for grace_s in (GRACE_S, STOP_S):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                return self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                continue
        os.close(self._lifeline)
        self.process.kill()
        return self.process.wait()


@contextlib.contextmanager
def _guarded() -> Iterator[str]:
    """Yields a mark. If we are killed, a guard process ends all processes with the mark in their environment."""
    mark = uuid4().hex
    told, tell = os.pipe()
    guard = subprocess.Popen(
        [*_GUARD, str(told), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(told,),
        start_new_session=True,
    )
    try:
        yield mark
        os.write(tell, b"nothing to do")
    finally:
        os.close(tell)
        os.close(told)  # not before the write, which would fail without a reader if the guard was killed
        guard.wait()


def run_command(serve_arguments: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs `command` beside a private grid, which gets `environment`.

    Returns the command's exit code, or 128 + n when signal n ended it (as shells do). Raises GridError where it was not
    run.
    """
    _refuse_missing(command[0])
    child: subprocess.Popen[bytes] | None = None

    def forward(signum: int, _frame: FrameType | None) -> None:
        if child is None:
            raise _Interrupted(signum)
        if signum != signal.SIGINT or not _is_in_foreground():  # the terminal sends that one to the command itself
            child.send_signal(signum)

    grid: PrivateGrid | None = None
    closing = ""
    # What nohup has us ignore, the command ignores, too, unless we handle it.
    heard = [signal.SIGINT, *(each for each in _FORWARDED if signal.getsignal(each) is not signal.SIG_IGN)]
    try:
        for signum in heard:
            signal.signal(signum, forward)
        grid = PrivateGrid(serve_arguments, environment)  # interrupted half made, it ends when this process does
        with _guarded() as mark:
            ready = grid.ready()
            if ready is None:
                return grid.process.wait() or 1
            child = _start(command, ready, mark)
            code = child.wait()
        closing = closing_line(ready)
        return code if code >= 0 else 128 - code
    except _Interrupted as interrupted:
        return 128 + interrupted.signum
    finally:
        for signum in (signal.SIGINT, *_FORWARDED):
            signal.signal(signum, signal.SIG_IGN)
        if grid is not None:
            grid.stop()
        sys.stderr.write(f"pwgrid: {closing}\n" * bool(closing))


def _start(command: Sequence[str], ready: ReadyReport, mark: str) -> subprocess.Popen[bytes]:
    """Starts the command with the grid's address and the guard's mark in its environment. Raises GridError."""
    if ready.reason is not None:
        raise GridError(f"{command[0]} was not run: {ready.reason}")
    try:
        return subprocess.Popen(command, env={**os.environ, **ready.variables(), MARK_VARIABLE: mark})
    except OSError as error:
        raise _cannot_run(command[0], error) from None


def _refuse_missing(program: str) -> None:
    """Raises GridError for a program that cannot be run, before a browser is started for it."""
    if shutil.which(program) is None:
        places = [program] if "/" in program else [os.path.join(each, program) for each in os.get_exec_path()]
        code = errno.EACCES if any(map(os.path.exists, places)) else errno.ENOENT
        raise _cannot_run(program, OSError(code, os.strerror(code)))


def _cannot_run(program: str, error: OSError) -> GridError:
    """The error that a shell would report."""
    code = exit_codes.NOT_FOUND if error.errno == errno.ENOENT else exit_codes.NOT_EXECUTABLE
    return GridError(f"{program}: {error.strerror}", code)


def _is_in_foreground() -> bool:
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # stdin may be a file or a pipe
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal
        return False


def closing_line(ready: ReadyReport) -> str:
    """One line with the figures of a grid that is about to end, or why there are none."""
    request = urllib.request.Request(f"{ready.http}/v1/status", headers={"Authorization": f"Bearer {ready.token}"})
    # No proxy of the environment: the grid is on this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        peak_mib = ask(ready.grid(), "status")["host"]["peakMib"]
        with opener.open(request, timeout=FIGURES_TIMEOUT_S) as answer:
            return closing_text(orjson.loads(answer.read()), peak_mib)
    # A grid may end, or be cut off, in the middle of an answer: that is no failure of a command that has passed.
    except (OSError, GridError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        return f"no figures of the sessions: {error}"


def closing_text(status: dict[str, Any], peak_mib: int) -> str:
    """The line, from the answer of /v1/status and the peak memory of all workers and browsers together."""
    outcomes, clients = status["outcomes"], status["clients"]
    cut = outcomes.get("failed", 0) + outcomes.get("ended", 0)
    sessions = outcomes.get("completed", 0) + cut + status["activeConnections"]
    figures = [
        f"{sessions} session{'s' * (sessions != 1)}",
        f"longest wait for a slot {clients['longestWaitS']:.1f} s",
        f"{clients['refused']} refused",
        f"{cut} cut",
        f"peak memory {peak_mib} MiB",
    ]
    line = ", ".join(figures)
    has_come = sessions or clients["refused"]
    return line if has_come else f"{line}; nothing has connected to $PWGRID_WS_ENDPOINT, see pwgrid help ci"
