"""`pwgrid run`: starts a private grid, runs one command beside it, forwards signals to it, and ends the grid."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final
from uuid import uuid4

from pydantic import TypeAdapter

from pwgrid.cli import exit_codes
from pwgrid.cli.run_command_guard import MARK_VARIABLE
from pwgrid.cli.run_summary import closing_line
from pwgrid.common.errors import GridError
from pwgrid.runtime.find_grids import RunningGrid

GRACE_S: Final = 2.0
"""Time for sessions that a finished command has left open; after it a second SIGTERM cuts them."""

STOP_S: Final = 30.0
"""Time for the grid to end after the second SIGTERM, before SIGKILL."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# -P: modules in the current directory must not be imported in place of ours.
PROGRAM: Sequence[str] = (sys.executable, "-P", "-m", "pwgrid")
_GUARD: Final = (sys.executable, "-P", "-m", "pwgrid.cli.run_command_guard")


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
        """Waits until the grid is ready, or cannot be. None when it ended before; it has said why on stderr."""
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
        closing = closing_line(ready.grid(), ready.http, ready.token)
        return code if code >= 0 else 128 - code
    except _Interrupted as interrupted:
        return 128 + interrupted.signum
    finally:
        for signum in (signal.SIGINT, *_FORWARDED):
            signal.signal(signum, signal.SIG_IGN)
        if grid is not None:
            grid.stop()
        with contextlib.suppress(OSError):  # the terminal may be gone
            sys.stderr.write(f"pwgrid: {closing}\n" * bool(closing))


def _start(command: Sequence[str], ready: ReadyReport, mark: str) -> "subprocess.Popen[bytes]":
    """Starts the command with the grid's address and the guard's mark in its environment. Raises GridError."""
    if ready.reason is not None:
        raise GridError(f"{command[0]} was not run: {ready.reason}")
    try:
        return subprocess.Popen(command, env={**os.environ, **ready.variables(), MARK_VARIABLE: mark})
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        code = exit_codes.NOT_FOUND if is_missing else exit_codes.NOT_EXECUTABLE
        raise GridError(f"{command[0]}: {error.strerror}", code) from None


def _is_in_foreground() -> bool:
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # stdin may be a file or a pipe
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal
        return False
