"""A master with tiny roles in a process of its own, followed by what it tells; see master_main."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.support.grid import NEVER, processes_marked

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""Bounds a failure; nothing waits for it to pass."""

Line = dict[str, Any]


def wait_gone(pid: int) -> None:
    """Wait until process `pid` has ended; it may be reaped by somebody else."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], PATIENCE_S)[0], f"process {pid} is still there"
    finally:
        os.close(pidfd)


class MasterGrid:
    """Starts a master; everything that it tells is kept in `lines`."""

    def __init__(self, *, pass_fds: tuple[int, ...] = (), terminal: int | None = None, **spec: Any) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.base = self.temporary / "b"
        self.lines: list[Line] = []
        self._unread = b""
        self._log = (self.temporary / "log").open("w+b")
        # Without spares, unless the test sets how long workers live: a busy machine starts slowly, and so has some.
        settings = {"chromium_workers": 1, "max_lifetime_sessions": int(NEVER), **spec.pop("settings", {})}
        argument = json.dumps({"base": str(self.base), "settings": settings, **spec})
        command = [sys.executable, "-m", "tests.support.master_main", argument]
        # These tests may run under nohup, which has SIGHUP ignored; setsid without --fork stays the same process.
        in_terminal = ["env", "--default-signal=HUP", "setsid", "--ctty", *command]
        self.process = subprocess.Popen(
            command if terminal is None else in_terminal,
            cwd=ROOT,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=self._log if terminal is None else terminal,
            pass_fds=pass_fds,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        self.start = self.expect("starting")

    def __enter__(self) -> MasterGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                sys.stderr.write(self.log_text()[-20_000:])
            if self.process.poll() is None:
                self._end_hard()
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
            self._log.close()
            shutil.rmtree(self.temporary)

    def expect(self, what: str, since: int = 0, **fields: Any) -> Line:
        """The first line from index `since` on that says `what` with these fields; waits for it."""
        position = since
        while True:
            while position < len(self.lines):
                line = self.lines[position]
                position += 1
                if line["what"] == what and all(line.get(name) == value for name, value in fields.items()):
                    return line
            self._read_more(f"{what} {fields}")

    def expect_state(self, accept: Any, since: int = 0) -> Line:
        """The first roster that the proxy was given and that `accept` accepts."""
        while True:
            line = self.expect("state", since)
            since = line["at"] + 1
            if accept(line["state"]):
                return line

    def read_to_end(self) -> None:
        """Everything that is still to be told."""
        while self._read_more("the end", at_end=True):
            pass

    def mark(self) -> int:
        """The index that the next line will have."""
        return len(self.lines)

    def send(self, signum: int) -> None:
        """To the master."""
        self.process.send_signal(signum)

    def ask(self, name: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request over the control socket; the whole answer."""
        with self.asking(name, data) as control:
            answer: dict[str, Any] = json.loads(control.recv(1 << 20))
            return answer

    def asking(self, name: str, data: dict[str, Any] | None = None) -> socket.socket:
        """A connection to the control socket, on which this is asked, and the answer is still to be read."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(PATIENCE_S)
        while True:
            try:
                control.connect(self.start["control"])
                break
            except (FileNotFoundError, ConnectionRefusedError):
                assert self.process.poll() is None, "the master ended before it listened"
        control.send(json.dumps({"t": "request", "name": name, "data": data or {}}).encode())
        return control

    def status(self) -> dict[str, Any]:
        """The master's status."""
        reply: dict[str, Any] = self.ask("status")["data"]
        return reply

    def log_text(self) -> str:
        """What was logged."""
        return (self.temporary / "log").read_text()

    def events(self) -> list[dict[str, Any]]:
        """The log, event by event."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    def end(self, signum: int | None = signal.SIGTERM) -> None:
        """Tell the master to end and wait for it; then nothing of it may be left."""
        if signum is not None:
            self.send(signum)
        self.read_to_end()
        assert self.process.wait(PATIENCE_S) == 0, self.log_text()
        ended = self.expect("ended")
        assert ended["leftovers"] == []
        assert ended["fds"].keys() == self.start["fds"].keys(), ended
        for line in self.lines:
            for pid in [line.get("pid"), *line.get("tree", [])]:
                assert pid is None or not psutil.pid_exists(pid), line
        assert not self.base.exists()

    def end_hurried(self) -> None:
        """Signal until it counts as another signal: the same Ctrl-C arrives twice when make is in between."""
        at = self.mark()
        while not any(line["data"]["within"] == "now" for line in self.lines[at:] if line["what"] == "command"):
            self.send(signal.SIGINT)
            try:
                self.status()
            except ConnectionError:  # it has ended meanwhile
                break
            assert self.process.stdout is not None
            while select.select([self.process.stdout], [], [], 0)[0]:
                self._read_more("a drain that cannot wait")
        self.end(None)

    def _read_more(self, wanted: str, *, at_end: bool = False) -> bool:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + PATIENCE_S
        ready = select.select([fd], [], [], deadline - time.monotonic())[0]
        assert ready, f"waited for {wanted}; log:\n{self.log_text()}"
        read = os.read(fd, 65536)
        assert read or at_end, f"the master ended before {wanted}; log:\n{self.log_text()}"
        *complete, self._unread = (self._unread + read).split(b"\n")
        for text in complete:
            self.lines.append({**json.loads(text), "at": len(self.lines)})
        return bool(read)

    def _end_hard(self) -> None:
        """After a failure: end exactly what has our directory in its environment, whether its pid was told or not."""
        self.process.kill()
        self.process.wait()
        while left := processes_marked(str(self.temporary)):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
