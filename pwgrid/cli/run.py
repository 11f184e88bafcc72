"""`pwgrid run`: a private grid for the length of one command. Starts both, relays signals, knows no browser."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, Any, Final

GRACE_S: Final = 2.0
"""For sessions that a finished command has left open; then the grid is told to stop now."""

STOP_S: Final = 30.0
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

PROGRAM: Sequence[str] = (sys.executable, "-m", "pwgrid")

_OTHERS_REDIS: Final = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT")
"""Of the application under test: the private grid has a Redis of its own."""


def grid_environment() -> dict[str, str]:
    """What the private grid sees of our environment."""
    return {name: value for name, value in os.environ.items() if name not in _OTHERS_REDIS}


class _Interrupted(Exception):
    def __init__(self, signum: int) -> None:
        self.signum = signum


class PrivateGrid:
    """A grid on a free port, in a session of its own, that ends when this process does, however that ends."""

    def __init__(self, serve_arguments: Sequence[str]) -> None:
        ready_in, ready_out = os.pipe()
        life_in, self._lifeline = os.pipe()
        fds = ["--ready-fd", str(ready_out), "--lifeline-fd", str(life_in)]
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--private", *serve_arguments, *fds],
            env=grid_environment(),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=(ready_out, life_in),
            start_new_session=True,
        )
        os.close(ready_out)
        os.close(life_in)
        self._ready: IO[str] = os.fdopen(ready_in)

    def endpoint(self) -> str | None:
        """The grid's endpoint once it is ready; None when it ended before that, which it has explained itself."""
        line = self._ready.readline()
        ready: dict[str, Any] = json.loads(line) if line else {}
        return ready.get("connect")

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


def run_command(serve_arguments: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs `command` beside a private grid. Returns its exit code, 128 + n when signal n ended it (as shells do)."""
    child: subprocess.Popen[bytes] | None = None

    def forward(signum: int, _frame: FrameType | None) -> None:
        if child is None:
            raise _Interrupted(signum)
        if signum != signal.SIGINT or not _is_in_foreground():  # the terminal sends that one to the command itself
            child.send_signal(signum)

    for signum in (signal.SIGINT, *_FORWARDED):
        signal.signal(signum, forward)
    grid = PrivateGrid(serve_arguments)
    try:
        endpoint = grid.endpoint()
        if endpoint is None:
            return grid.process.wait() or 1
        for_command = {"PW_TEST_CONNECT_WS_ENDPOINT": endpoint, "PWGRID_WS_ENDPOINT": endpoint}
        try:
            child = subprocess.Popen(command, env={**environment, **for_command})
        except OSError as error:
            print(f"pwgrid: {command[0]}: {error.strerror}", file=sys.stderr)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        code = child.wait()
        return code if code >= 0 else 128 - code
    except _Interrupted as interrupted:
        return 128 + interrupted.signum
    finally:
        for signum in (signal.SIGINT, *_FORWARDED):
            signal.signal(signum, signal.SIG_IGN)
        grid.stop()


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no terminal
        return False
