"""Runs installers and shows their progress; installs packages of the system; tries whether a program runs.

It needs the standard library alone: tools/bootstrap.py uses it before there is a virtual environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

INSTALL_TIMEOUT_S: Final = 900.0
PROGRAM_S: Final = 20.0
_LINE_INTERVAL_S: Final = 1.0
_TAIL_LINES: Final = 12
_INT_S: Final = 60.0
_TERM_S: Final = 10.0
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STACK_FRAME: Final = re.compile(r"\s+(at |errno:|code:|syscall:|hostname:)")
_ERROR: Final = re.compile(r"error|\bE:|cannot|unable", re.IGNORECASE)
_LETTER: Final = re.compile(r"[A-Za-z]")

_LISTS_LIVE_S: Final = 24 * 3600.0
_APT: Final = ("apt-get", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0")
# By itself apt only warns where it could fetch nothing, exits 0, and goes on with the old lists.
_UPDATE: Final = ("-o", "APT::Update::Error-Mode=any", "update")
_QUIET: Final[Mapping[str, str]] = {"DEBIAN_FRONTEND": "noninteractive"}


class Steps:
    """Prints how set-up goes: a line for each step, and some of the lines that an installer prints."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._kinds: set[str] = set()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        """Prints one step."""
        self._write(text)

    def command(self, command: Sequence[str]) -> None:
        """Called when an installer starts."""
        self._write(f"  $ {' '.join(command)}")
        self._kinds.clear()
        self._next = 0.0

    def output(self, line: str) -> None:
        """Prints a line of the installer if it is the first that begins with this word, else at most one a second."""
        kind, now = re.split(r"[\d\s:]", line, maxsplit=1)[0], time.monotonic()
        if kind not in self._kinds or now >= self._next:
            self._write(f"  | {line}")
            self._kinds.add(kind)
            self._next = now + _LINE_INTERVAL_S

    def ended(self) -> None:
        """Called when the installer has ended."""


@dataclass(slots=True)
class Host:
    """The host, as installers see it, and `say` for their steps. The defaults are the real one; tests give others."""

    say: Steps
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    timeout_s: float = INSTALL_TIMEOUT_S
    packages_by_hand: list[str] = field(default_factory=list)
    """Packages that the user has to install, because that takes root."""
    commands_by_hand: list[str] = field(default_factory=list)
    """Other commands that the user has to run, because they take root."""
    has_new_lists: bool = False
    """Whether `apt-get update` has run already."""

    def which(self, command: str) -> str | None:
        """The path of a command, or None."""
        return shutil.which(command, path=self.environ.get("PATH", ""))

    @property
    def has_snap_packages(self) -> bool:
        """Whether the system's packages of browsers only install snaps, which Playwright cannot drive."""
        with contextlib.suppress(FileNotFoundError):
            return "ID=ubuntu" in (self.root / "etc/os-release").read_text().splitlines()
        return False

    def as_root(self) -> tuple[str, ...] | None:
        """The words before a command that needs root; None when that would ask for a password."""
        if self.is_root:
            return ()
        sudo = self.which("sudo")
        if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
            return (sudo, "-n", "env", *(f"{name}={value}" for name, value in _QUIET.items()))
        return None

    def left_to_do(self) -> str | None:
        """One command for everything that was not done because it takes root; None when there is nothing."""
        commands = list(self.commands_by_hand)
        if self.packages_by_hand:
            commands = ["apt-get update", f"apt-get install {' '.join(self.packages_by_hand)}", *commands]
        sudo = "sudo " if self.which("sudo") else ""
        return " && ".join(sudo + command for command in commands) or None

    def has_young_lists(self) -> bool:
        """Whether apt's package lists were fetched within the last day.

        The file of a list has the time of its last change on the server, so it was fetched no earlier. The time of the
        last attempt is no help: apt also records one that failed.
        """
        times = [path.stat().st_mtime for path in (self.root / "var/lib/apt/lists").glob("*Release")]
        return bool(times) and time.time() - max(times) < _LISTS_LIVE_S

    def apt_knows(self, package: str) -> bool:
        """Whether apt's lists have this package."""
        command = ["apt-cache", "show", "--no-all-versions", package]
        return subprocess.run(command, capture_output=True, env=dict(self.environ), check=False).returncode == 0

    def run(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
        """Runs an installer with `environ` added to its environment. None when it worked, else why not."""
        self.say.command(command)
        try:
            return _stream(command, {**self.environ, **_QUIET, **(environ or {})}, self.say, self.timeout_s)
        except OSError as error:
            return str(error)
        finally:
            self.say.ended()

    def install(self, what: str, names: Sequence[str]) -> str | None:
        """Installs the first of these packages that apt has. None when it worked, else why not."""
        if self.which("apt-get") is None:
            return f"there is no apt-get here that could install {names[0]}"
        root = self.as_root()
        if root is None:
            name = next(filter(self.apt_knows, names), names[0])
            self.packages_by_hand.append(name)
            return f"the system's package {name} is not installed, and installing it takes root"
        fault = None
        if not (self.has_new_lists or (self.has_young_lists() and any(map(self.apt_knows, names)))):
            # A fresh container has no lists; old ones name browsers that lack security updates.
            fault = self.run([*root, *_APT, *_UPDATE])
            self.has_new_lists = fault is None
        package = next(filter(self.apt_knows, names), None)
        if package is None:
            return f"apt-get update failed ({fault})" if fault else f"apt has no package {' or '.join(names)}"
        if fault is not None:
            self.say(f"{what}: apt-get update failed ({fault}); going on with the package lists that are here")
        self.say(f"{what}: installing the system's package {package}")
        fault = self.run([*root, *_APT, "install", "-y", "--no-install-recommends", package])
        return None if fault is None else f"apt-get failed ({fault})"


def output_of(
    command: Sequence[str | Path], environ: Mapping[str, str] | None = None, timeout_s: float = PROGRAM_S
) -> tuple[str, str | None]:
    """What a program prints, and None; or else why it does not run. Waits for so long at most."""
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {timeout_s:g} s"
    except OSError as error:
        return "", str(error)
    if done.returncode != 0:
        return "", (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()[-1]
    return done.stdout, None


def _stream(command: Sequence[str], environ: Mapping[str, str], say: Steps, timeout_s: float) -> str | None:
    """Runs `command`. None when it exits 0, else what it printed last."""
    deadline = time.monotonic() + timeout_s
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all of it can be ended, also when we are interrupted
    )
    assert process.stdout is not None
    output = process.stdout.fileno()
    unfinished = b""
    try:
        while select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(output, 65536)
            *complete, unfinished = (unfinished + data).replace(b"\r", b"\n").split(b"\n")
            for line in map(_readable, complete if data else [unfinished]):
                if line:
                    say.output(line)
                if line and line.strip() not in tail:
                    tail.append(line.strip())
            if not data:
                break
        else:
            return f"not done within {timeout_s:g} s"
        code = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"not done within {timeout_s:g} s"
    finally:
        _end(process, say)
        process.stdout.close()
    last_words = " / ".join([line for line in tail if _ERROR.search(line)] or tail)
    return None if code == 0 else f"exit {code}: {last_words or 'it printed nothing'}"


def _readable(raw: bytes) -> str:
    """A line without colours; empty for a progress bar or a stack frame."""
    line = _ANSI.sub("", raw.decode(errors="replace")).rstrip()
    return line if _LETTER.search(line) and not _STACK_FRAME.match(line) else ""


def _end(process: subprocess.Popen[bytes], say: Steps) -> None:
    """Ends what still runs of an installer, and all that it started.

    SIGINT to the installer alone comes first: apt then finishes the current step of dpkg, and a killed dpkg leaves a
    broken host. Another Ctrl-C goes on to the next signal. A process that runs as root by sudo cannot be ended by us;
    it is waited for.
    """
    if process.poll() is not None:
        return
    say("  (ending it)")
    for number, send, patience_s in (
        (signal.SIGINT, os.kill, _INT_S),
        (signal.SIGTERM, os.killpg, _TERM_S),
        (signal.SIGKILL, os.killpg, _TERM_S),
    ):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(process.pid, number)
        with contextlib.suppress(KeyboardInterrupt):
            if _exits(process.pid, patience_s):
                break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the rest of the group; its id cannot be reused before our wait()
    process.wait()


def _exits(pid: int, patience_s: float) -> bool:
    """Whether our child exits within this time. Does not reap it."""
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], patience_s)[0])
    finally:
        os.close(pidfd)
